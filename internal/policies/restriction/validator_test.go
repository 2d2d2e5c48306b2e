package restriction_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// chainOf returns a chain with policies, given by name, extra metadata or binding, and spec of the pod.
func chainOf(tb testing.TB, options restriction.Options, policies ...[3]string) *admission.Chain {
	tb.Helper()
	var list []restriction.File
	for _, p := range policies {
		text := fmt.Sprintf("apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: %s%s\nspec: "+
			"{spec: %s}\n", p[0], p[1], p[2])
		list = append(list, restriction.File{Name: p[0] + ".yaml", Data: []byte(text)})
	}
	set, err := restriction.Load(list)
	must(tb, err)
	return admission.New(admission.Rules{Validators: []admission.Named{{
		Name:      admission.RestrictionValidator,
		Validator: restriction.NewValidator(set, options),
	}}}, nil)
}

const (
	plain  = "}"
	audit  = `, annotations: {policy.pullgate.dev/mode: Audit}}`
	accept = "}\nbinding: {mode: Accept}"

	noHostNetwork = "{securityContext: {hostNetwork: {require: false}}}"
	notPrivileged = "{containers: [{securityContext: {privileged: {require: false}}}]}"
	never         = "{containers: [{imagePullPolicy: {whitelist: [Always]}}]}"
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
	node := options{From: atNode}
	for _, c := range []struct {
		name     string
		options  restriction.Options
		policies [][3]string
		subject  admission.Subject
		want     admission.Answer
		findings []string // policy, answer, reason and audit
	}{
		{"no policy", node, nil, subject(yes, yes), admission.Admit, []string{" Admit  false"}},
		{"satisfied", node, [][3]string{{"a", plain, noHostNetwork}}, subject(no, yes), admission.Admit, []string{" Admit  " +
			"false"}},
		{"violated", node, [][3]string{{"a", plain, noHostNetwork}}, subject(yes, no), admission.Deny, []string{"a Deny " +
			"RESTRICTION_VIOLATED false"}},
		{"unknown here", node, [][3]string{{"a", plain, notPrivileged}}, subject(no, unknown), admission.Deny, []string{"a " +
			"Deny FIELD_UNKNOWN false"}},
		{"audit", node, [][3]string{{"a", audit, noHostNetwork}}, subject(yes, no), admission.Admit, []string{" Admit  " +
			"false", "a Deny RESTRICTION_VIOLATED true"}},
		{
			"accepted", node,
			[][3]string{{"a", plain, noHostNetwork}, {"b", accept, notPrivileged}},
			subject(yes, no),
			admission.Admit,
			[]string{"b Admit  false"},
		},
		{
			"two violated", node,
			[][3]string{{"a", plain, noHostNetwork}, {"b", plain, notPrivileged}},
			subject(yes, yes),
			admission.Deny,
			[]string{"a Deny RESTRICTION_VIOLATED false", "b Deny RESTRICTION_VIOLATED false"},
		},
		{"sandbox", node, [][3]string{{"a", plain, notPrivileged}}, sandbox, admission.Admit, []string{" Admit  false"}},
		{"no container", node, [][3]string{{"a", plain, notPrivileged}}, noContainer, admission.Deny, []string{" Deny " +
			"VALIDATOR_FAILED false"}},
		{"no stage", node, [][3]string{{"a", plain, notPrivileged}}, noStage, admission.Deny, []string{" Deny " +
			"VALIDATOR_FAILED false"}},
		{"never carried", node, [][3]string{{"a", plain, never}}, subject(no, no), admission.Admit, []string{" Admit  " +
			"false"}},
		{
			"refused",
			options{From: atNode, Refuse: true},
			[][3]string{{"a", plain, never}},
			subject(no, no),
			admission.Deny,
			[]string{"a Deny FIELD_UNKNOWN false"},
		},
		{"at the API", node, [][3]string{{"a", plain, never}}, review, admission.Deny, []string{"a Deny FIELD_UNKNOWN " +
			"false"}},
		{
			"carried by a Pod",
			options{From: withPods},
			[][3]string{{"a", plain, never}},
			subject(no, no),
			admission.Deny,
			[]string{"a Deny FIELD_UNKNOWN false"},
		},
		{
			"of a static Pod",
			options{From: withPods},
			[][3]string{{"a", plain, never}},
			static, admission.Admit,
			[]string{" Admit  false"},
		},
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
		if d.Answer != c.want || !slices.Equal(got, c.findings) {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, d.Answer, got, c.want, c.findings)
		}
	}
}

// The stages that are reviews judge all containers at once. A template leaves the name to its pods, an image review all
// but images.
func TestReviews(t *testing.T) {
	c := chainOf(t, options{From: atNode},
		[3]string{"a", plain, "{containers: [{image: [{registry: {whitelist: [a.test]}}]}]}, metadata: {name: {whitelist: " +
			"[web]}}"}, [3]string{"b", plain, noHostNetwork})
	image := func(name string) admission.Container {
		return admission.Container{
			Name: name, Kind: admission.Set(admission.KindContainer),
			Image: admission.Set(name + ".test/x"),
		}
	}
	for name, tc := range map[string]struct {
		stage       admission.Stage
		pod         string
		hostNetwork admission.Value[bool]
		images      []string
		want        bool
	}{
		"pod":                    {admission.StageAdmission, "web", admission.Set(false), []string{"a", "a"}, true},
		"second container":       {admission.StageAdmission, "web", admission.Set(false), []string{"a", "b"}, false},
		"template":               {admission.StageTemplate, "", admission.Set(false), []string{"a"}, true},
		"template, unknown":      {admission.StageTemplate, "", admission.Value[bool]{}, []string{"a"}, false},
		"image review":           {admission.StageImageReview, "", admission.Value[bool]{}, []string{"a"}, true},
		"image review, violated": {admission.StageImageReview, "", admission.Value[bool]{}, []string{"b"}, false},
	} {
		s := admission.Subject{Stage: tc.stage, Pod: admission.Pod{
			Namespace: "team", Name: tc.pod,
			HostNetwork: tc.hostNetwork,
		}}
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
		mounts[i] = admission.Mount{
			Volume: admission.Volume{
				Type:     admission.Set(admission.TypeHostPath),
				HostPath: admission.Set(fmt.Sprintf("/data/%d", i)),
			}, Path: fmt.Sprint(i),
			ReadOnly: admission.Set(false), Propagation: admission.Set(admission.PropagationNone),
		}
	}
	s := subject(admission.Set(false), admission.Set(false))
	s.Container.Mounts = admission.Set(mounts)
	noHostPath := "{volumes: [{volumeType: {blacklist: [hostPath]}}]}"
	d := chainOf(t, options{From: atNode}, [3]string{"a", audit, noHostPath},
		[3]string{"b", plain, noHostPath}).Evaluate(t.Context(), s)
	perPolicy := map[string]int{}
	for _, f := range d.Findings {
		perPolicy[f.Policy]++
	}
	if d.Admitted() || perPolicy["a"] > 10 || perPolicy["b"] > 10 || perPolicy["b"] == 0 {
		t.Errorf("%v with findings %v; want a denial, and at most 10 for each policy", d.Answer, perPolicy)
	}
}
