// Package podsecurity_test compares the presets of internal/policies/restriction with the implementation of the Pod
// Security Standards in Kubernetes.
package podsecurity_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const pods = 10_000

// notExpressible are the checks of the standards about fields that a PodRestriction does not have.
var notExpressible = map[policy.CheckID]string{
	"appArmorProfile":            "securityContext.appArmorProfile is not in the API, its old annotation is restrictable",
	"hostPorts":                  "ports are not in the API",
	"hostProbesAndHostLifecycle": "probes and lifecycle handlers are not in the API",
	"procMount":                  "securityContext.procMount is not in the API",
	"procMount_restricted":       "securityContext.procMount is not in the API",
	"seccompProfile_baseline":    "securityContext.seccompProfile is not in the API, its old annotation is restrictable",
	"seccompProfile_restricted":  "securityContext.seccompProfile is not in the API",
	"sysctls":                    "securityContext.sysctls is not in the API",
	"windowsHostProcess":         "windowsOptions is not in the API",
}

// A difference is a field in which the answers differ on purpose. remove changes a pod so that they do not.
type difference struct {
	field, reason string
	levels        []string
	remove        func(spec *corev1.PodSpec)
}

// overridden is the difference in a field of the pod which every container overrides.
func overridden(field string, levels []string, sets func(*corev1.SecurityContext) bool,
	remove func(*corev1.PodSecurityContext),
) difference {
	const reason = "a value of the pod that every container overrides has no effect, and is not judged"
	return difference{"spec.securityContext." + field, reason, levels, func(s *corev1.PodSpec) {
		for c := range containers(s) {
			if c.SecurityContext == nil || !sets(c.SecurityContext) {
				return
			}
		}
		if s.SecurityContext != nil {
			remove(s.SecurityContext)
		}
	}}
}

var differences = []difference{
	overridden("runAsUser", []string{"restricted"},
		func(c *corev1.SecurityContext) bool { return c.RunAsUser != nil },
		func(p *corev1.PodSecurityContext) { p.RunAsUser = nil }),
	overridden("runAsNonRoot", []string{"restricted"},
		func(c *corev1.SecurityContext) bool { return c.RunAsNonRoot != nil },
		func(p *corev1.PodSecurityContext) { p.RunAsNonRoot = nil }),
	overridden("seLinuxOptions", []string{"baseline", "restricted"},
		func(c *corev1.SecurityContext) bool { return c.SELinuxOptions != nil },
		func(p *corev1.PodSecurityContext) { p.SELinuxOptions = nil }),
	{
		"capabilities.add", "runtimes read a name without regard to case, and some without the prefix CAP_",
		[]string{"baseline", "restricted"},
		func(s *corev1.PodSpec) {
			for c := range containers(s) {
				all := capabilities(c).Add
				for i, name := range all {
					all[i] = corev1.Capability(strings.TrimPrefix(strings.ToUpper(string(name)), "CAP_"))
				}
			}
		},
	},
	{
		"capabilities.drop", "runtimes read ALL without regard to case",
		[]string{"restricted"},
		func(s *corev1.PodSpec) {
			for c := range containers(s) {
				all := capabilities(c).Drop
				for i, name := range all {
					all[i] = corev1.Capability(strings.ToUpper(string(name)))
				}
			}
		},
	},
	{
		"spec.hostUsers", "the API has no relations between fields: root is denied in a user namespace too",
		[]string{"restricted"},
		func(s *corev1.PodSpec) { s.HostUsers = nil },
	},
	{
		"spec.os", "the API has no relations between fields: a pod for Windows needs its own policy",
		[]string{"restricted"},
		func(s *corev1.PodSpec) { s.OS = nil },
	},
}

// Shows: 003-42
func TestPresetsAgreeWithPodSecurity(t *testing.T) {
	for _, level := range []string{"baseline", "restricted"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			preset := testkit.Value(restriction.Preset(level))(t)
			set := testkit.Value(restriction.Load([]restriction.File{{Name: level, Data: preset}}))(t)
			checks := checksOf(level)
			admitted := 0
			seen := map[string]int{}
			for range pods {
				seed := rand.Uint64()
				pod := generate(seed)
				ours, theirs := admits(set, pod), passes(checks, pod)
				if ours != theirs {
					note(seen, level, pod)
				}
				same := pod.DeepCopy()
				for _, d := range differences {
					d.remove(&same.Spec)
				}
				ours, theirs = admits(set, same), passes(checks, same)
				if ours != theirs {
					text, err := yaml.Marshal(same.Spec)
					t.Fatalf("seed %d: pullgate admits: %v, Pod Security admits: %v, %v\n%s", seed, ours, theirs, err, text)
				}
				if ours {
					admitted++
				}
			}
			if admitted < pods/10 || admitted > pods*9/10 {
				t.Errorf("%d of %d pods are admitted; the comparison needs enough of both answers", admitted, pods)
			}
			for _, d := range differences {
				if slices.Contains(d.levels, level) && seen[d.field] == 0 {
					t.Errorf("no pod differs in %s; remove it from the list", d.field)
				}
			}
			t.Logf("%d of %d pods are admitted; pods with differences: %v", admitted, pods, seen)
		})
	}
}

func note(seen map[string]int, level string, pod *corev1.Pod) {
	for _, d := range differences {
		changed := pod.DeepCopy()
		d.remove(&changed.Spec)
		before, _ := yaml.Marshal(pod)
		after, _ := yaml.Marshal(changed)
		if slices.Contains(d.levels, level) && string(before) != string(after) {
			seen[d.field]++
		}
	}
}

func admits(set *restriction.Set, pod *corev1.Pod) bool {
	view, all := podfile.ViewOf(pod)
	return set.Judge(&view, all, restriction.Options{From: restriction.Admission}).Admitted
}

// checksOf returns the newest version of each check of a level that can be expressed.
func checksOf(level string) map[policy.CheckID]policy.CheckPodFn {
	checks := map[policy.CheckID]policy.CheckPodFn{}
	var overridden []policy.CheckID
	for _, c := range policy.DefaultChecks() {
		if c.Level == api.LevelRestricted && level != string(api.LevelRestricted) || notExpressible[c.ID] != "" {
			continue
		}
		newest := c.Versions[len(c.Versions)-1]
		checks[c.ID] = newest.CheckPod
		overridden = append(overridden, newest.OverrideCheckIDs...)
	}
	for _, id := range overridden {
		delete(checks, id)
	}
	return checks
}

func passes(checks map[policy.CheckID]policy.CheckPodFn, pod *corev1.Pod) bool {
	for _, check := range checks {
		if !check(&pod.ObjectMeta, &pod.Spec).Allowed {
			return false
		}
	}
	return true
}

func containers(s *corev1.PodSpec) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range s.InitContainers {
			if !yield(&s.InitContainers[i]) {
				return
			}
		}
		for i := range s.Containers {
			if !yield(&s.Containers[i]) {
				return
			}
		}
		for i := range s.EphemeralContainers {
			if !yield((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// capabilities returns those of a container, empty ones if it has none.
func capabilities(c *corev1.Container) corev1.Capabilities {
	if c.SecurityContext == nil || c.SecurityContext.Capabilities == nil {
		return corev1.Capabilities{}
	}
	return *c.SecurityContext.Capabilities
}
