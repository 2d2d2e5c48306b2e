package criproxytest

import (
	"slices"
	"testing"
	"time"
)

// ReportAdded makes two calls b.N times in turns, so that what else happens on the machine hits both, and reports their
// medians as p50-without-µs and p50-with-µs, and the difference as p50-added-µs.
func ReportAdded(b *testing.B, without, with func()) {
	b.Helper()
	took := make([][]time.Duration, 2)
	for range b.N {
		for i, call := range []func(){without, with} {
			began := time.Now()
			call()
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
}
