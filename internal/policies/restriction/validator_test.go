package restriction_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// chainOf returns a chain with policies, given by name, and what follows the name: the rest of the file.
func chainOf(tb testing.TB, options restriction.Options, policies ...string) *admission.Chain {
	tb.Helper()
	var list []restriction.File
	for i, p := range policies {
		name := string(rune('a' + i))
		text := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: " + name + p
		list = append(list, restriction.File{Name: name + ".yaml", Data: []byte(text)})
	}
	v := restriction.NewValidator(load(tb, list...), options)
	return admission.New(admission.Rules{Validators: []admission.Named{{Name: "restriction", Validator: v}}}, nil)
}

const (
	plain  = "}\nspec: {spec: "
	audit  = ", annotations: {policy.pullgate.dev/mode: Audit}" + plain
	accept = "}\nbinding: {mode: Accept}\nspec: {spec: "

	noHostNetwork = "{securityContext: {hostNetwork: {require: false}}}}\n"
	notPrivileged = "{containers: [{securityContext: {privileged: {require: false}}}]}}\n"
	never         = "{containers: [{imagePullPolicy: {whitelist: [Always]}}]}}\n"
)

func subject(hostNetwork, privileged admission.Value[bool]) admission.Subject {
	return admission.Subject{
		Pod:       admission.Pod{UID: "uid", Namespace: "team", Name: "app", HostNetwork: hostNetwork},
		Container: &admission.Container{Name: "main", Kind: admission.Set(admission.KindContainer), Privileged: privileged},
	}
}

func TestValidate(t *testing.T) {
	yes, no, unknown := admission.Set(true), admission.Set(false), admission.Value[bool]{}
	sandbox := subject(no, unknown)
	sandbox.Stage, sandbox.Container = admission.StageSandbox, nil
	noContainer, noStage := sandbox, sandbox
	noContainer.Stage, noStage.Stage = admission.StageContainer, 9
	review, static := subject(no, no), subject(no, no)
	static.Pod.Static = true
	review.Stage, review.Containers, review.Container = admission.StageAdmission, list{*review.Container},
		nil
	node, withPods, refuse := options{From: atNode}, options{From: withPods}, options{From: atNode, Refuse: true}
	type policies = []string
	host, unprivileged, pulls := plain+noHostNetwork, plain+notPrivileged, plain+never
	const admits, failed = " Admit  false", " Deny VALIDATOR_FAILED false"
	const violated, unknownField = "a Deny RESTRICTION_VIOLATED false", "a Deny FIELD_UNKNOWN false"
	reported := policies{admits, "a Deny RESTRICTION_VIOLATED true"}
	both := policies{violated, "b Deny RESTRICTION_VIOLATED false"}
	for _, c := range []struct {
		name     string
		options  restriction.Options
		policies policies
		subject  admission.Subject
		findings policies // policy, answer, reason and audit
	}{
		{"no policy", node, nil, subject(yes, yes), policies{admits}},
		{"satisfied", node, policies{host}, subject(no, yes), policies{admits}},
		{"violated", node, policies{host}, subject(yes, no), policies{violated}},
		{"unknown here", node, policies{unprivileged}, subject(no, unknown), policies{unknownField}},
		{"audit", node, policies{audit + noHostNetwork}, subject(yes, no), reported},
		{"accepted", node, policies{host, accept + notPrivileged}, subject(yes, no), policies{"b Admit  false"}},
		{"two violated", node, policies{host, unprivileged}, subject(yes, yes), both},
		{"sandbox", node, policies{unprivileged}, sandbox, policies{admits}},
		{"no container", node, policies{unprivileged}, noContainer, policies{failed}},
		{"no stage", node, policies{unprivileged}, noStage, policies{failed}},
		{"never carried", node, policies{pulls}, subject(no, no), policies{admits}},
		{"refused", refuse, policies{pulls}, subject(no, no), policies{unknownField}},
		{"at the API", node, policies{pulls}, review, policies{unknownField}},
		{"carried by a Pod", withPods, policies{pulls}, subject(no, no), policies{unknownField}},
		{"of a static Pod", withPods, policies{pulls}, static, policies{admits}},
	} {
		d := chainOf(t, c.options, c.policies...).Evaluate(t.Context(), c.subject)
		var got []string
		for _, f := range d.Findings {
			got = append(got, fmt.Sprintf("%s %v %s %v", f.Policy, f.Answer, f.Reason, f.Audit))
			if f.Reason != admission.ValidatorFailed && (f.Answer == admission.Deny) != (f.Rule != "" &&
				strings.Contains(f.Message, f.Rule) && strings.Contains(f.Message, f.Policy)) {
				t.Errorf("%s: finding %+v; want a message with policy and rule for a denial only", c.name, f)
			}
		}
		if d.Admitted() != strings.Contains(c.findings[0], " Admit ") || !slices.Equal(got, c.findings) {
			t.Errorf("%s: %v, %q; want %q", c.name, d.Answer, got, c.findings)
		}
	}
}

// The stages that are reviews judge all containers at once. A template leaves the name to its pods, an image review all
// but images.
func TestReviews(t *testing.T) {
	c := chainOf(t, options{From: atNode}, plain+"{containers: [{image: [{registry: {whitelist: [a.test]}}]}]}, "+
		"metadata: {name: {whitelist: [web]}}}\n", plain+noHostNetwork)
	image := func(name string) admission.Container {
		main := admission.Set(admission.KindContainer)
		return admission.Container{Name: name, Kind: main, Image: admission.Set(name + ".test/x")}
	}
	no, unknown := admission.Set(false), admission.Value[bool]{}
	for name, tc := range map[string]struct {
		stage       admission.Stage
		pod         string
		hostNetwork admission.Value[bool]
		images      []string
		want        bool
	}{
		"pod":                    {admission.StageAdmission, "web", no, []string{"a", "a"}, true},
		"second container":       {admission.StageAdmission, "web", no, []string{"a", "b"}, false},
		"template":               {admission.StageTemplate, "", no, []string{"a"}, true},
		"template, unknown":      {admission.StageTemplate, "", unknown, []string{"a"}, false},
		"image review":           {admission.StageImageReview, "", unknown, []string{"a"}, true},
		"image review, violated": {admission.StageImageReview, "", unknown, []string{"b"}, false},
	} {
		pod := admission.Pod{Namespace: "team", Name: tc.pod, HostNetwork: tc.hostNetwork}
		s := admission.Subject{Stage: tc.stage, Pod: pod}
		for _, name := range tc.images {
			s.Containers = append(s.Containers, image(name))
		}
		if d := c.Evaluate(t.Context(), s); d.Admitted() != tc.want {
			t.Errorf("%s: %+v; want admitted %v", name, d, tc.want)
		}
		other := s
		other.Stage = admission.StageSandbox
		if !c.Same(s, s) || c.Same(s, other) {
			t.Errorf("%s: Same with itself %v, at another stage %v", name, c.Same(s, s), c.Same(s, other))
		}
	}
}

func TestViolationsOfAPolicyAreBounded(t *testing.T) {
	mounts := make([]admission.Mount, 5000)
	for i := range mounts {
		mounts[i] = hostPath(fmt.Sprintf("/data/%d", i))
		mounts[i].Path = fmt.Sprint(i)
	}
	s := subject(admission.Set(false), admission.Set(false))
	s.Container.Mounts = admission.Set(mounts)
	const noHostPath = "{volumes: [{volumeType: {blacklist: [hostPath]}}]}}\n"
	d := chainOf(t, options{From: atNode}, audit+noHostPath, plain+noHostPath).Evaluate(t.Context(), s)
	perPolicy := map[string]int{}
	for _, f := range d.Findings {
		perPolicy[f.Policy]++
	}
	if d.Admitted() || perPolicy["a"] > 10 || perPolicy["b"] > 10 || perPolicy["b"] == 0 {
		t.Errorf("%v with findings %v; want a denial, and at most 10 for each policy", d.Answer, perPolicy)
	}
}
