package kubelets_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// reviewCanary is in everything of a pod that no backend may see.
const reviewCanary = "canary-c41e-of-a-pod"

const override = "x.image-policy.k8s.io/break-glass"

// A reviewing is a scenario with image review backends, a pullgate-policyd that asks them, and a canary in its pods.
type reviewing struct {
	*scenario
	backends []*reviewbackend.Backend
}

// newReviewing starts a pullgate-policyd with an empty policy folder and other settings. At the end, no
// backend has seen a canary.
func (s *scenario) newReviewing(settings ...string) *reviewing {
	s.Helper()
	r := &reviewing{scenario: s}
	s.newPolicies()
	s.policyd = node.StartPolicyd(s, filepath.Join(s.Dir, "policyd-of-"+s.name), s.policies, settings...)
	s.Cleanup(func() {
		s.withoutPolicies()
		s.policyd = nil
		r.noCanary()
	})
	return r
}

func (r *reviewing) backend() *reviewbackend.Backend {
	r.Helper()
	b := reviewbackend.New(r)
	r.backends = append(r.backends, b)
	return b
}

// file writes the policy file of a backend with fields of imagePolicy, for pods of some teams or of all.
func (r *reviewing) file(name string, b *reviewbackend.Backend, fields string, teams ...string) {
	r.Helper()
	var namespaces []string
	for _, team := range teams {
		namespaces = append(namespaces, r.namespace(team))
	}
	kubeconfig := filepath.Join(r.policyd.Dir(), name+".kubeconfig")
	r.must(b.PolicyFile(filepath.Join(r.policies, name+".yaml"), kubeconfig, r.kubelet.Name(), fields, namespaces...))
}

func (r *reviewing) pod(team string, image node.Pushed, changes ...func(*corev1.Pod)) pod {
	return use(team, image).but(func(p *corev1.Pod) {
		p.Labels = map[string]string{"label": reviewCanary}
		p.Annotations = map[string]string{"example.test/annotation": reviewCanary}
		for _, change := range changes {
			change(p)
		}
		for i := range p.Spec.Containers {
			c := &p.Spec.Containers[i]
			c.Env = []corev1.EnvVar{
				{Name: "PLAIN", Value: reviewCanary},
				{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "canary"}, Key: "key",
				}}},
			}
		}
	})
}

func (r *reviewing) secret(teams ...string) {
	r.Helper()
	for _, team := range teams {
		r.makeNamespace(r.namespace(team))
		object := &corev1.Secret{StringData: map[string]string{"key": reviewCanary}}
		object.Name = "canary"
		testkit.Value(r.core.Secrets(r.namespace(team)).Create(r.Context(), object, metav1.CreateOptions{}))(r)
	}
}

func (r *reviewing) noCanary() {
	r.Helper()
	requests := 0
	for _, b := range r.backends {
		for _, request := range b.Requests() {
			requests++
			if sent := fmt.Sprintf("%s %v %s", request.URI, request.Header, request.Body); strings.Contains(sent, "canary") {
				r.Errorf("a backend was sent a canary: %s", sent)
			}
		}
	}
	if requests == 0 && len(r.backends) > 0 {
		r.Error("no backend was asked")
	}
}

func (r *reviewing) runs(name string, o *outcome) {
	r.Helper()
	if !host.Within(patience, func() bool { return r.look(o).state == running }) {
		r.Errorf("%s: %s%s; want it running", name, o, r.events(o.pod))
	}
}

type decision struct {
	Call     string
	ImageID  string
	Digest   string
	Pod      struct{ UID string }
	Verdict  string
	Policies []policyAnswer
}

type policyAnswer struct {
	Policy, Reason   string
	FailedOpen       bool
	AuditAnnotations map[string]string
}

func (d decision) failedOpen() bool {
	return slices.ContainsFunc(d.Policies, func(p policyAnswer) bool { return p.FailedOpen })
}

func (r *reviewing) decisions(o *outcome) []decision {
	r.Helper()
	text := testkit.Value(os.ReadFile(r.decisionLog()))(r)
	var all []decision
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var d decision
		r.must(json.Unmarshal(lines.Bytes(), &d))
		if d.Call == "CreateContainer" && d.Pod.UID == string(o.pod.UID) {
			all = append(all, d)
		}
	}
	return all
}

// logs waits until the decision log has a decision about a pod that is as wanted. No decision waits for the log.
func (r *reviewing) logs(name string, o *outcome, want string, is func(decision) bool) {
	r.Helper()
	if !host.Within(patience, func() bool { return slices.ContainsFunc(r.decisions(o), is) }) {
		r.Errorf("%s: the decision log has %+v; want %s", name, r.decisions(o), want)
	}
}

// markedFailedOpen waits for an admitted container of a pod in the decision log, admitted because of no answer or not.
func (r *reviewing) markedFailedOpen(name string, o *outcome, want bool) {
	r.Helper()
	r.logs(name, o, fmt.Sprintf("an admitted container with failedOpen %v", want), func(d decision) bool {
		return d.Verdict == "Allow" && d.failedOpen() == want
	})
}

func (r *reviewing) hangup() {
	r.Helper()
	r.must(syscall.Kill(r.policyd.PID(), syscall.SIGHUP))
}
