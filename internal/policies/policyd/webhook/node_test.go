package webhook_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit/samples"
)

// What the webhook admits, the node does not deny, except for reasons that only the node sees. A template is denied only with its pods, and an image
// only with the pods that have it.
func TestTheNodeAdmitsWhatTheWebhookAdmits(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	admitted, denied, byNode := 0, 0, map[string]int{}
	least, enough := 60, 150
	if raced {
		least, enough = 10, 20
	}
	const most = 2000
	compared := func() bool { return admitted >= enough && denied >= enough && len(byNode) >= 2 }
	for round := 0; round < least || round < most && !compared(); round++ {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		var files []restriction.File
		for i := range 1 + r.IntN(2) {
			name := string(rune('a' + i))
			data := samples.Policy(r, name, "team")
			files = append(files, restriction.File{Name: name, Data: data})
			must(t, os.WriteFile(filepath.Join(dir, name+".yaml"), data, 0o600))
		}
		namespaces := filepath.Join(t.TempDir(), "labels")
		must(t, os.WriteFile(namespaces, []byte("team: {team: team}\n"), 0o600))
		node, err := policyfiles.NewTester(policyfiles.TestSettings{Folder: dir, NamespaceLabels: namespaces})
		must(t, err)
		w := newWorld(t, webhook.Options{Chain: chainOf(t, files), Namespaces: labels{"team": {"team": "team"}}})
		for range 10 {
			p := samples.Pod(r, "team")
			text, err := json.Marshal(p)
			must(t, err)
			here := w.ask(t, request{resource: "pods", kind: "Pod", object: string(text)})
			checkOthers(t, w, p, here.Allowed)
			if !here.Allowed {
				denied++
				continue
			}
			admitted++
			pods, err := podfile.Read(text)
			must(t, err)
			accepted := acceptedBy(w.last())
			for _, v := range node.Test([]policyfiles.TestPod{{Pod: pods[0]}}).Pods[0].Violations {
				reason := samples.NodeReason(v, accepted)
				if reason == "" {
					t.Errorf("seed %d: the node denies %s\nwith the policies %s\nand %s", seed, text, files, v.Message)
				}
				byNode[reason]++
			}
		}
	}
	t.Logf("%d admitted, %d denied; by the node for %v", admitted, denied, byNode)
	if !compared() {
		t.Errorf("%d admitted, %d denied, by the node for %v after %d policies; want enough of each", admitted, denied, byNode, most)
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
	must(t, err)
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
