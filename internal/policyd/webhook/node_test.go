package webhook_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/podfile"
	"github.com/pullgate/pullgate/internal/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policytest"
	"github.com/pullgate/pullgate/pkg/admission"
	"github.com/pullgate/pullgate/pkg/podview"
	"github.com/pullgate/pullgate/pkg/restriction"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// maybe returns a pointer to one of the values, or nil.
func maybe[T any](r *rand.Rand, from ...T) *T {
	if i := r.IntN(len(from) + 1); i < len(from) {
		return &from[i]
	}
	return nil
}

// randomPod returns a pod as admission webhooks see it.
func randomPod(r *rand.Rand) *corev1.Pod {
	s := corev1.PodSpec{
		HostNetwork: r.IntN(6) == 0, HostPID: r.IntN(6) == 0, NodeSelector: pick(r, nil, map[string]string{"disk": "ssd"}),
		AutomountServiceAccountToken: maybe(r, true, false), ActiveDeadlineSeconds: maybe[int64](r, 60), RestartPolicy: pick(r, corev1.RestartPolicyAlways, corev1.RestartPolicyNever),
		SecurityContext: &corev1.PodSecurityContext{RunAsUser: maybe[int64](r, 0, 1000), RunAsNonRoot: maybe(r, true), FSGroup: maybe[int64](r, 5), SupplementalGroups: pick(r, nil, []int64{5}, []int64{0, 7})},
		Volumes: []corev1.Volume{
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			{Name: "v", VolumeSource: pick(r,
				corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
				corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: pick(r, "/a", "/a/b", "/etc")}},
				corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})},
		},
	}
	container := func(name string) corev1.Container {
		c := corev1.Container{
			Name: name, Image: pick(r, "good.test/a:1", "good.test/a:1", "bad.test/b", "busybox"),
			SecurityContext: &corev1.SecurityContext{
				Privileged: maybe(r, true, false, false), RunAsUser: maybe[int64](r, 1, 1000), ReadOnlyRootFilesystem: maybe(r, true), AllowPrivilegeEscalation: maybe(r, false, true),
				Capabilities: pick(r, nil, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, &corev1.Capabilities{Add: []corev1.Capability{"CHOWN"}}),
			},
		}
		if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "token", ReadOnly: true, MountPath: podview.ServiceAccountPath})
		}
		if r.IntN(2) == 0 {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "v", MountPath: "/v", ReadOnly: r.IntN(2) == 0, SubPath: pick(r, "", "", "", "x")})
		}
		return c
	}
	for i := range 1 + r.IntN(2) {
		s.Containers = append(s.Containers, container(fmt.Sprintf("c%d", i)))
	}
	for i := range r.IntN(2) {
		s.InitContainers = append(s.InitContainers, container(fmt.Sprintf("i%d", i)))
	}
	podfile.SetDefaults(&s)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: pick(r, "web", "db"), Namespace: "team", Labels: pick(r, nil, map[string]string{"app": "web"}, map[string]string{"app": "db", "tier": "x"})},
		Spec:       s,
	}
}

// randomPolicy returns a policy file.
func randomPolicy(r *rand.Rand, name string) []byte {
	some := func(field string, values ...string) string {
		if r.IntN(4) > 0 {
			return ""
		}
		return field + ": " + pick(r, values...) + ", "
	}
	container := func() string {
		return "{" + some("image", "[{registry: {whitelist: [good.test]}}]", "[{tag: {blacklist: [latest]}}]", "[{registry: {whitelist: [good.test]}}, {registry: {whitelist: [docker.io]}}]") +
			some("imagePullPolicy", "{whitelist: [Always]}") +
			"securityContext: {" + some("privileged", "{require: false}", "{forbidNil: true}") + some("runAsUser", "{ranges: [{min: 1}]}", "{forbidNil: true}") +
			some("runAsNonRoot", "{require: true}") + some("readOnlyRootFilesystem", "{require: true}") + some("allowPrivilegeEscalation", "{require: false}") +
			some("capabilities", "{drop: {requiredValues: [ALL]}}", "{add: {requireEmpty: true}}") + "}}"
	}
	spec := "{" + some("restartPolicy", "{whitelist: [Always]}") + some("activeDeadlineSeconds", "{requireNil: true}") + some("nodeSelector", "{requiredKeys: [disk]}") +
		some("automountServiceAccountToken", "{require: false}") + some("terminationGracePeriodSeconds", "{ranges: [{max: 30}]}") +
		some("volumes", "[{volumeType: {blacklist: [hostPath]}}]", "[{hostPath: {path: {whitelist: [/a]}}}]", "[{volumeType: {whitelist: [projected, emptyDir, persistentVolumeClaim]}}]", "[{mount: {readOnly: {require: true}}}]") +
		"securityContext: {" + some("hostNetwork", "{require: false}") + some("hostPID", "{require: false}") + some("fsGroup", "{ranges: [{min: 1}]}") + some("supplementalGroups", "{ranges: [{min: 1, max: 5}]}") + "}, " +
		some("containers", "["+container()+"]", "["+container()+", "+container()+"]") + some("initContainers", "["+container()+"]") + "}"
	metadata := "{" + some("name", "{whitelist: [web]}") + some("labels", "{requiredKeys: [app]}", "{keyBlacklist: [tier]}") + "}"
	binding := pick(r, "{mode: Drop}", "{mode: Drop}", "{mode: Drop}", "{mode: Accept}", "{mode: Drop, namespaceSelector: {matchLabels: {team: a}}}", "{mode: Drop, namespaces: [other]}")
	return []byte("apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: " + name + "}\nbinding: " + binding + "\nspec: {metadata: " + metadata + ", spec: " + spec + "}\n")
}

// nodeReason returns why a node denies a pod that the webhook admits; "" if it must not.
func nodeReason(v policytest.Violation, accepted bool) string {
	volumes := strings.Contains(v.Path, ".volumes[")
	switch {
	case accepted:
		return "an Accept policy restricts what the node sees differently"
	case strings.Contains(v.Path, ".runAsUser") || strings.Contains(v.Path, ".runAsNonRoot"):
		return "the user is that of the image"
	case volumes && v.Unknown:
		return "a subPath hides the volume"
	case volumes && strings.Contains(v.Value, "csi"):
		return "a claim shows the driver behind it"
	case strings.Contains(v.Path, "supplementalGroups") || strings.Contains(v.Path, "fsGroup"):
		return "the CRI has all groups in one list"
	case strings.HasPrefix(v.Path, "spec.spec.containers[") || strings.HasPrefix(v.Path, "spec.spec.initContainers["):
		return "the CRI does not say which containers are init containers"
	case strings.Contains(v.Path, "automountServiceAccountToken"):
		return "the node sees the mount of the token"
	default:
		return ""
	}
}

// What the webhook admits, the node does not deny, except for reasons that only the node sees. A template is denied only with its pods, and an image
// only with the pods that have it.
func TestTheNodeAdmitsWhatTheWebhookAdmits(t *testing.T) {
	admitted, denied, byNode := 0, 0, map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		var files []restriction.File
		for i := range 1 + r.IntN(2) {
			name := string(rune('a' + i))
			data := randomPolicy(r, name)
			files = append(files, restriction.File{Name: name, Data: data})
			if err := os.WriteFile(filepath.Join(dir, name+".yaml"), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		namespaces := filepath.Join(t.TempDir(), "labels")
		if err := os.WriteFile(namespaces, []byte("team: {team: a}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		node, err := policytest.Read(policytest.Settings{Folder: dir, NamespaceLabels: namespaces})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, webhook.Options{Chain: chainOf(t, files), Namespaces: labels{"team": {"team": "a"}}})
		for range 10 {
			p := randomPod(r)
			text, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			here := w.ask(t, request{resource: "pods", kind: "Pod", object: string(text)})
			checkOthers(t, w, p, here.Allowed)
			if !here.Allowed {
				denied++
				continue
			}
			admitted++
			pods, err := podfile.Read(text)
			if err != nil {
				t.Fatal(err)
			}
			accepted := acceptedBy(w.last())
			for _, v := range node.Test([]policytest.Pod{{Pod: pods[0]}}).Pods[0].Violations {
				reason := nodeReason(v, accepted)
				if reason == "" {
					t.Errorf("seed %d: the node denies %s\nwith the policies %s\nand %s", seed, text, files, v.Message)
				}
				byNode[reason]++
			}
		}
	}
	t.Logf("%d admitted, %d denied; by the node for %v", admitted, denied, byNode)
	if admitted < 150 || denied < 150 || len(byNode) < 4 {
		t.Errorf("%d admitted, %d denied, by the node for %v; want enough of each", admitted, denied, byNode)
	}
}

// acceptedBy reports whether an Accept policy decided.
func acceptedBy(e webhook.Event) bool {
	for _, f := range e.Decision.Findings {
		if f.Answer == admission.Admit && f.Policy != "" {
			return true
		}
	}
	return false
}

// checkOthers compares the answer for a pod with those for a Deployment of it and for its images.
func checkOthers(t *testing.T, w *world, p *corev1.Pod, allowed bool) {
	t.Helper()
	if !allowed {
		return
	}
	pods := w.last()
	template, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "app"}, "spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"labels": p.Labels}, "spec": p.Spec,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if r := w.ask(t, request{group: "apps", resource: "deployments", object: string(template)}); !r.Allowed {
		t.Errorf("a template is denied, %q, and its pod is not: %s", message(r), template)
	}
	var images []string
	for _, c := range append(p.Spec.Containers, p.Spec.InitContainers...) {
		images = append(images, c.Image)
	}
	if status := w.reviewImages(t, "team", images...); !status.Allowed {
		t.Errorf("images are denied, %q, and the pod is not: %s", status.Reason, template)
	}
	w.events = append(w.events, pods)
}
