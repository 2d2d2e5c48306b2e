package metrics

import "github.com/prometheus/client_golang/prometheus"

// ChecksForTest returns the counter of a result.
func (m *Metrics) ChecksForTest(result string) prometheus.Counter {
	return m.checks.WithLabelValues(result)
}
