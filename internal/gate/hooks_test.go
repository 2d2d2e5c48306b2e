package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A sentPod is a Pod as a hook gets it.
type sentPod struct {
	Metadata struct{ Annotations, Labels map[string]string }
	Spec     struct {
		ServiceAccountName string
		InitContainers     []struct{ Image string }
	}
}

// hooked returns a chain with two hooks, which deny by the annotation devices: a is denied by the first, both by both.
// asked has the latest pod.
func hooked(t *testing.T, failurePolicy, stages string) (
	a admissionRules, asked *atomic.Pointer[sentPod], fails *error,
) {
	t.Helper()
	text := "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n" +
		"metadata: {name: f, annotations: {policy.pullgate.dev/stages: '" + stages + "'}}\nwebhooks:\n"
	for _, name := range []string{"a", "b"} {
		text += fmt.Sprintf("- {name: %s, admissionReviewVersions: [v1], clientConfig: {url: 'https://h/'}, "+
			"sideEffects: None, failurePolicy: %s, rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], "+
			"resources: [pods]}]}\n", name, failurePolicy)
	}
	hooks, _, err := policyfiles.LoadHooks([]policyfiles.File{{Name: "f.yaml", Data: []byte(text)}})
	testkit.Must(t, err)
	asked, fails = &atomic.Pointer[sentPod]{}, new(error)
	a.PolicyHash = "hooks"
	a.Validators = []admission.Named{{Name: admission.HookValidator, Validator: policyclient.NewHookValidator(hooks,
		policyclient.HookOptions{Admit: func(_ context.Context, r policyclient.AdmitRequest) (
			all []policyfiles.HookAnswer, _ error,
		) {
			pod := &sentPod{}
			if err := json.Unmarshal(r.Pod, pod); err != nil {
				return nil, err
			}
			asked.Store(pod)
			devices := pod.Metadata.Annotations["devices"]
			all = []policyfiles.HookAnswer{{Hook: "f/a", Allowed: devices != "a" && devices != "both", Message: "a"}}
			if all[0].Allowed { // as a denial that cancels the others
				all = append(all, policyfiles.HookAnswer{Hook: "f/b", Allowed: devices != "both", Message: "b"})
			}
			return all, *fails
		}})}}
	return a, asked, fails
}

type admissionRules = admission.Rules

// objectOf returns the Pod of the API server with annotations and a spec.
func objectOf(t *testing.T, annotations map[string]string, spec string) any {
	t.Helper()
	text := testkit.Value(json.Marshal(annotations))(t)
	pods := testkit.Value(podfile.Read(fmt.Appendf(nil, "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: team, "+
		"annotations: %s}\nspec: %s\n", text, spec)))(t)
	pod, _ := pods[0].AtAdmission()
	return pod.Object
}

// The pod source has the pod as it was edited, so it must not hide what the sandbox had before.
func TestHooksJudgeEditedPods(t *testing.T) {
	for failurePolicy, stages := range map[string]string{
		"Fail": "CreateContainer", "Ignore": "CreateContainer,RunPodSandbox",
	} {
		rules, _, fails := hooked(t, failurePolicy, stages)
		a, views := chainOf(rules), apiViews{}
		a.Views = views
		p := newProxyWithPolicies(t, exact(), a)
		x := p.PodFrom("team", "api")
		edit := func(devices string) {
			x.Config.Annotations["devices"] = devices
			annotations := admission.Without(x.Config.Annotations, admission.KubeletAnnotation)
			views[x.UID] = withInit(admission.Pod{
				Object:      objectOf(t, annotations, "{containers: [{name: init, image: '"+anyImage+"'}]}"),
				Annotations: admission.Set(annotations),
			})
		}
		edit("")
		p.must(p.Sandbox(t.Context(), x))
		config := ordinary()
		config.Metadata.Name = "init"
		p.run(x, config)
		edit("a")
		wantDenied(t, "an edited annotation", p.Sandbox(t.Context(), x), admission.HookDenied, "hook f/a denied it: a")
		edit("c")
		*fails = policyclient.ErrLost
		wantDenied(t, "an edited annotation, and no answer", p.Sandbox(t.Context(), x), admission.HookUnavailable, "f/a")
		*fails = nil
		p.must(p.Sandbox(t.Context(), x))
		a.Chain.Set(admission.Rules{})
		edit("a") // while there is no hook
		p.must(p.Sandbox(t.Context(), x))
		a.Chain.Set(rules)
		edit("a")
		p.must(p.Sandbox(t.Context(), x)) // nothing was edited
		// A denial that was there before is no reason to admit: it can be for something that was edited as well.
		x.Config.Annotations["harmless"] = "x"
		wantDenied(t, "denied as before", p.Sandbox(t.Context(), x), admission.HookDenied, "hook f/a denied it: a")
	}
}

// A user of a pod must not be able to make its Pod unknown: with a pod source it is sent whole, or the pod is denied,
// with Ignore, too.
func TestHooksGetTheWholePod(t *testing.T) {
	rules, asked, _ := hooked(t, "Ignore", "CreateContainer")
	a, views := chainOf(rules), apiViews{}
	a.Views = views
	p := newProxyWithPolicies(t, restoring(), a)
	x := p.PodFrom("team", "api")
	config := ordinary()
	config.Metadata.Name = "init"
	pod := objectOf(t, nil, "{serviceAccountName: builder, initContainers: [{name: init, image: 'before:1'}], "+
		"containers: [{name: c, image: a}]}")
	whole := func(change func(*apiView)) apiView {
		v := withInit(admission.Pod{Object: pod})
		change(&v)
		return v
	}
	for want, v := range map[string]apiView{
		"the Pod of the API server is not known yet": {},
		"too large":                whole(func(v *apiView) { v.pod.Object = errors.New("too large") }),
		"does not have container":  whole(func(v *apiView) { v.container.Name = "other" }),
		"differ about hostNetwork": whole(func(v *apiView) { v.pod.HostNetwork = admission.Set(true) }),
	} {
		if views[x.UID] = v; want == "the Pod of the API server is not known yet" {
			delete(views, x.UID)
		}
		asked.Store(nil)
		denies(t, want, admission.HookUnavailable, want)(p.create(x, config))
		if asked.Load() != nil {
			t.Errorf("%s: a hook was asked about %+v", want, asked.Load())
		}
	}
	views[x.UID] = whole(func(v *apiView) {
		v.pod.Labels, v.container.Image = admission.Set(map[string]string{"l": "edited"}), admission.Set("before:1")
	})
	p.done(p.create(x, config))
	if got := asked.Load(); got == nil || got.Metadata.Annotations[podfile.UnknownAnnotation] != "" ||
		got.Spec.ServiceAccountName != "builder" || got.Spec.InitContainers[0].Image != anyImage ||
		got.Metadata.Labels["l"] != "" {
		t.Errorf("after an edit, the pod is %+v; want it whole, with what runs", got)
	}
	// The image of a checkpoint is not known.
	p.runtime.SetImages(criproxytest.Image{ID: id2, Names: []string{anyImage}, Restores: id3},
		criproxytest.Image{ID: id3, Names: []string{"repo.test/other:1"}})
	denies(t, "a restored container", admission.HookUnavailable, "which image")(p.create(x, config))
	// A static pod has no other source than the kubelet.
	p.runtime.SetImages(img(id2, anyImage))
	static := p.PodFrom("team", "file")
	forged := map[string]string{
		podfile.UnknownAnnotation: "", podfile.StageAnnotation: "x", podfile.ContainerAnnotation: "x",
	}
	maps.Copy(static.Config.Annotations, forged)
	static.Config.Annotations["policy.pullgate.dev/mode"] = "Audit"
	static.Config.Annotations["policy.pullgate.dev/admitted"] = "true"
	p.done(p.create(static, ordinary()))
	got := asked.Load()
	for key, value := range forged {
		if got.Metadata.Annotations[key] == value {
			t.Errorf("%s of a static pod is %q, as its user wrote it", key, value)
		}
	}
	static.Config.Annotations["devices"] = "both"
	denies(t, "a static pod that demands the mode Audit", admission.HookDenied)(p.create(static, ordinary()))
}

// An explanation is no start of a pod, so hooks must have no side effects.
func TestExplanationsAreDryRuns(t *testing.T) {
	s := &spy{}
	p := newProxyWithPolicies(t, exact(), nil)
	x := p.Pod("team")
	p.gate.SetAdmission(chainOf(admission.Rules{Validators: []admission.Named{{Name: "spy", Validator: s}}}))
	who := tracker.Pod{UID: x.UID, Namespace: "team"}
	p.gate.ExplainPolicies(t.Context(), who, []string{"c"}, admission.Image{}, "", true)
	if len(s.asked) == 0 || slices.ContainsFunc(s.asked, func(s admission.Subject) bool { return !s.DryRun }) {
		t.Errorf("asked %+v; want dry runs", s.asked)
	}
	denies(t, "the spy", admission.RestrictionViolated)(p.create(x, ordinary()))
	if s.asked[len(s.asked)-1].DryRun {
		t.Error("a container that is created is a dry run")
	}
}
