package policyd

import (
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

const (
	reviewAllowed      = "allowed"
	reviewDenied       = "denied"
	reviewFailedOpen   = "failed_open"
	reviewFailedClosed = "failed_closed"
)

type metrics struct {
	registry                             *prometheus.Registry
	reviews, requests, verified, webhook *prometheus.CounterVec
	mismatches, panics                   prometheus.Counter
	policiesRead, certRead, certExpiry   prometheus.Gauge
	webhookTook, hookTook                *prometheus.HistogramVec
	hooks                                *prometheus.CounterVec
	signatures, hooksOnce                sync.Once

	hookMu    sync.Mutex // guards hookNames
	hookNames map[string]bool
}

func newMetrics(version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reviews: counterVec("reviews_total",
			"Answers of backends to image reviews, also those of the cache and of failure policies, by outcome.",
			"outcome", "cached"),
		requests: counterVec("registry_requests_total",
			"Requests to registries for signatures, by outcome. Those for tokens are not counted.", "outcome"),
		verified: counterVec("verifications_total",
			"Requirements of images that were verified, by outcome. Those that fail have no result.", "outcome"),
		mismatches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "policy_mismatches_total",
			Help: "Requests of pullgated that were not answered, because it uses other policy files or another trusted root.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "panics_total",
			Help: "Requests that panicked and were answered with an error. Anything but 0 is a bug.",
		}),
		policiesRead: gauge("policies_last_reload_success",
			"1 if the policy files were valid when they were last read, else 0: the last valid ones are in use."),
		certRead: gauge("certificate_last_reload_success",
			"1 if the files of https were valid when they were last read, else 0: the last valid ones are in use."),
		certExpiry: gauge("certificate_expiry_timestamp_seconds",
			"When the certificate of https ends, in seconds since 1970."),
		webhook: counterVec("webhook_requests_total",
			"Requests to the HTTPS server, by path and by how they were answered.", "path", "outcome"),
		webhookTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "webhook_seconds",
			Help:    "How long answers of the HTTPS server took, with the backends of image reviews.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"path"}),
		hooks: counterVec("hook_requests_total",
			"Requests to hooks, by hook and outcome. Those that a denial by another hook canceled are not counted.",
			"hook", "outcome"),
		hookTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "hook_seconds", Help: "How long answers of hooks took, failures included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"hook"}),
	}
	info := gauge("build_info", "1, with the version of pullgate and of Go as labels.")
	m.registry.MustRegister(m.reviews, m.mismatches, m.panics, m.policiesRead,
		prometheus.WrapCollectorWith(prometheus.Labels{"version": version, "goversion": runtime.Version()}, info),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info.Set(1)
	// Queries need the series from the start.
	for _, o := range []string{reviewAllowed, reviewDenied, reviewFailedOpen, reviewFailedClosed} {
		m.reviews.WithLabelValues(o, "false")
		m.reviews.WithLabelValues(o, "true")
	}
	return m
}

const prefix = "pullgate_policyd_"

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
}

// verifiesSignatures adds the metrics of signatures, which exist with policies about them. It may be called twice.
func (m *metrics) verifiesSignatures() {
	m.signatures.Do(func() {
		m.registry.MustRegister(m.requests, m.verified)
		for _, o := range registry.Outcomes() {
			m.requests.WithLabelValues(o)
		}
		for _, o := range verify.Outcomes() {
			m.verified.WithLabelValues(o)
		}
	})
}

// asksHooks makes the metrics have these hooks and no others. They exist with the first one.
func (m *metrics) asksHooks(hooks policyfiles.Hooks, open func() map[string]bool) {
	if len(hooks) > 0 {
		m.hooksOnce.Do(func() { m.registry.MustRegister(m.hooks, m.hookTook, circuits(open)) })
	}
	m.hookMu.Lock()
	defer m.hookMu.Unlock()
	known := map[string]bool{}
	for i := range hooks {
		name := hooks[i].Name
		known[name] = true
		m.hookTook.WithLabelValues(name)
		for _, o := range hook.Outcomes() {
			m.hooks.WithLabelValues(name, o)
		}
	}
	for name := range m.hookNames {
		if !known[name] {
			m.hooks.DeletePartialMatch(prometheus.Labels{"hook": name})
			m.hookTook.DeleteLabelValues(name)
		}
	}
	m.hookNames = known
}

// hookAnswered counts an answer of a hook, unless the hook was removed in the meantime.
func (m *metrics) hookAnswered(name, outcome string, took time.Duration) {
	m.hookMu.Lock()
	defer m.hookMu.Unlock()
	if m.hookNames[name] {
		m.hooks.WithLabelValues(name, outcome).Inc()
		m.hookTook.WithLabelValues(name).Observe(took.Seconds())
	}
}

// circuits is the metric of the hooks that are not asked for a while.
type circuits func() map[string]bool

var circuitOpen = prometheus.NewDesc(prefix+"hook_circuit_open", //nolint:gochecknoglobals // a constant
	"1 while the failure policy of the hook decides about some namespaces without a request, after time-outs; else 0.",
	[]string{"hook"}, nil)

// Describe implements prometheus.Collector.
func (circuits) Describe(c chan<- *prometheus.Desc) { c <- circuitOpen }

// Collect implements prometheus.Collector.
func (open circuits) Collect(c chan<- prometheus.Metric) {
	for name, open := range open() {
		c <- prometheus.MustNewConstMetric(circuitOpen, prometheus.GaugeValue, number(open), name)
	}
}

func (m *metrics) servesWebhook(clusters []string) {
	m.registry.MustRegister(m.webhook, m.webhookTook)
	for _, cluster := range clusters {
		for _, path := range []string{webhook.ValidatePath, webhook.MutatePath, webhook.ImageReviewPath} {
			path = webhook.ClusterPath(cluster, path)
			m.webhookTook.WithLabelValues(path)
			for _, o := range webhook.Outcomes() {
				m.webhook.WithLabelValues(path, string(o))
			}
		}
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
