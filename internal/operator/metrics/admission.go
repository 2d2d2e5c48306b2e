package metrics

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// none is the label reason of a finding that admits.
const none = "none"

// admissionMetrics are the metrics of policies. They have no series while there are no policies.
type admissionMetrics struct {
	answers       *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
	conflicts     *prometheus.CounterVec
	policies      *prometheus.GaugeVec
	unjudged      *prometheus.GaugeVec // without labels, as reloaded: a vector can be without series
	reloaded      *prometheus.GaugeVec
	open          *prometheus.CounterVec
	verifications *prometheus.CounterVec
}

func newAdmissionMetrics(r *prometheus.Registry) admissionMetrics {
	m := admissionMetrics{
		answers: counterVec("pullgate_admission_answers_total", "Findings of the validators of the admission chain.", "call", "validator", "answer", "reason", "audit"),
		seconds: histogramVec("pullgate_admission_seconds", "Seconds that a validator of the admission chain took to judge a sandbox or a container.",
			[]float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .01, .1, 1, 10}, "validator"),
		conflicts: counterVec("pullgate_admission_view_conflicts_total", "Fields in which the CRI and the API server differed about a pod. What the CRI says was judged.", "field"),
		policies:  gaugeVec("pullgate_admission_policies", "Policies in use by kind.", "kind"),
		unjudged:  gaugeVec("pullgate_admission_unjudged_fields", "Restricted fields that this node never sees, counted for each policy."),
		reloaded:  gaugeVec("pullgate_admission_last_reload_success", "1 if the policy files were valid when they were last read, else 0: the last valid ones are in use."),
		open:      counterVec("pullgate_admission_failed_open_total", "Findings that admit because the validator got no answer, by its failure policy.", "validator"),
	}
	m.verifications = counterVec("pullgate_collections_total", "Verifications of the signatures of images, after a pull.", "outcome")
	r.MustRegister(m.answers, m.seconds, m.conflicts, m.policies, m.unjudged, m.reloaded, m.open, m.verifications)
	return m
}

func gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// Validators returns the values of the label validator.
func Validators() []string {
	return []string{admission.RestrictionValidator, admission.ReviewValidator, admission.SignatureValidator}
}

// PolicyKinds returns the values of the label kind.
func PolicyKinds() []string {
	return append([]string{restriction.Kind, policyfiles.BackendKind}, policyfiles.SignatureKinds()...)
}

// AdmissionCalls returns the values of the label call of pullgate_admission_answers_total. Only signatures are judged
// at the last two.
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
		"labels", "annotations", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "terminationGracePeriodSeconds", "supplementalGroups",
		"image", "privileged", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "runAsUser", "runAsGroup", "capabilities.add", "capabilities.drop",
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
		m.admission.answers.WithLabelValues(call, validator, f.Answer.String(), reason, strconv.FormatBool(f.Audit)).Inc()
		if f.FailedOpen {
			m.admission.open.WithLabelValues(validator).Inc()
		}
		// findings of a validator follow each other; a pull waits for a registry
		if f.Validator != timed && call != "PullImage" {
			timed = f.Validator
			m.admission.seconds.WithLabelValues(validator).Observe(f.Duration.Seconds())
		}
	}
}

// Verification counts a verification of signatures by its outcome, one of [policyclient.Outcomes].
func (m *Metrics) Verification(outcome string) {
	m.admission.verifications.WithLabelValues(oneOf(policyclient.VerificationOutcomes(), outcome, other)).Inc()
}

// ViewConflict counts a field in which the CRI and the API server differ about a pod.
func (m *Metrics) ViewConflict(field string) {
	m.admission.conflicts.WithLabelValues(oneOf(ConflictFields(), field, other)).Inc()
}

// PoliciesRead says whether the policy files were valid that were read.
func (m *Metrics) PoliciesRead(valid bool) { m.admission.reloaded.WithLabelValues().Set(number(valid)) }

// Policies says which policies are in use: their number by kind, and how many of the fields that they restrict this
// node never sees.
func (m *Metrics) Policies(number func(kind string) int, unjudged int) {
	for _, kind := range PolicyKinds() {
		m.admission.policies.WithLabelValues(kind).Set(float64(number(kind)))
	}
	m.admission.unjudged.WithLabelValues().Set(float64(unjudged))
	// Queries need the series from the start, see begin.
	m.findings(admission.RestrictionValidator, AdmissionCalls()[:4], admission.RestrictionViolated, admission.FieldUnknown)
	if number(policyfiles.BackendKind) > 0 {
		m.findings(admission.ReviewValidator, AdmissionCalls()[:4], admission.ReviewDenied, admission.ReviewUnavailable)
		m.admission.open.WithLabelValues(admission.ReviewValidator)
	}
	if slices.ContainsFunc(policyfiles.SignatureKinds(), func(kind string) bool { return number(kind) > 0 }) {
		m.findings(admission.SignatureValidator, AdmissionCalls(), admission.EndorsementMissing, admission.SignatureMissing, admission.SignatureInvalid,
			admission.IdentityMismatch, admission.DigestRequired, admission.ContentMismatch, admission.FieldUnknown)
		for _, call := range AdmissionCalls() { // an image that a default admits
			m.admission.answers.WithLabelValues(call, admission.SignatureValidator, admission.Admit.String(), string(admission.SignatureMissing), "false")
		}
		for _, outcome := range policyclient.VerificationOutcomes() {
			m.admission.verifications.WithLabelValues(outcome)
		}
	}
	for _, f := range ConflictFields() {
		m.admission.conflicts.WithLabelValues(f)
	}
}

func (m *Metrics) findings(validator string, calls []string, reasons ...admission.Reason) {
	m.admission.seconds.WithLabelValues(validator)
	for _, call := range calls {
		for _, audit := range []string{"true", "false"} {
			m.admission.answers.WithLabelValues(call, validator, admission.Admit.String(), none, audit)
			for _, r := range append(reasons, admission.ValidatorFailed) {
				answer := admission.Deny
				if r == admission.EndorsementMissing {
					answer = admission.Unverified
				}
				m.admission.answers.WithLabelValues(call, validator, answer.String(), string(r), audit)
			}
		}
	}
}

// NoPolicies says that no policies are configured any more.
func (m *Metrics) NoPolicies() {
	m.admission.policies.Reset()
	m.admission.unjudged.Reset()
	m.admission.reloaded.Reset()
}
