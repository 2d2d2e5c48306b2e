package gate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// answer describes an explanation by its answer and by the reasons of its findings.
func answer(e admission.Explanation) string {
	s := "deny"
	switch {
	case e.Exemption != "":
		s = string(e.Exemption)
	case e.Admitted():
		s = "admit"
	case !e.Certain:
		s = "unknown"
	}
	var reasons []string
	for _, f := range e.Findings {
		if f.Reason != "" {
			reasons = append(reasons, string(f.Reason))
		}
	}
	slices.Sort(reasons)
	return strings.Join(append([]string{s}, slices.Compact(reasons)...), " ")
}

func TestExplainPolicies(t *testing.T) {
	const violated, unknown = " RESTRICTION_VIOLATED", " FIELD_UNKNOWN"
	const privilegedAccepted = "accept {spec: {containers: [{securityContext: {privileged: {require: true}, runAsUser: " +
		"{ranges: [{min: 1}]}}}]}}"
	main := admission.Container{
		Name: "main", Kind: admission.Set(admission.KindContainer), Image: admission.Set(anyImage),
		Privileged: admission.Absent[bool](), ReadOnlyRootFilesystem: admission.Absent[bool](),
		RunAsUser: admission.Absent[int64](), RunAsNonRoot: admission.Absent[bool](),
		Mounts: admission.Set([]admission.Mount{}),
	}
	pod := admission.Pod{
		HostNetwork: admission.Set(false), ShareProcessNamespace: admission.Absent[bool](),
		AutomountServiceAccountToken: admission.Absent[bool](),
	}
	with := func(change func(c *admission.Container)) admission.Container {
		c := main
		change(&c)
		return c
	}
	isPrivileged := with(func(c *admission.Container) { c.Privileged = admission.Set(true) })
	for name, tc := range map[string]struct {
		policies  string // one in a line
		pod       admission.Pod
		container admission.Container
		sandbox   string
		want      string
	}{
		"no restriction of the pod": {notPrivileged, pod, main, "admit", "admit"},
		"a value that is denied":    {notPrivileged, pod, isPrivileged, "admit", "deny" + violated},
		"of the sandbox": {
			noHostNetwork, admission.Pod{HostNetwork: admission.Set(true)}, main, "deny" + violated, "deny" + violated,
		},
		"the default is denied": {
			"{spec: {containers: [{securityContext: {readOnlyRootFilesystem: {require: true}}}]}}",
			pod, main, "admit", "deny" + violated,
		},
		"the token is not mounted": {
			"{spec: {automountServiceAccountToken: {require: true}}}", pod, main, "admit", "deny" + violated,
		},
		"the user of the image": {notRoot, pod, main, "admit", "unknown" + unknown},
		"not root by the image": {
			"{spec: {containers: [{securityContext: {runAsNonRoot: {require: true}}}]}}", pod, main,
			"admit", "unknown" + unknown,
		},
		"a user of the pod": {
			notRoot, pod,
			with(func(c *admission.Container) { c.RunAsUser = admission.Set[int64](0) }), "admit", "deny" + violated,
		},
		"denied and unknown": {notRoot + "\n" + notPrivileged, pod, isPrivileged, "admit", "deny" + unknown + violated},
		"can be accepted":    {privilegedAccepted + "\n" + notPrivileged, pod, isPrivileged, "admit", "unknown" + violated},
		"cannot be accepted": {privilegedAccepted + "\n" + notPrivileged, pod, with(func(c *admission.Container) {
			c.Privileged, c.RunAsUser = admission.Set(true), admission.Set[int64](0)
		}), "admit", "deny" + violated},
		"an image": {ownRegistry, pod, main, "admit", "admit"},
		"audited":  {audited + notPrivileged, pod, isPrivileged, "admit", "admit" + violated},
		"mounts": {
			noHostPath, pod, with(func(c *admission.Container) { c.Mounts = admission.Value[[]admission.Mount]{} }),
			"admit", "unknown" + unknown,
		},
		"not bound": {"elsewhere " + notPrivileged, pod, isPrivileged, "admit", "admit"},
		"propagation": {
			"{spec: {volumes: [{mount: {mountPropagation: {whitelist: [HostToContainer]}}}]}}", pod,
			with(func(c *admission.Container) {
				c.Mounts = admission.Set([]admission.Mount{{Path: "/a", Propagation: admission.Absent[string]()}})
			}), "admit", "deny" + violated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := policies(t)
			a.Chain.Set(admission.Rules{Validators: []admission.Named{{
				Name: admission.RestrictionValidator, Validator: restriction.NewValidator(setOf(t,
					strings.Split(tc.policies, "\n")...), restriction.Options{From: restriction.NodeWithPodSource}),
			}}})
			a.Views = apiViews{"uid": {tc.pod, tc.container}}
			p := newProxyWithPolicies(t, exact(), a)
			explain := func(uid string) []admission.Explanation {
				who := tracker.Pod{UID: uid, Namespace: "team", Name: "new"}
				return p.gate.ExplainPolicies(t.Context(), who, []string{"main"}, admission.Image{ID: id2}, anyImage, false)
			}
			for _, e := range explain("uid") { // restarts are not known yet
				if !p.gate.Synced() && e.Certain != e.Admitted() {
					t.Errorf("before the first sync: %+v; want no certain denial", e)
				}
			}
			p.must(p.gate.Sync(t.Context()))
			for _, e := range slices.Concat(explain(""), explain("other")) {
				if strings.HasPrefix(answer(e), "deny") {
					t.Errorf("a pod that the source does not have: %+v; want no certain denial", e)
				}
			}
			all := explain("uid")
			if len(all) != 2 || all[0].Stage != admission.StageSandbox || all[0].Container != "" ||
				all[1].Stage != admission.StageContainer || all[1].Container != "main" {
				t.Fatalf("explained %+v; want the sandbox and the container", all)
			}
			if got := [2]string{answer(all[0]), answer(all[1])}; got != [2]string{tc.sandbox, tc.want} {
				t.Errorf("answers %q; want %q: %+v", got, [2]string{tc.sandbox, tc.want}, all)
			}
		})
	}
}

// setOf returns a set with a policy for each spec. A spec that begins with audited is in audit mode, one with "accept "
// an Accept policy, and one with "elsewhere " is bound to another namespace.
func setOf(tb testing.TB, specs ...string) *restriction.Set {
	tb.Helper()
	var files []restriction.File
	for i, spec := range specs {
		kind, rest, _ := strings.Cut(spec, " ")
		extra := map[string][2]string{
			"audit": {", annotations: {policy.pullgate.dev/mode: Audit}"}, "accept": {"", "binding: {mode: Accept}\n"},
			"elsewhere": {"", "binding: {namespaces: [elsewhere]}\n"},
		}
		set, ok := extra[kind]
		if ok {
			spec = rest
		}
		name := fmt.Sprintf("policy-%d", i)
		files = append(files, restriction.File{Name: name + ".yaml", Data: fmt.Appendf(nil,
			"apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: %s%s}\n%sspec: %s\n",
			name, set[0], set[1], spec)})
	}
	set, err := restriction.Load(files)
	testkit.Must(tb, err)
	return set
}

// Exemptions are those of the gate, and the question has no effect.
func TestExplainPoliciesHasNoEffect(t *testing.T) {
	k, c := kept(exact())
	log, lines := journaled(4)
	c.Log = log
	a := policies(t)
	p := newProxyWithPolicies(t, c, a)
	x := p.Pod("team")
	p.run(x, privileged())
	a.Chain.Set(rulesOf(t, noHostNetwork, notPrivileged))
	a.Views = apiViews{x.UID: withInit(admission.Pod{HostNetwork: admission.Set(true)})}
	running, fresh := tracker.Pod{UID: x.UID, Namespace: "team", Name: x.UID},
		tracker.Pod{UID: "fresh", Namespace: "team", Name: "fresh"}
	ask := func(who tracker.Pod, container string) (all []string) {
		for _, e := range p.gate.ExplainPolicies(t.Context(), who, []string{container}, admission.Image{ID: id2}, anyImage,
			false) {
			all = append(all, answer(e))
		}
		return all
	}
	before := len(lines(""))
	k.since()
	counted := p.counts.get()
	const violated = " RESTRICTION_VIOLATED" // which is shown, and stops no restart
	for range 2 {
		for name, tc := range map[string]struct {
			who       tracker.Pod
			container string
			want      []string
		}{
			"a container that was started": {
				running, "main", []string{"started_before" + violated, "started_before" + violated},
			},
			"another one of the pod": {
				running, "other", []string{"started_before" + violated, "deny FIELD_UNKNOWN RESTRICTION_VIOLATED"},
			},
			"a new pod": {fresh, "main", []string{"unknown FIELD_UNKNOWN", "unknown FIELD_UNKNOWN"}},
			"a static pod": {
				tracker.Pod{UID: x.UID, Namespace: "team", Static: true},
				"main",
				[]string{"exempt_static_pod", "exempt_static_pod"},
			},
		} {
			testkit.Equal(t, name, ask(tc.who, tc.container), tc.want)
		}
	}
	if d := cmp.Diff(counted, p.counts.get()); d != "" {
		t.Errorf("questions are counted (-before +after):\n%s", d)
	}
	if after := lines(""); len(after) != before || len(k.since()) != 0 {
		t.Errorf("questions are logged: %q", after[before:])
	}
	config := privileged()
	config.Metadata = &runtimeapi.ContainerMetadata{Name: "other"}
	denies(t, "a container that was asked about", admission.RestrictionViolated)(p.create(x, config))
	p.gate.SetAdmission(nil)
	if all := p.gate.ExplainPolicies(t.Context(), running, []string{"main"}, admission.Image{}, anyImage,
		false); all != nil {
		t.Errorf("without policies: %+v; want nothing", all)
	}
}
