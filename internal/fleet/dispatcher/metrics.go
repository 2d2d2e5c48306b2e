package dispatcher

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pullgate/pullgate/internal/fleet/api"
)

const prefix = "pullgate_dispatcher_"

type metrics struct {
	registry         *prometheus.Registry
	leads            prometheus.Gauge
	nodes, rollouts  *prometheus.GaugeVec
	outcomes, failed *prometheus.CounterVec
	panics           prometheus.Counter
}

func newMetrics(version string) *metrics {
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, []string{label})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "leader", Help: "1 in the replica that leads, else 0.",
		}),
		nodes:    gauges("nodes", "Nodes of all Rollouts, by state; 0 in a replica that does not lead.", "state"),
		rollouts: gauges("rollouts", "Rollouts, by phase; 0 in a replica that does not lead.", "phase"),
		outcomes: counters("attempts_total", "Attempts to change a node that have ended, by outcome.", "outcome"),
		failed: counters("request_failures_total",
			"Writes that the API server has refused or not answered, by kind. Those of an object that has changed are not "+
				"counted.", "write"),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "panics_total",
			Help: "Requests that panicked and were answered with an error. Anything but 0 is a bug.",
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "1, with the version of pullgate and of Go as labels.",
	})
	info.Set(1)
	m.registry.MustRegister(m.leads, m.nodes, m.rollouts, m.outcomes, m.failed, m.panics,
		prometheus.WrapCollectorWith(prometheus.Labels{"version": version, "goversion": runtime.Version()}, info),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// Queries need the series from the start.
	for _, o := range api.Outcomes() {
		m.outcomes.WithLabelValues(string(o))
	}
	for _, a := range []action{
		changeNode{}, notInstalled{}, createPod{}, confirmPod{}, deletePod{}, setStatus{}, setFinalizer{},
	} {
		m.failed.WithLabelValues(a.what())
	}
	m.show(nil)
	return m
}

// show sets the gauges to what Rollouts say of themselves.
func (m *metrics) show(all []*rollout) {
	var sum api.NodeCounts
	phases := map[string]int{}
	for _, r := range all {
		phases[r.Status.Phase]++
		c := r.Status.Nodes
		sum.Installed += c.Installed
		sum.Updating += c.Updating
		sum.Failed += c.Failed
		sum.SkippedNotReady += c.SkippedNotReady
		sum.Pending += c.Pending
		sum.Unknown += c.Unknown
		sum.Leaving += c.Leaving
	}
	for state, n := range map[string]int32{
		"installed": sum.Installed, "updating": sum.Updating, "failed": sum.Failed, "skipped": sum.SkippedNotReady,
		"pending": sum.Pending, "unknown": sum.Unknown, "leaving": sum.Leaving,
	} {
		m.nodes.WithLabelValues(state).Set(float64(n))
	}
	for _, phase := range api.Phases() {
		m.rollouts.WithLabelValues(phase).Set(float64(phases[phase]))
	}
}
