package policyd

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// An reviewOutcome is what came of asking one backend about one image.
type reviewOutcome string

// The outcomes, which are the values of the label outcome.
const (
	reviewAllowed      reviewOutcome = "allowed"
	reviewDenied       reviewOutcome = "denied"
	reviewFailedOpen   reviewOutcome = "failed_open"
	reviewFailedClosed reviewOutcome = "failed_closed"
)

// reviewOutcomes returns all outcomes.
func reviewOutcomes() []reviewOutcome {
	return []reviewOutcome{reviewAllowed, reviewDenied, reviewFailedOpen, reviewFailedClosed}
}

// metrics are the metrics of one process. Its methods may be called concurrently.
type metrics struct {
	registry     *prometheus.Registry
	reviews      *prometheus.CounterVec
	requests     *prometheus.CounterVec
	verified     *prometheus.CounterVec
	mismatches   prometheus.Counter
	panics       prometheus.Counter
	policiesRead prometheus.Gauge
	certRead     prometheus.Gauge
	certExpiry   prometheus.Gauge
	signatures   sync.Once
	webhook      *prometheus.CounterVec
	webhookTook  *prometheus.HistogramVec
}

// newMetrics returns metrics on a registry of their own.
func newMetrics(version, goVersion string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reviews: counterVec("pullgate_policyd_reviews_total",
			"Answers of backends to image reviews, also those of the cache and of failure policies, by outcome.", "outcome", "cached"),
		requests:   counterVec("pullgate_policyd_registry_requests_total", "Requests to registries for signatures, by outcome. Those for tokens are not counted.", "outcome"),
		verified:   counterVec("pullgate_policyd_verifications_total", "Requirements of images that were verified, by outcome. Those that fail have no result.", "outcome"),
		mismatches: counter("pullgate_policyd_policy_mismatches_total", "Requests of pullgated that were not answered, because it uses other policy files or another trusted root."),
		panics:     counter("pullgate_policyd_panics_total", "Requests that panicked and were answered with an error. Anything but 0 is a bug."),
		policiesRead: gauge("pullgate_policyd_policies_last_reload_success",
			"1 if the policy files were valid when they were last read, else 0: the last valid ones are in use."),
		certRead: gauge("pullgate_policyd_certificate_last_reload_success",
			"1 if the files of https were valid when they were last read, else 0: the last valid ones are in use."),
		webhook: counterVec("pullgate_policyd_webhook_requests_total", "Requests to the HTTPS server, by path and by how they were answered.", "path", "outcome"),
		webhookTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pullgate_policyd_webhook_seconds", Help: "How long answers of the HTTPS server took, with the backends of image reviews.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"path"}),
		certExpiry: gauge("pullgate_policyd_certificate_expiry_timestamp_seconds", "When the certificate of https ends, in seconds since 1970."),
	}
	info := gauge("pullgate_policyd_build_info", "1, with the version of pullgate and of Go as labels.")
	m.registry.MustRegister(m.reviews, m.mismatches, m.panics, m.policiesRead,
		prometheus.WrapCollectorWith(prometheus.Labels{"version": version, "goversion": goVersion}, info),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info.Set(1)
	for _, o := range reviewOutcomes() { // queries need the series from the start
		m.reviews.WithLabelValues(string(o), "false")
		m.reviews.WithLabelValues(string(o), "true")
	}
	return m
}

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// Handler serves the metrics.
func (m *metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Review counts what came of asking one backend about one image.
func (m *metrics) Review(o reviewOutcome, cached bool) {
	m.reviews.WithLabelValues(string(o), strconv.FormatBool(cached)).Inc()
}

// VerifiesSignatures adds the metrics of signatures, which do not exist without policies about them. The outcomes are
// all values of the labels. It may be called several times.
func (m *metrics) VerifiesSignatures(requests, verifications []string) {
	m.signatures.Do(func() {
		m.registry.MustRegister(m.requests, m.verified)
		for _, o := range requests {
			m.requests.WithLabelValues(o)
		}
		for _, o := range verifications {
			m.verified.WithLabelValues(o)
		}
	})
}

// RegistryRequest counts a request to a registry.
func (m *metrics) RegistryRequest(outcome string) { m.requests.WithLabelValues(outcome).Inc() }

// Verified counts a requirement of an image that was verified.
func (m *metrics) Verified(outcome string) { m.verified.WithLabelValues(outcome).Inc() }

// Mismatch counts a request that was made with other policy files or another trusted root.
func (m *metrics) Mismatch() { m.mismatches.Inc() }

// Panic counts a request that panicked.
func (m *metrics) Panic() { m.panics.Inc() }

// PoliciesRead says whether the policy files were valid that were read.
func (m *metrics) PoliciesRead(valid bool) { m.policiesRead.Set(number(valid)) }

// ServesWebhook adds the metrics of the webhook, which do not exist without it.
func (m *metrics) ServesWebhook() {
	m.registry.MustRegister(m.webhook, m.webhookTook)
	for _, path := range []string{webhook.ValidatePath, webhook.ImageReviewPath} {
		m.webhookTook.WithLabelValues(path)
		for _, o := range webhook.Outcomes() {
			m.webhook.WithLabelValues(path, string(o))
		}
	}
}

// Webhook counts an answer of the webhook.
func (m *metrics) Webhook(e webhook.Event) {
	m.webhook.WithLabelValues(e.Path, string(e.Outcome)).Inc()
	m.webhookTook.WithLabelValues(e.Path).Observe(e.Took.Seconds())
}

// ServesHTTPS adds the metrics of the certificate, which do not exist without it.
func (m *metrics) ServesHTTPS() { m.registry.MustRegister(m.certRead, m.certExpiry) }

// CertificateRead says whether the files of https were valid that were read.
func (m *metrics) CertificateRead(valid bool) { m.certRead.Set(number(valid)) }

// CertificateExpires says when the certificate in use ends, in seconds since 1970.
func (m *metrics) CertificateExpires(at int64) { m.certExpiry.Set(float64(at)) }

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
