package metrics_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
)

const pull = "/runtime.v1.ImageService/PullImage"

// newMetrics returns metrics in which every series has been touched once.
func newMetrics() *metrics.Metrics {
	m := metrics.New("v1.2.3", "go1.26", []string{pull})
	m.SetGrants(func() int { return 4 })
	m.SetStore(func() records.Stats {
		return records.Stats{Records: 5, Intents: 6, Marks: 7, Endorsements: 8, Bytes: 8192}
	})
	m.SetInForce(func() metrics.InForce {
		return metrics.InForce{Shadow: true, Policy: "AlwaysVerify", HasPolicies: true, PoliciesHash: "abc"}
	})
	m.Recheck("Always", "hit", time.Millisecond)
	m.Recheck("Always", "verified", time.Second)
	m.Verdict("PullImage", policy.Decision{Verdict: policy.Allow, Reason: policy.Open})
	m.Use(policy.Shared)
	m.Use(policy.NotProved)
	m.ImageAccess(1, false)
	m.Refused("ImageStatus")
	m.Refused("CreateContainer")
	m.ForwardedCall(pull, "OK", true, time.Millisecond)
	m.Panic()
	m.StoreSync(time.Millisecond)
	m.UpstreamUp(true)
	m.StoreDistrusted(true)
	m.SetPodSource(func() bool { return true })
	m.PodSourceError(podsource.Forbidden)
	m.PodEvent(podsource.EventSent)
	m.NodeCondition(podsource.ConditionWritten)
	m.DecisionsDropped(3)
	m.ConfigRead(true, time.Unix(1700000000, 5e8))
	m.PoliciesRead(true)
	m.Policies(func(string) int { return 9 }, 2)
	return m
}

// The contract: type and labels of every metric. Dashboards and alerts are written against it.
func contract() map[string]string {
	return map[string]string{
		"image_pull_secret_recheck_hit":       "HISTOGRAM pull_policy",
		"image_pull_secret_recheck_miss":      "HISTOGRAM outcome,pull_policy",
		"pullgate_verdicts_total":             "COUNTER call,reason,verdict",
		"pullgate_image_uses_total":           "COUNTER right",
		"pullgate_image_access_audited_total": "COUNTER verdict",
		"pullgate_image_access_failing":       "GAUGE cause",
		"pullgate_prechecks_hidden_total":     "COUNTER ",
		"pullgate_denials_total":              "COUNTER call",
		"pullgate_forwarded_calls_total":      "COUNTER code,method",
		"pullgate_call_duration_seconds":      "HISTOGRAM judged",
		"pullgate_pull_records":               "GAUGE ",
		"pullgate_pull_intents":               "GAUGE ",
		"pullgate_preloaded_marks":            "GAUGE ",
		"pullgate_endorsements":               "GAUGE ",
		"pullgate_grants":                     "GAUGE ",
		"pullgate_store_bytes":                "GAUGE ",
		"pullgate_store_sync_seconds":         "HISTOGRAM ",
		"pullgate_store_distrusted":           "GAUGE ",
		"pullgate_pod_source_synced":          "GAUGE ",
		"pullgate_credentials_ignored_total":  "COUNTER ",
		"pullgate_pod_source_errors_total":    "COUNTER reason",
		"pullgate_pod_events_total":           "COUNTER outcome",
		"pullgate_upstream_up":                "GAUGE ",
		"pullgate_panics_total":               "COUNTER ",
		"pullgate_pulls_unresolved_total":     "COUNTER ",
		"pullgate_decisions_dropped_total":    "COUNTER ",

		"pullgate_container_creations_refused_total": "COUNTER reason",
		"pullgate_node_condition_writes_total":       "COUNTER outcome",

		// as in pkg/kubelet/images/pullmanager/metrics.go of Kubernetes 1.34 to 1.37
		"kubelet_imagemanager_image_mustpull_checks_total": "COUNTER result",
		"kubelet_imagemanager_ondisk_pulledrecords":        "GAUGE ",
		"kubelet_imagemanager_ondisk_pullintents":          "GAUGE ",

		"pullgate_config_info":                                  "GAUGE mode,policies_hash,policy",
		"pullgate_config_last_reload_success":                   "GAUGE ",
		"pullgate_config_last_reload_success_timestamp_seconds": "GAUGE ",

		"pullgate_admission_answers_total":        "COUNTER answer,audit,call,reason,validator",
		"pullgate_admission_seconds":              "HISTOGRAM validator",
		"pullgate_admission_view_conflicts_total": "COUNTER field",
		"pullgate_admission_policies":             "GAUGE kind",
		"pullgate_admission_unjudged_fields":      "GAUGE ",
		"pullgate_admission_last_reload_success":  "GAUGE ",
		"pullgate_admission_enforcing":            "GAUGE ",
		"pullgate_admission_failed_open_total":    "COUNTER validator",

		"pullgate_build_info":        "GAUGE goversion,version",
		"pullgate_collections_total": "COUNTER outcome",
	}
}

func ours(name string) bool {
	return !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_")
}

// Shows: 001-33
func TestNamesAndLabelsAreTheContract(t *testing.T) {
	families := testkit.Value(newMetrics().Registry().Gather())(t)
	got := map[string]string{}
	runtime := 0
	for _, f := range families {
		if !ours(f.GetName()) {
			runtime++
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = f.GetType().String() + " " + strings.Join(labels, ",")
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
	testkit.Equal(t, "metrics", got, contract())
	if runtime == 0 {
		t.Error("the metrics of Go and of the process are missing")
	}
}

// promlint reports no problem with the names of the contract, those of the KEP included. If a later version reports
// one, add it to want, or rename the metric before it is released.
func TestPromlint(t *testing.T) {
	problems := testkit.Value(testutil.GatherAndLint(newMetrics().Registry(), slices.Collect(maps.Keys(contract()))...))(t)
	got, want := []string{}, []string{}
	for _, p := range problems {
		got = append(got, p.Metric+": "+p.Text)
	}
	testkit.Equal(t, "promlint", got, want)
}

func series(t *testing.T, m *metrics.Metrics) []string {
	t.Helper()
	families := testkit.Value(m.Registry().Gather())(t)
	var all []string
	for _, f := range families {
		for _, x := range f.GetMetric() {
			if !ours(f.GetName()) {
				continue
			}
			one := f.GetName()
			for _, l := range x.GetLabel() {
				one += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			all = append(all, one)
		}
	}
	return all
}

// A query for an increase sees the first event only if its series was there before.
func TestWhatQueriesCountBeginsAtZero(t *testing.T) {
	m := metrics.New("v", "go", nil)
	m.PoliciesRead(true)
	m.Policies(func(string) int { return 1 }, 0)
	m.SetPodSource(func() bool { return true })
	before := series(t, m)

	for _, p := range metrics.PullPolicies() {
		for _, o := range append(metrics.Outcomes(), "hit") {
			m.Recheck(p, o, time.Second)
		}
	}
	for _, c := range metrics.Calls() {
		m.Refused(c)
		for _, r := range policy.Reasons() {
			d := policy.Decision{Reason: r}
			if slices.Contains(strings.Fields("exempt_static_pod exempt_namespace never_verify allowlisted preloaded open "+
				"granted proved proved_in_grace shared lent"), string(r)) {
				d.Verdict = policy.Allow
			}
			m.Verdict(c, d)
			m.Use(r)
		}
	}
	for _, reason := range metrics.CreationRefusals() {
		m.CreationRefused(reason)
	}
	creating := []string{"RunPodSandbox", "CreateContainer", "RestorePod", "StartContainer"}
	for _, v := range []struct {
		name   string
		calls  []string
		denies []admission.Reason
	}{
		{"restriction", creating, []admission.Reason{"RESTRICTION_VIOLATED", "FIELD_UNKNOWN", "VALIDATOR_FAILED"}},
		{"review", creating, []admission.Reason{"REVIEW_DENIED", "REVIEW_UNAVAILABLE", "VALIDATOR_FAILED"}},
		{"endorsement", metrics.AdmissionCalls(), []admission.Reason{
			"SIGNATURE_MISSING", "SIGNATURE_INVALID", "IDENTITY_MISMATCH", "DIGEST_REQUIRED", "CONTENT_MISMATCH",
			"FIELD_UNKNOWN", "VALIDATOR_FAILED",
		}},
	} {
		all := []admission.Finding{{Answer: admission.Admit}}
		for _, r := range v.denies {
			all = append(all, admission.Finding{Answer: admission.Deny, Reason: r})
		}
		if v.name == "endorsement" {
			all = append(all, admission.Finding{Answer: admission.Unverified, Reason: admission.EndorsementMissing})
			byDefault := admission.Finding{Validator: v.name, Answer: admission.Admit, Reason: admission.SignatureMissing}
			for _, call := range v.calls {
				m.Admission(call, admission.Decision{Findings: []admission.Finding{byDefault}})
			}
		}
		for _, call := range v.calls {
			for _, audit := range []bool{false, true} {
				for i := range all {
					all[i].Validator, all[i].Audit = v.name, audit
				}
				m.Admission(call, admission.Decision{Findings: all})
			}
		}
	}
	m.Admission("CreateContainer",
		admission.Decision{Findings: []admission.Finding{{Validator: "review", Answer: admission.Admit, FailedOpen: true}}})
	for _, o := range policyclient.VerificationOutcomes() {
		m.Verification(o)
	}
	for _, r := range podsource.Reasons() {
		m.PodSourceError(r)
	}
	for _, o := range podsource.EventOutcomes() {
		m.PodEvent(o)
	}
	for _, o := range podsource.ConditionOutcomes() {
		m.NodeCondition(o)
	}
	testkit.Equal(t, "series that appear with their first event", series(t, m), before)
}

func TestUnknownValuesMakeNoSeries(t *testing.T) {
	m := newMetrics()
	unknown := func(i int) {
		s := fmt.Sprintf("repo.test/secret-%d", i)
		m.Recheck(s, "hit", time.Second)
		m.Recheck(s, s, time.Second)
		m.Verdict(s, policy.Decision{Verdict: policy.Verdict(2 + i%200), Reason: policy.Reason(s)})
		m.Refused(s)
		m.CreationRefused(s)
		m.ForwardedCall("/runtime.v1.ImageService/"+s, s, i%2 == 0, time.Second)
	}
	unknown(0)
	unknown(1)
	before := series(t, m)
	for i := range 100 {
		unknown(i)
	}
	testkit.Equal(t, "values outside of the sets made series", series(t, m), before)
	if all := strings.Join(before, "\n"); strings.Contains(all, "repo.test") || !strings.Contains(all, `"other"`) {
		t.Errorf("labels:\n%s\nwant other, and nothing that was asked for", all)
	}
	// A method is counted by its last part only if it is the whole one that was given.
	m.ForwardedCall("/runtime.v1alpha2.ImageService/PullImage", "OK", false, 0)
	if all := strings.Join(series(t, m), "\n"); strings.Count(all,
		`"PullImage"`) != strings.Count(strings.Join(before, "\n"), `"PullImage"`) {
		t.Error("a method of another service is counted as PullImage")
	}
}

func TestEveryValueOfASetIsCountedAsItself(t *testing.T) {
	m := metrics.New("v", "go", []string{pull})
	for _, p := range metrics.PullPolicies() {
		m.Recheck(p, "hit", 0)
		for _, o := range metrics.Outcomes() {
			m.Recheck(p, o, 0)
		}
	}
	for _, c := range metrics.Calls() {
		for _, r := range policy.Reasons() {
			m.Verdict(c, policy.Decision{Reason: r})
			m.Verdict(c, policy.Decision{Reason: r, Verdict: policy.Allow})
		}
		m.Refused(c)
	}
	for i := range 17 { // the codes of gRPC
		m.ForwardedCall(pull, codes()[i], true, 0)
	}
	for name, want := range map[string]int{
		"image_pull_secret_recheck_hit":  4,
		"image_pull_secret_recheck_miss": 4 * 5,
		"pullgate_verdicts_total":        5 * 20 * 2,
		"pullgate_denials_total":         4,
		"pullgate_forwarded_calls_total": 17,
	} {
		if got, err := testutil.GatherAndCount(m.Registry(), name); err != nil || got != want {
			t.Errorf("%s has %d series, %v; want %d", name, got, err, want)
		}
	}
	if all := strings.Join(series(t, m), "\n"); strings.Contains(all, `"other"`) {
		t.Errorf("a value of a set is counted as other:\n%s", all)
	}
}

// codes are the names of gRPC's status codes, which the contract of labels rests on.
func codes() []string {
	return strings.Fields("OK Canceled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists PermissionDenied " +
		"ResourceExhausted FailedPrecondition Aborted OutOfRange Unimplemented Internal Unavailable DataLoss Unauthenticated")
}

func TestScrape(t *testing.T) {
	body := page(newMetrics())
	for _, want := range []string{
		`image_pull_secret_recheck_hit_sum{pull_policy="Always"} 0.001`,
		`image_pull_secret_recheck_hit_bucket{pull_policy="Always",le="0.0005"} 0`,
		`image_pull_secret_recheck_hit_bucket{pull_policy="Always",le="300"} 1`,
		`image_pull_secret_recheck_miss_sum{outcome="verified",pull_policy="Always"} 1`,
		`pullgate_verdicts_total{call="PullImage",reason="open",verdict="Allow"} 1`, `pullgate_prechecks_hidden_total 1`,
		`pullgate_denials_total{call="CreateContainer"} 1`, `pullgate_forwarded_calls_total{code="OK",method="PullImage"} 1`,
		`pullgate_call_duration_seconds_count{judged="true"} 1`, `kubelet_imagemanager_ondisk_pulledrecords 5`,
		`kubelet_imagemanager_ondisk_pullintents 6`, `pullgate_pull_records 5`, `pullgate_pull_intents 6`,
		`pullgate_preloaded_marks 7`, `pullgate_endorsements 8`, `pullgate_store_bytes 8192`, `pullgate_grants 4`,
		`pullgate_store_sync_seconds_count 1`, `pullgate_store_distrusted 1`, `pullgate_upstream_up 1`,
		`pullgate_panics_total 1`, `pullgate_build_info{goversion="go1.26",version="v1.2.3"} 1`,
		`pullgate_config_info{mode="shadow",policies_hash="abc",policy="AlwaysVerify"} 1`, `pullgate_admission_enforcing 0`,
		`# TYPE pullgate_verdicts_total counter`,
	} {
		if !strings.Contains("\n"+body, "\n"+want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
}

func TestChecksAreCountedAsAKubeletDoes(t *testing.T) {
	want := map[policy.Reason]string{policy.RecordUnreadable: "error"}
	for _, r := range []policy.Reason{
		policy.ExemptStaticPod, policy.ExemptNamespace, policy.NeverVerify, policy.Allowlisted, policy.Preloaded,
	} {
		want[r] = "credentialPolicyAllowed"
	}
	for _, r := range []policy.Reason{policy.Open, policy.Granted, policy.Proved, policy.ProvedInGrace} {
		want[r] = "credentialRecordFound"
	}
	for _, r := range policy.Reasons() {
		m := newMetrics()
		d := policy.Decision{Verdict: policy.Allow, Reason: r}
		if want[r] == "" || want[r] == "error" {
			d.Verdict = policy.Reverify
		}
		m.Verdict("CreateContainer", d) // which a kubelet has no check for
		m.Verdict("ImageStatus", d)
		result := want[r]
		if result == "" {
			result = "mustAuthenticate"
		}
		if want := fmt.Sprintf("kubelet_imagemanager_image_mustpull_checks_total{result=%q} 1\n", result); !strings.Contains(
			page(m), want) {
			t.Errorf("%s: the page lacks %s", r, want)
		}
	}
}

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
	if n, err := testutil.GatherAndCount(m.Registry(), "pullgate_admission_policies", "pullgate_admission_unjudged_fields",
		"pullgate_admission_last_reload_success"); n != 0 || err != nil {
		t.Errorf("%d gauges after policies were switched off, %v; want none", n, err)
	}
}

// Shows: 000-24
func TestAdmissionCountsFindings(t *testing.T) {
	const answers = "pullgate_admission_answers_total"
	m := metrics.New("v1", "go1", nil)
	m.PoliciesRead(false)
	m.Policies(func(string) int { return 3 }, 2)
	m.ViewConflict("image")
	m.ViewConflict("team-a/secret")
	m.Admission("CreateContainer", admission.Decision{Findings: []admission.Finding{
		{Validator: "restriction", Answer: admission.Admit, Duration: 20 * time.Microsecond},
		{
			Validator: "restriction", Answer: admission.Deny, Reason: admission.FieldUnknown, Audit: true,
			Duration: 20 * time.Microsecond,
		},
	}})
	m.Admission("RestorePod", admission.Decision{Findings: []admission.Finding{
		{Validator: "review", Policy: "scanner", Answer: admission.Admit, FailedOpen: true},
		{Validator: "review", Policy: "other", Answer: admission.Deny, Reason: admission.ReviewUnavailable},
	}})
	m.Admission("Exec",
		admission.Decision{Findings: []admission.Finding{{Validator: "mine", Answer: admission.Deny, Reason: "MINE"}}})
	m.Admission("CreateContainer", admission.Decision{Answer: admission.Admit, Exemption: admission.ExemptStaticPod})
	text := page(m)
	for _, want := range []string{
		answers + `{answer="Admit",audit="false",call="CreateContainer",reason="none",validator="restriction"} 1`, answers +
			`{answer="Deny",audit="true",call="CreateContainer",reason="FIELD_UNKNOWN",validator="restriction"} 1`, answers +
			`{answer="Deny",audit="false",call="RestorePod",reason="RESTRICTION_VIOLATED",validator="restriction"} 0`,
		`pullgate_admission_answers_total{answer="Deny",audit="false",call="other",reason="other",validator="other"} 1`,
		`pullgate_admission_seconds_bucket{validator="restriction",le="2.5e-05"} 1`,
		`pullgate_admission_seconds_count{validator="restriction"} 1`,
		`pullgate_admission_view_conflicts_total{field="image"} 1`,
		`pullgate_admission_view_conflicts_total{field="other"} 1`, `pullgate_admission_policies{kind="PodRestriction"} 3`,
		`pullgate_admission_policies{kind="ImagePolicy"} 3`, answers +
			`{answer="Deny",audit="false",call="CreateContainer",reason="REVIEW_DENIED",validator="review"} 0`, answers +
			`{answer="Deny",audit="false",call="RestorePod",reason="REVIEW_UNAVAILABLE",validator="review"} 1`,
		`pullgate_admission_seconds_count{validator="review"} 1`,
		`pullgate_admission_failed_open_total{validator="review"} 1`, "pullgate_admission_unjudged_fields 2",
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
			Labels: mapping, Annotations: mapping, ReviewAnnotations: mapping, HostNetwork: flag, HostPID: flag, HostIPC: flag,
			ShareProcessNamespace: flag, FSGroup: number, SupplementalGroups: admission.Set([]int64{n}),
			Groups: admission.Set([]int64{n}), TerminationGracePeriodSeconds: number, ActiveDeadlineSeconds: number,
			RestartPolicy: text, DNSPolicy: text, NodeSelector: mapping, AutomountServiceAccountToken: flag,
		}
		volume := admission.Volume{Type: text, HostPath: text, HostPathType: text}
		return pod, &admission.Container{
			Name: "main", Image: text, ImagePullPolicy: text, Privileged: flag, ReadOnlyRootFilesystem: flag,
			AllowPrivilegeEscalation: flag,
			RunAsNonRoot:             flag, RunAsUser: number, RunAsGroup: number, CapabilitiesAdd: admission.Set([]string{s}),
			CapabilitiesDrop: admission.Set([]string{s}),
			SELinux:          admission.Set(admission.SELinux{Type: s}),
			Mounts: admission.Set(
				[]admission.Mount{{Volume: volume, Path: "/m", ReadOnly: flag, Propagation: text, Image: text}}),
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

func TestGaugesGoBothWays(t *testing.T) {
	m := newMetrics()
	m.UpstreamUp(false)
	m.StoreDistrusted(false)
	const want = `# HELP pullgate_upstream_up 1 while the runtime is connected, else 0.
# TYPE pullgate_upstream_up gauge
pullgate_upstream_up 0
`
	if err := testutil.GatherAndCompare(m.Registry(), strings.NewReader(want), "pullgate_upstream_up"); err != nil {
		t.Error(err)
	}
	if all, err := testutil.GatherAndCount(m.Registry(), "pullgate_store_distrusted"); err != nil || all != 1 {
		t.Errorf("pullgate_store_distrusted has %d series, %v; want 1", all, err)
	}
}
