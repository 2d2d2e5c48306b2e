package reviews_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"

	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// BenchmarkCreateContainer measures what a cached review adds to CreateContainer, the socket of pullgate-policyd
// included.
//
//	go test -run '^$' -bench CreateContainer -benchtime 5000x ./reviews
func BenchmarkCreateContainer(b *testing.B) {
	main := reviewbackend.New(b)
	w := start(b, func(w *world) { w.file("main", main, "defaultAllow: false", "reviewed") }, app)
	create := func(p *criproxytest.Pod) func() {
		return func() {
			if denial := w.create(p, app); denial != "" {
				b.Fatal(denial)
			}
		}
	}
	criproxytest.ReportAdded(b, create(w.kubelet.Pod("unreviewed")), create(w.kubelet.Pod("reviewed")))
	if n := len(main.Requests()); n != 1 {
		b.Errorf("%d requests; want all others from the cache", n)
	}
}
