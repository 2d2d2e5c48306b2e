package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

// page returns the metrics as they are scraped.
func page(m *metrics.Metrics) string {
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

// names returns the names of the metrics of policies.
func names() (all []string) {
	for name := range contract() {
		if strings.HasPrefix(name, "pullgate_admission_") {
			all = append(all, name)
		}
	}
	return all
}

func TestWithoutPoliciesThereIsNoSeriesOfThem(t *testing.T) {
	m := metrics.New("v1", "go1", nil)
	if n, err := testutil.GatherAndCount(m.Registry(), names()...); n != 0 || err != nil {
		t.Errorf("%d series, %v; want none", n, err)
	}
	m.PoliciesRead(false)
	m.Policies(func(string) int { return 3 }, 1)
	m.NoPolicies()
	if n, err := testutil.GatherAndCount(m.Registry(), "pullgate_admission_policies", "pullgate_admission_unjudged_fields", "pullgate_admission_last_reload_success"); n != 0 || err != nil {
		t.Errorf("%d gauges after policies were switched off, %v; want none", n, err)
	}
}

func TestAdmissionCountsFindings(t *testing.T) {
	m := metrics.New("v1", "go1", nil)
	m.PoliciesRead(false)
	m.Policies(func(string) int { return 3 }, 2)
	m.ViewConflict("image")
	m.ViewConflict("team-a/secret")
	m.Admission("CreateContainer", admission.Decision{Findings: []admission.Finding{
		{Validator: "restriction", Answer: admission.Admit, Duration: 20 * time.Microsecond},
		{Validator: "restriction", Answer: admission.Deny, Reason: admission.FieldUnknown, Audit: true, Duration: 20 * time.Microsecond},
	}})
	m.Admission("RestorePod", admission.Decision{Findings: []admission.Finding{
		{Validator: "review", Policy: "scanner", Answer: admission.Admit, FailedOpen: true},
		{Validator: "review", Policy: "other", Answer: admission.Deny, Reason: admission.ReviewUnavailable},
	}})
	m.Admission("Exec", admission.Decision{Findings: []admission.Finding{{Validator: "mine", Answer: admission.Deny, Reason: "MINE"}}})
	m.Admission("CreateContainer", admission.Decision{Answer: admission.Admit, Exemption: admission.ExemptStaticPod})
	text := page(m)
	for _, want := range []string{
		`pullgate_admission_answers_total{answer="Admit",audit="false",call="CreateContainer",reason="none",validator="restriction"} 1`,
		`pullgate_admission_answers_total{answer="Deny",audit="true",call="CreateContainer",reason="FIELD_UNKNOWN",validator="restriction"} 1`,
		`pullgate_admission_answers_total{answer="Deny",audit="false",call="RestorePod",reason="RESTRICTION_VIOLATED",validator="restriction"} 0`,
		`pullgate_admission_answers_total{answer="Deny",audit="false",call="other",reason="other",validator="other"} 1`,
		`pullgate_admission_seconds_bucket{validator="restriction",le="2.5e-05"} 1`,
		`pullgate_admission_seconds_count{validator="restriction"} 1`,
		`pullgate_admission_view_conflicts_total{field="image"} 1`,
		`pullgate_admission_view_conflicts_total{field="other"} 1`,
		`pullgate_admission_policies{kind="PodRestriction"} 3`,
		`pullgate_admission_policies{kind="ImagePolicy"} 3`,
		`pullgate_admission_answers_total{answer="Deny",audit="false",call="CreateContainer",reason="REVIEW_DENIED",validator="review"} 0`,
		`pullgate_admission_answers_total{answer="Deny",audit="false",call="RestorePod",reason="REVIEW_UNAVAILABLE",validator="review"} 1`,
		`pullgate_admission_seconds_count{validator="review"} 1`,
		`pullgate_admission_failed_open_total{validator="review"} 1`,
		"pullgate_admission_unjudged_fields 2",
		"pullgate_admission_last_reload_success 0",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s in\n%s", want, text)
		}
	}
}

// admission.Merge returns no other names of fields.
func TestConflictFieldsAreThoseOfAView(t *testing.T) {
	view := func(n int64, s string, b bool) (admission.Pod, *admission.Container) {
		flag, number, text := admission.Set(b), admission.Set(n), admission.Set(s)
		mapping := admission.Set(map[string]string{"a": s})
		pod := admission.Pod{
			Labels: mapping, Annotations: mapping, ReviewAnnotations: mapping, HostNetwork: flag, HostPID: flag, HostIPC: flag, ShareProcessNamespace: flag,
			FSGroup: number, SupplementalGroups: admission.Set([]int64{n}), Groups: admission.Set([]int64{n}), TerminationGracePeriodSeconds: number,
			ActiveDeadlineSeconds: number, RestartPolicy: text, DNSPolicy: text, NodeSelector: mapping, AutomountServiceAccountToken: flag,
		}
		volume := admission.Volume{Type: text, HostPath: text, HostPathType: text}
		return pod, &admission.Container{
			Name: "main", Image: text, ImagePullPolicy: text, Privileged: flag, ReadOnlyRootFilesystem: flag, AllowPrivilegeEscalation: flag,
			RunAsNonRoot: flag, RunAsUser: number, RunAsGroup: number, CapabilitiesAdd: admission.Set([]string{s}), CapabilitiesDrop: admission.Set([]string{s}),
			SELinux: admission.Set(admission.SELinux{Type: s}), Mounts: admission.Set([]admission.Mount{{Volume: volume, Path: "/m", ReadOnly: flag, Propagation: text, Image: text}}),
		}
	}
	cri, running := view(1, "a", true)
	api, declared := view(2, "b", false)
	cri.FSGroup, cri.SupplementalGroups = admission.Value[int64]{}, admission.Value[[]int64]{} // as the CRI has them
	_, _, got := admission.Merge(cri, api, running, declared)
	mounts, _ := declared.Mounts.Get()
	mounts[0].Type = admission.Set("a") // the path is compared if the type is the same
	_, _, more := admission.Merge(cri, api, running, declared)
	got = slices.Compact(slices.Sorted(slices.Values(append(got, more...))))
	want := metrics.ConflictFields()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("conflicts in\n%q\nwant\n%q", got, want)
	}
}
