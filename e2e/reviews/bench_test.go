package reviews_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

// BenchmarkCreateContainer measures what a cached review adds to CreateContainer, the socket of pullgate-policyd included. Calls with and without it
// take turns, so that what else happens on the machine hits both. p50-added-µs is the difference of the medians.
//
//	go test -run '^$' -bench CreateContainer -benchtime 5000x ./reviews
func BenchmarkCreateContainer(b *testing.B) {
	main := backend(b)
	w := start(b, func(w *world) { w.file(w.policies, "main", main, "defaultAllow: false", "reviewed") }, "", app)
	pods := []*criproxytest.Pod{w.kubelet.Pod("unreviewed"), w.kubelet.Pod("reviewed")}
	took := make([][]time.Duration, len(pods))
	for range b.N {
		for i, p := range pods {
			began := time.Now()
			if denial := w.create(p, app); denial != "" {
				b.Fatal(denial)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	var medians []float64
	for _, all := range took {
		slices.Sort(all)
		medians = append(medians, float64(all[len(all)/2].Nanoseconds())/1000)
	}
	b.ReportMetric(medians[0], "p50-without-µs")
	b.ReportMetric(medians[1], "p50-with-µs")
	b.ReportMetric(medians[1]-medians[0], "p50-added-µs")
	if n := len(main.Requests()); n != 1 {
		b.Errorf("%d requests; want all others from the cache", n)
	}
}
