package gate_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// A runtime that holds a credential for team-a brings the image for a pull without a credential. Only pods of that
// namespace may use it then.
func TestRuntimeCredentialOpensItsNamespaceAlone(t *testing.T) {
	f := &fakeSource{pods: map[string]sourcePod{}, whole: true}
	c := exact()
	c.PodSource = f
	p := newProxy(t, tracker.Options{RuntimeCredentialsPerNamespace: true}, c)
	f.key = p.key
	runs := func(namespace, policy string, want bool) {
		t.Helper()
		x := p.Pod(namespace)
		f.addPod(x, "", policy)
		if got := p.Precheck(x, app); (got == id1) != want {
			t.Errorf("pre-check of %s with %s = %q; want the image: %v", namespace, policy, got, want)
		}
		wanted := codes.OK
		if !want {
			wanted = codes.PermissionDenied
		}
		p.wantCreate(x, id1, app, wanted, "container of %s with %s", namespace, policy)
	}
	p.serves(app, "", img(id1))
	first := p.Pod("team-a")
	f.addPod(first, "", "IfNotPresent")
	if id, err := p.Pull(t.Context(), first, app, ""); err != nil || id != id1 {
		t.Fatalf("pull with what the runtime holds for team-a = %q, %v; want the image", id, err)
	}

	// The runtime holds no credential for other namespaces.
	p.serves(app, "another", img(id1))
	for _, policy := range []string{"IfNotPresent", "Never"} {
		runs("team-a", policy, true)
		runs("team-b", policy, false)
	}
	b := p.Pod("team-b")
	f.addPod(b, "", "IfNotPresent")
	p.Precheck(b, app)
	if id, err := p.Pull(t.Context(), b, app, ""); status.Code(err) == codes.OK {
		t.Errorf("pull of team-b without a credential = %q; want the registry's refusal", id)
	}
	p.restart()
	f.addPod(b, "", "IfNotPresent")
	runs("team-a", "IfNotPresent", true)
	runs("team-b", "IfNotPresent", false)

	// The registry answers a pod of team-a that presents a credential.
	a := p.Pod("team-a")
	f.addPod(a, "bad", "Always")
	if _, err := p.Pull(t.Context(), a, app, "bad"); err == nil {
		t.Error("pull of team-a with a bad credential succeeds; want the registry's refusal")
	}
}

// crictl and kubeadm pull for no pod, with the node's credentials.
func TestPullForNoPodOpensWithRuntimeCredentialsPerNamespace(t *testing.T) {
	p := newProxy(t, tracker.Options{RuntimeCredentialsPerNamespace: true}, exact())
	p.serves(app, "", img(id1))
	p.MustPull(nil, app, "")
	p.wantPrecheck(p.Pod("team-b"), app, id1, "pre-check after a pull for no pod")
}
