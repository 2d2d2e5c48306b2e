package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
)

const other = "other"

const unknown = "unknown"

// Metrics are the metrics of one daemon. Its methods may be called concurrently, the Set ones before a scrape.
type Metrics struct {
	registry *prometheus.Registry
	methods  map[string]string // the label of every full method that is counted by name

	hit, miss, callDuration                                                   *prometheus.HistogramVec
	storeSync                                                                 prometheus.Observer
	verdicts, checks, denials, notCreated, forwarded, sourceErrors, podEvents *prometheus.CounterVec
	nodeConditions                                                            *prometheus.CounterVec
	hidden, panics, unresolved, ignored, dropped                              prometheus.Counter
	upstreamUp, distrusted, reloaded, reloadedAt                              prometheus.Gauge

	// Those of policies have no series while there are no policies.
	seconds                                 *prometheus.HistogramVec
	answers, conflicts, open, verifications *prometheus.CounterVec
	policies, unjudged, policiesReloaded    *prometheus.GaugeVec
	accessFailing                           *prometheus.GaugeVec
	uses, audited                           *prometheus.CounterVec
}

// New returns metrics with a registry. methods are the full methods, "/runtime.v1.ImageService/PullImage", to name.
func New(version, goVersion string, methods []string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), methods: map[string]string{}}
	for _, full := range methods {
		m.methods[full] = full[strings.LastIndex(full, "/")+1:]
	}
	// From a verdict in memory to a pull of gigabytes.
	recheck := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	calls := []float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	syncs := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	m.hit = m.histogram("image_pull_secret_recheck_hit", "Seconds spent on letting a pod use an image on the node by "+
		"proof that was already recorded, without asking the registry.", recheck, "pull_policy")
	m.miss = m.histogram("image_pull_secret_recheck_miss", "Seconds spent on a pull by which a pod had to prove access "+
		"to an image on the node, by what came of it; outcome unverified counts in shadow mode only.", recheck, "pull_policy",
		"outcome")
	m.uses = m.counter("pullgate_image_uses_total", "First uses of an image by a pod, by the right that allowed it.",
		"right")
	for _, right := range policy.Rights() {
		m.uses.WithLabelValues(right)
	}
	m.audited = m.counter("pullgate_image_access_audited_total", "Judgements that a file of kind ImageAccess with mode "+
		"Audit would turn, by the verdict that it would have.", "verdict")
	for _, v := range []policy.Verdict{policy.Allow, policy.Reverify} {
		m.audited.WithLabelValues(v.String())
	}
	m.verdicts = m.counter("pullgate_verdicts_total",
		"Judgements by the CRI call that asked, the verdict and the rule it rests on.", "call", "verdict", "reason")
	m.checks = m.counter("kubelet_imagemanager_image_mustpull_checks_total", "Pre-checks of the kubelet for an image on "+
		"the node, counted under the name and with the results of the kubelet's own verification.", "result")
	m.hidden = m.counter("pullgate_prechecks_hidden_total",
		"Pre-checks of the kubelet that were answered as if the image were not on the node.").WithLabelValues()
	m.denials = m.counter("pullgate_denials_total",
		"Calls that were answered with PermissionDenied because the pod had not proved access to the image.", "call")
	m.forwarded = m.counter("pullgate_forwarded_calls_total", "Calls through the CRI socket by method and status code.",
		"method", "code")
	m.callDuration = m.histogram("pullgate_call_duration_seconds",
		"Seconds that a call took from its arrival to its answer, the runtime's part included.", calls, "judged")
	m.storeSync = m.histogram("pullgate_store_sync_seconds",
		"Seconds that a write to the store of pull records took until it was on disk.", syncs).WithLabelValues()
	m.upstreamUp = m.gauge("pullgate_upstream_up", "1 while the runtime is connected, else 0.").WithLabelValues()
	m.distrusted = m.gauge("pullgate_store_distrusted", "1 while the store is distrusted because it, or a part of it, "+
		"was lost: images on the node are then not marked preloaded.").WithLabelValues()
	m.panics = m.counter("pullgate_panics_total",
		"Calls that panicked and were answered with Internal. Anything but 0 is a bug.").WithLabelValues()
	m.unresolved = m.counter("pullgate_pulls_unresolved_total", "Successful pulls that were not recorded, because the "+
		"runtime does not report which image it pulled. Their images need proof.").WithLabelValues()
	m.ignored = m.counter("pullgate_credentials_ignored_total", "Look-ups of a pod's credentials for an image that found "+
		"more than 16. Only the first 16, in the order in which a kubelet tries them, are considered.").WithLabelValues()
	m.dropped = m.counter("pullgate_decisions_dropped_total", "Decisions that are missing in the decision log, because "+
		"its file could not be written, or not fast enough.").WithLabelValues()
	m.reloaded = m.gauge("pullgate_config_last_reload_success",
		"1 if the configuration was right when it was last read, else 0: the last good one is in use.").WithLabelValues()
	m.reloadedAt = m.gauge("pullgate_config_last_reload_success_timestamp_seconds",
		"When the configuration in use was read, in seconds since 1970.").WithLabelValues()
	m.podEvents = m.counter("pullgate_pod_events_total",
		"Events for pods with imagePullPolicy Never whose image was answered as not present. Absent without a pod source.",
		"outcome")
	m.nodeConditions = m.counter("pullgate_node_condition_writes_total",
		"Writes of the condition PullgateEnforcing of the node. Absent without a pod source.", "outcome")
	m.sourceErrors = m.counter("pullgate_pod_source_errors_total",
		"Things that the pod source could not learn from the API server, by reason.", "reason")
	m.gauge("pullgate_build_info", "1, with the version of pullgate and of Go as labels.", "version",
		"goversion").WithLabelValues(version, goVersion).Set(1)
	m.notCreated = m.counter("pullgate_container_creations_refused_total", "Calls that create or start containers and "+
		"were answered with PermissionDenied for another reason than the judgement of an image.", "reason")
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.ofPolicies()
	m.begin()
	return m
}

// begin makes the series that queries count at 0. For Prometheus a series that appears with its first event has not
// increased, and the first event is the one to know of. The series of forwarded calls appear with the first call of a
// method.
func (m *Metrics) begin() {
	for _, p := range PullPolicies() {
		m.hit.WithLabelValues(p)
		for _, o := range Outcomes() {
			m.miss.WithLabelValues(p, o)
		}
	}
	for _, r := range []string{policyAllowed, recordFound, mustAuthenticate, checkFailed} {
		m.checks.WithLabelValues(r)
	}
	for _, r := range CreationRefusals() {
		m.notCreated.WithLabelValues(r)
	}
	for _, c := range Calls() {
		for _, r := range policy.Reasons() {
			m.verdicts.WithLabelValues(c, verdictOf(r).String(), string(r))
		}
		if c != "ImageStatus" { // that one is hidden, not denied
			m.denials.WithLabelValues(c)
		}
	}
}

func verdictOf(r policy.Reason) policy.Verdict {
	switch r {
	case policy.Absent, policy.Fenced, policy.RecordUnreadable, policy.ImageIDName, policy.ProofExpired,
		policy.NodeCredentials, policy.NotProved, policy.Pulling, policy.Untracked:
		return policy.Reverify
	}
	return policy.Allow
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	return promauto.With(m.registry).NewHistogramVec(opts, labels)
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(m.registry).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// Handler serves the metrics in the format that the scraper asks for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Registry returns the registry, to gather from.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// PullPolicies returns the values of the label pull_policy.
func PullPolicies() []string { return []string{"Always", "IfNotPresent", "Never", unknown} }

// Outcomes returns the values of the label outcome.
func Outcomes() []string { return []string{"verified", "denied", "unavailable", "error", "unverified"} }

// Calls returns the values of the label call.
func Calls() []string {
	return []string{"ImageStatus", "PullImage", "CreateContainer", "StartContainer", "RestorePod"}
}

// The values of the label result, as in pkg/kubelet/images/pullmanager of Kubernetes 1.34.
const (
	policyAllowed    = "credentialPolicyAllowed"
	recordFound      = "credentialRecordFound"
	mustAuthenticate = "mustAuthenticate"
	checkFailed      = "error"
)

func resultOf(d policy.Decision) string {
	switch {
	case d.Reason == policy.RecordUnreadable:
		return checkFailed
	case d.Verdict != policy.Allow:
		return mustAuthenticate
	}
	switch d.Reason {
	case policy.Open, policy.Granted, policy.Proved, policy.ProvedInGrace:
		return recordFound
	}
	return policyAllowed
}

// CreationRefusals returns the values of the label reason of pullgate_container_creations_refused_total.
func CreationRefusals() []string { return []string{"restored", "runtime_error"} }

func oneOf(set []string, value, otherwise string) string {
	if slices.Contains(set, value) {
		return value
	}
	return otherwise
}

// Recheck counts a present image that was allowed by a recorded proof, outcome "hit", or had to be proved.
func (m *Metrics) Recheck(pullPolicy, outcome string, took time.Duration) {
	pullPolicy = oneOf(PullPolicies(), pullPolicy, unknown)
	if outcome == "hit" {
		m.hit.WithLabelValues(pullPolicy).Observe(took.Seconds())
		return
	}
	m.miss.WithLabelValues(pullPolicy, oneOf(Outcomes(), outcome, "error")).Observe(took.Seconds())
}

// Verdict counts a judgement.
func (m *Metrics) Verdict(call string, d policy.Decision) {
	reason := other
	if slices.Contains(policy.Reasons(), d.Reason) {
		reason = string(d.Reason)
	}
	m.verdicts.WithLabelValues(oneOf(Calls(), call, other), d.Verdict.String(), reason).Inc()
	if call == "ImageStatus" {
		m.checks.WithLabelValues(resultOf(d)).Inc()
	}
}

// Use counts the first use of an image by a pod.
func (m *Metrics) Use(reason policy.Reason) {
	if right := reason.Right(); right != "" {
		m.uses.WithLabelValues(right).Inc()
	}
}

// Audited counts a judgement that a file with mode Audit would turn into a verdict.
func (m *Metrics) Audited(would policy.Verdict) { m.audited.WithLabelValues(would.String()).Inc() }

// Refused counts a pre-check ("ImageStatus") answered as if the image were absent, or a call with PermissionDenied.
func (m *Metrics) Refused(call string) {
	if call == "ImageStatus" {
		m.hidden.Inc()
		return
	}
	m.denials.WithLabelValues(oneOf(Calls(), call, other)).Inc()
}

// CreationRefused counts a call that creates or starts containers and was refused although its images were allowed.
func (m *Metrics) CreationRefused(reason string) {
	m.notCreated.WithLabelValues(oneOf(CreationRefusals(), reason, other)).Inc()
}

// ForwardedCall counts a call at its end. code is the name of a status code; a method that is not one
// of those that New was given is counted as "other".
func (m *Metrics) ForwardedCall(method, code string, judged bool, took time.Duration) {
	label := cmp.Or(m.methods[method], other)
	m.forwarded.WithLabelValues(label, oneOf(codeNames(), code, other)).Inc()
	m.callDuration.WithLabelValues(strconv.FormatBool(judged)).Observe(took.Seconds())
}

func codeNames() []string {
	return []string{
		"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists",
		"PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented",
		"Internal", "Unavailable", "DataLoss", "Unauthenticated",
	}
}

// Panic counts a call that panicked.
func (m *Metrics) Panic() { m.panics.Inc() }

// PullUnresolved counts a successful pull whose image the runtime does not report, so that it is not recorded.
func (m *Metrics) PullUnresolved() { m.unresolved.Inc() }

// CredentialsIgnored counts a look-up of a pod's credentials for an image that found more than are considered.
func (m *Metrics) CredentialsIgnored() { m.ignored.Inc() }

// DecisionsDropped counts decisions that are missing in the decision log.
func (m *Metrics) DecisionsDropped(n uint64) { m.dropped.Add(float64(n)) }

// ConfigRead records whether the configuration that was read at a time is valid; only a valid one is in use.
func (m *Metrics) ConfigRead(right bool, at time.Time) {
	m.reloaded.Set(number(right))
	if right {
		m.reloadedAt.Set(float64(at.UnixMilli()) / 1000)
	}
}

// StoreSync counts a write to the store.
func (m *Metrics) StoreSync(took time.Duration) { m.storeSync.Observe(took.Seconds()) }

// UpstreamUp records whether the runtime is connected.
func (m *Metrics) UpstreamUp(up bool) { m.upstreamUp.Set(number(up)) }

// StoreDistrusted records whether the store is distrusted.
func (m *Metrics) StoreDistrusted(yes bool) { m.distrusted.Set(number(yes)) }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *Metrics) gaugeFunc(name, help string, value func() float64) {
	promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

// SetPodSource sets the function that reports whether the pod source is synced with the API server.
func (m *Metrics) SetPodSource(synced func() bool) {
	for _, r := range podsource.Reasons() {
		m.sourceErrors.WithLabelValues(string(r)) // 0 is a value too
	}
	for _, o := range podsource.EventOutcomes() {
		m.podEvents.WithLabelValues(o)
	}
	for _, o := range podsource.ConditionOutcomes() {
		m.nodeConditions.WithLabelValues(o)
	}
	m.gaugeFunc("pullgate_pod_source_synced", "1 while the pods of the node are known and watched at the API server, "+
		"else 0. Absent without a pod source.", func() float64 { return number(synced()) })
}

// PodSourceError counts something that the pod source could not learn.
func (m *Metrics) PodSourceError(reason podsource.Reason) {
	m.sourceErrors.WithLabelValues(string(reason)).Inc()
}

// PodEvent counts an Event of a pod, by one of podsource.EventOutcomes.
func (m *Metrics) PodEvent(outcome string) { m.podEvents.WithLabelValues(outcome).Inc() }

// NodeCondition counts a write of the node's condition, by one of podsource.ConditionOutcomes.
func (m *Metrics) NodeCondition(outcome string) { m.nodeConditions.WithLabelValues(outcome).Inc() }

// SetGrants gives the function that counts the grants at each scrape.
func (m *Metrics) SetGrants(grants func() int) {
	m.gaugeFunc("pullgate_grants", "Pods and images for which access is granted in memory.",
		func() float64 { return float64(grants()) })
}

// An InForce is what a node enforces.
type InForce struct {
	// Shadow means shadow mode, and Policy is the verification policy.
	Shadow bool
	Policy string
	// HasPolicies: there are policy files. PoliciesHash is their hash. PoliciesEnforced: their denials are enforced.
	HasPolicies, PoliciesEnforced bool
	PoliciesHash                  string
}

// SetInForce gives the function that returns at each scrape what the node enforces.
func (m *Metrics) SetInForce(get func() InForce) {
	config := prometheus.NewDesc("pullgate_config_info", "1, with what the node enforces as labels: in mode shadow a "+
		"missing proof denies nothing.", []string{"mode", "policy", "policies_hash"}, nil)
	policies := prometheus.NewDesc("pullgate_admission_enforcing",
		"1 if denials of policies are enforced, 0 if they are only reported.", nil, nil)
	m.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		now := get()
		mode := map[bool]string{true: "shadow", false: "enforce"}[now.Shadow]
		to <- prometheus.MustNewConstMetric(config, prometheus.GaugeValue, 1, mode, now.Policy, now.PoliciesHash)
		if now.HasPolicies {
			to <- prometheus.MustNewConstMetric(policies, prometheus.GaugeValue, number(now.PoliciesEnforced))
		}
	}))
}

// DriftReasons returns the values of the label reason of pullgate_endorsement_drift: results that are about the image.
func DriftReasons() []string {
	return slices.DeleteFunc(requirement.Reasons(), func(reason string) bool {
		return reason == requirement.RegistryDenied || reason == requirement.RegistryUnavailable
	})
}

// SetDrift gives the function that counts drift by reason at each scrape; nil means that nothing is rechecked.
func (m *Metrics) SetDrift(count func() map[string]int) {
	drift := prometheus.NewDesc("pullgate_endorsement_drift",
		"Endorsements of images in use that no longer meet their requirement, as admission.recheckEndorsements found.",
		[]string{"reason"}, nil)
	m.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		counts := count()
		if counts == nil {
			return
		}
		for _, reason := range DriftReasons() {
			to <- prometheus.MustNewConstMetric(drift, prometheus.GaugeValue, float64(counts[reason]), reason)
		}
	}))
}

// SetStore gives the function that counts what the store holds at each scrape.
func (m *Metrics) SetStore(counts func() records.Stats) {
	m.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		n := counts() // in one go
		for _, g := range []struct {
			name, help string
			value      float64
		}{
			{"pullgate_pull_records", "Pull records on disk: pairs of an image and a repository to which a credential proved " +
				"access.", float64(n.Records)},
			{
				"pullgate_pull_intents", "Pulls that are under way, or whose answer was lost less than about an hour ago.",
				float64(n.Intents),
			},
			{"pullgate_preloaded_marks", "Images under one of their repositories that are marked preloaded.", float64(n.Marks)},
			{"pullgate_endorsements", "Images under one of their repositories whose signatures were verified, once for each " +
				"requirement that they met.", float64(n.Endorsements)},
			{"pullgate_store_bytes", "Size of the file of the store of pull records.", float64(n.Bytes)},
			{"kubelet_imagemanager_ondisk_pulledrecords", "As pullgate_pull_records, under the name of the kubelet's own " +
				"verification.", float64(n.Records)},
			{"kubelet_imagemanager_ondisk_pullintents", "As pullgate_pull_intents, under the name of the kubelet's own " +
				"verification.", float64(n.Intents)},
		} {
			to <- prometheus.MustNewConstMetric(prometheus.NewDesc(g.name, g.help, nil, nil), prometheus.GaugeValue, g.value)
		}
	}))
}

const none = "none"

func (m *Metrics) ofPolicies() {
	m.answers = m.counter("pullgate_admission_answers_total", "Findings of the validators of the admission chain.", "call",
		"validator", "answer", "reason", "audit")
	m.seconds = m.histogram("pullgate_admission_seconds",
		"Seconds that a validator of the admission chain took to judge a sandbox or a container.",
		[]float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .01, .1, 1, 10}, "validator")
	m.conflicts = m.counter("pullgate_admission_view_conflicts_total",
		"Fields in which the CRI and the API server differed about a pod. What the CRI says was judged.", "field")
	m.policies = m.gauge("pullgate_admission_policies", "Policies in use by kind.", "kind")
	m.unjudged = m.gauge("pullgate_admission_unjudged_fields",
		"Restricted fields that this node never sees, counted for each policy.")
	m.policiesReloaded = m.gauge("pullgate_admission_last_reload_success",
		"1 if the policy files were valid when they were last read, else 0: the last valid ones are in use.")
	m.accessFailing = m.gauge("pullgate_image_access_failing",
		"Files of kind ImageAccess without effect: lend, no usable credential; state, which cannot be written.", "cause")
	m.open = m.counter("pullgate_admission_failed_open_total",
		"Findings that admit because the validator got no answer, by its failure policy.", "validator")
	m.verifications = m.counter("pullgate_collections_total", "Verifications of the signatures of images, after a pull.",
		"outcome")
}

// Validators returns the values of the label validator.
func Validators() []string {
	return []string{
		admission.RestrictionValidator, admission.ReviewValidator, admission.SignatureValidator, admission.HookValidator,
	}
}

// PolicyKinds returns the values of the label kind.
func PolicyKinds() []string { return policyfiles.Kinds() }

// AdmissionCalls returns the values of the label call. Only signatures are judged at the last two.
func AdmissionCalls() []string {
	return []string{"RunPodSandbox", "CreateContainer", "RestorePod", "StartContainer", "ImageStatus", "PullImage"}
}

// AdmissionReasons returns the values of the label reason of pullgate_admission_answers_total.
func AdmissionReasons() []string {
	reasons := []string{none}
	for _, r := range admission.Reasons() {
		reasons = append(reasons, string(r))
	}
	return reasons
}

// ConflictFields returns the values of the label field: those that admission.Merge returns.
func ConflictFields() []string {
	return []string{
		"labels", "annotations", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace",
		"terminationGracePeriodSeconds", "supplementalGroups",
		"image", "privileged", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "runAsUser", "runAsGroup",
		"capabilities.add", "capabilities.drop",
		"seLinuxOptions", "mount.readOnly", "mount.mountPropagation", "volumeType", "hostPath.path", "mount.image",
	}
}

// Admission counts a decision of the admission chain for which validators were asked.
func (m *Metrics) Admission(call string, d admission.Decision) {
	call = oneOf(AdmissionCalls(), call, other)
	timed := ""
	for i := range d.Findings {
		f := &d.Findings[i]
		validator := oneOf(Validators(), f.Validator, other)
		reason := oneOf(AdmissionReasons(), string(f.Reason), other)
		if f.Reason == "" {
			reason = none
		}
		m.answers.WithLabelValues(call, validator, f.Answer.String(), reason, strconv.FormatBool(f.Audit)).Inc()
		if f.FailedOpen {
			m.open.WithLabelValues(validator).Inc()
		}
		// findings of a validator follow each other; a pull waits for a registry
		if f.Validator != timed && call != "PullImage" {
			timed = f.Validator
			m.seconds.WithLabelValues(validator).Observe(f.Duration.Seconds())
		}
	}
}

// Verification counts a verification of signatures by its outcome, one of [policyclient.Outcomes].
func (m *Metrics) Verification(outcome string) {
	m.verifications.WithLabelValues(oneOf(policyclient.VerificationOutcomes(), outcome, other)).Inc()
}

// ViewConflict counts a field in which the CRI and the API server differ about a pod.
func (m *Metrics) ViewConflict(field string) {
	m.conflicts.WithLabelValues(oneOf(ConflictFields(), field, other)).Inc()
}

// PoliciesRead says whether the policy files were valid that were read.
func (m *Metrics) PoliciesRead(valid bool) { m.policiesReloaded.WithLabelValues().Set(number(valid)) }

// Policies says how many policies are in use by kind, and how many fields in them this node never sees.
func (m *Metrics) Policies(number func(kind string) int, unjudged int) {
	for _, kind := range PolicyKinds() {
		m.policies.WithLabelValues(kind).Set(float64(number(kind)))
	}
	m.unjudged.WithLabelValues().Set(float64(unjudged))
	// Queries need the series from the start, see begin.
	m.findings(admission.RestrictionValidator, AdmissionCalls()[:4], admission.RestrictionViolated, admission.FieldUnknown)
	if number(policyfiles.BackendKind) > 0 {
		m.findings(admission.ReviewValidator, AdmissionCalls()[:4], admission.ReviewDenied, admission.ReviewUnavailable)
		m.open.WithLabelValues(admission.ReviewValidator)
	}
	if number(policyfiles.HookKind) > 0 {
		m.findings(admission.HookValidator, AdmissionCalls()[:4], admission.HookDenied, admission.HookUnavailable)
		m.open.WithLabelValues(admission.HookValidator)
	}
	if slices.ContainsFunc(policyfiles.SignatureKinds(), func(kind string) bool { return number(kind) > 0 }) {
		m.findings(admission.SignatureValidator, AdmissionCalls(), admission.EndorsementMissing, admission.SignatureMissing,
			admission.SignatureInvalid, admission.AttestationMissing, admission.ConditionNotMet,
			admission.IdentityMismatch, admission.DigestRequired, admission.ContentMismatch, admission.FieldUnknown)
		for _, call := range AdmissionCalls() { // an image that a default admits
			m.answers.WithLabelValues(call, admission.SignatureValidator, admission.Admit.String(),
				string(admission.SignatureMissing), "false")
		}
		for _, outcome := range policyclient.VerificationOutcomes() {
			m.verifications.WithLabelValues(outcome)
		}
	}
	for _, f := range ConflictFields() {
		m.conflicts.WithLabelValues(f)
	}
}

func (m *Metrics) findings(validator string, calls []string, reasons ...admission.Reason) {
	m.seconds.WithLabelValues(validator)
	for _, call := range calls {
		for _, audit := range []string{"true", "false"} {
			m.answers.WithLabelValues(call, validator, admission.Admit.String(), none, audit)
			for _, r := range append(reasons, admission.ValidatorFailed) {
				answer := admission.Deny
				if r == admission.EndorsementMissing {
					answer = admission.Unverified
				}
				m.answers.WithLabelValues(call, validator, answer.String(), string(r), audit)
			}
		}
	}
}

// NoPolicies says that no policies are configured any more.
func (m *Metrics) NoPolicies() {
	m.policies.Reset()
	m.unjudged.Reset()
	m.policiesReloaded.Reset()
	m.accessFailing.Reset()
}

// ImageAccess says how many files lend nothing, and whether the rights in force cannot be written.
func (m *Metrics) ImageAccess(lendNothing int, unwritten bool) {
	m.accessFailing.WithLabelValues("lend").Set(float64(lendNothing))
	m.accessFailing.WithLabelValues("state").Set(number(unwritten))
}
