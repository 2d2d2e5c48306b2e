package gate_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const withheld = "pullgate: repository repo.test/team/app: the registry credentials of this node are for other " +
	"namespaces; set imagePullSecrets, or ask the operator of this node"

// newNodeProxy starts a proxy on a node whose credential has the password "node", for the namespaces alone. The
// registry accepts it, and "own".
func newNodeProxy(tb testing.TB, c gate.Config, namespaces ...string) *proxy {
	tb.Helper()
	var p *proxy
	isNodes := func(id credential.ID) bool {
		return id == p.key.ID(credential.New(credential.Login{Username: "tenant", Password: "node"}))
	}
	p = newProxy(tb, tracker.Options{
		NodeOffers: func(_ string, id credential.ID) bool { return isNodes(id) },
		NodeHolds:  func(_ context.Context, id credential.ID) bool { return isNodes(id) },
		Rules:      tracker.Rules{NodeNamespaces: append([]string{}, namespaces...), ExemptNamespaces: []string{"system"}},
	}, c)
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(asked string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if pw := auth.GetPassword(); pw != "node" && pw != "own" && pw != lentPassword {
				return criproxytest.Image{}, criproxytest.Denied(asked)
			}
			return img(id1, asked), nil
		}
	})
	return p
}

func (p *proxy) wantWithheld(x *criproxytest.Pod, what string) {
	p.t.Helper()
	before := p.runtime.Calls("PullImage")
	_, err := p.Pull(p.t.Context(), x, app, "node")
	if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != withheld {
		p.t.Errorf("%s = %v; want PermissionDenied: %s", what, err, withheld)
	}
	if got := p.runtime.Calls("PullImage") - before; got != 0 {
		p.t.Errorf("%s: the runtime got the credential", what)
	}
}

func TestNodeCredentialIsWithheld(t *testing.T) {
	for _, c := range []gate.Config{exact(), {AlwaysPrecheck: gate.AlwaysSent, OutageFallback: true}} {
		var noted decisions
		c.Decisions = &noted
		p := newNodeProxy(t, c, "bob")
		bob, carol := p.Pod("bob"), p.Pod("carol")
		p.wantPrecheck(carol, app, "", "pre-check of an absent image")
		p.wantWithheld(carol, "pull of an absent image")
		if d := noted.last(); d.Verdict.Reason != policy.NodeCredentials || d.Repository != "repo.test/team/app" {
			t.Errorf("decision = %+v; want node_credentials, with the repository", d)
		}
		p.wantPull(bob, app, "node", id1, "pull of a listed namespace")
		p.must(p.createAndStart(bob, id1, app))
		p.wantPrecheck(p.Pod("bob"), app, id1, "pre-check of another pod of the namespace")
		p.wantPrecheck(carol, app, "", "pre-check of a present image")
		p.wantWithheld(carol, "pull of a present image")
		_, err := p.Create(t.Context(), carol, id1, app)
		if m := status.Convert(err).Message(); status.Code(err) != codes.PermissionDenied || strings.Contains(m, "bob") {
			t.Errorf("container = %v; want it denied, and no other tenant named", err)
		}
		mount := &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}}
		p.ends(codes.PermissionDenied, "container with an image volume")(
			p.Create(t.Context(), carol, id2, "repo.test/x", mount))
		p.wantPrecheck(p.Pod("system"), app, id1, "pre-check of an exempt pod")
		p.wantPull(p.Pod("system"), app, "node", id1, "pull of an exempt pod")
		p.wantPull(nil, app, "node", id1, "pull for no pod")

		// A pull secret of its own is tried before the node's.
		p.wantPull(carol, app, "own", id1, "pull with a credential of its own")
		p.must(p.createAndStart(carol, id1, app))
		p.wantWithheld(p.Pod("carol"), "pull of another pod of the namespace")

		// Its containers keep what its credential proved, also after a restart; those of dave keep nothing.
		p.tracker.SetRules(tracker.Rules{})
		dave := p.Pod("dave")
		p.must(p.createAndStart(dave, id1, app))
		p.tracker.SetRules(p.options.Rules)
		p.wantCreate(dave, id1, app, codes.PermissionDenied, "container after a reload")
		p.wantCreate(carol, id1, app, codes.OK, "container of a pod with its own proof")
		p.restart()
		p.wantCreate(dave, id1, app, codes.PermissionDenied, "container after a restart")
		p.wantPrecheck(dave, app, "", "pre-check after a restart")
		p.wantPrecheck(bob, app, id1, "pre-check of a listed namespace after a restart")
		p.wantCreate(bob, id1, app, codes.OK, "container of a listed namespace after a restart")
		p.wantPull(carol, app, "own", id1, "pull with a credential of its own after a restart")
		p.wantCreate(carol, id1, app, codes.OK, "container of its pod")
	}
}

// What the pod may use without the node's credential, it may use all the same.
func TestWithheldCredentialTakesNothingElse(t *testing.T) {
	source := &fakeSource{pods: map[string]sourcePod{}}
	c := exact()
	c.PodSource = source
	p := newNodeProxy(t, c, "bob")
	source.key = p.key
	p.MustPull(p.Pod("bob"), app, "node")
	p.MustPull(p.Pod("eve"), app, "own")
	carol := p.Pod("carol")
	source.pods[carol.UID] = sourcePod{policies: []string{"IfNotPresent"}}
	p.wantPrecheck(carol, app, "", "pre-check")
	p.access(accessFile("Share", "{namespaces: [carol]}"))
	p.wantWithheld(carol, "pull with a share: a kubelet would record the credential as good")
	p.wantPrecheck(carol, app, id1, "pre-check with a share")
	p.must(p.createAndStart(carol, id1, app))
	p.access()
	p.wantWithheld(carol, "pull without a share")

	// A Secret that proved access allows the pod, and one that holds the node's credential makes it the pod's.
	dave, fred := p.Pod("dave"), p.Pod("fred")
	ref := records.SecretRef{UID: "u", Namespace: "dave", Name: "s"}
	own := map[records.SecretRef]string{ref: "own"}
	source.pods[dave.UID] = sourcePod{policies: []string{"IfNotPresent"}, secrets: own}
	p.wantPrecheck(dave, app, id1, "pre-check of a pod whose Secret proved access")
	of := records.SecretRef{UID: "v", Namespace: "fred", Name: "s"}
	source.pods[fred.UID] = sourcePod{policies: []string{"Always"}, secrets: map[records.SecretRef]string{of: "node"}}
	p.wantPull(fred, app, "node", id1, "pull with a Secret that holds the node's credential")
	p.must(p.createAndStart(fred, id1, app))
	without := p.Pod("fred")
	p.wantPrecheck(without, app, "", "pre-check of a pod without that Secret")
	p.wantWithheld(without, "pull of a pod without that Secret")

	// No right of the pod answers a pull that the kubelet would take for one with a good credential.
	p.done(p.tracker.AcceptMarks(t.Context(), tracker.Acceptance{
		Selection: records.Selection{Repository: "repo.test/team/app"}, IncludingProved: true,
	}))
	p.wantWithheld(without, "pull after a hidden pre-check of what is preloaded by now")
	p.wantPrecheck(without, app, id1, "pre-check of what is preloaded by now")
}

func TestLendInPlaceOfAWithheldCredential(t *testing.T) {
	p := newNodeProxy(t, exact(), "alice")
	file, _ := lending(t)
	p.access(file)
	bob := p.Pod("bob")
	p.wantPull(bob, app, "node", id1, "pull of a pod that gets a credential lent")
	if _, r := p.lastPull(); r.GetAuth().GetUsername() != lentUser || r.GetAuth().GetPassword() != lentPassword {
		t.Error("the runtime did not get the lent credential alone")
	}
	p.must(p.createAndStart(bob, id1, app))
	p.wantPrecheck(p.Pod("alice"), app, "", "pre-check of a namespace with the node's credentials, which were not used")
}

// The registry does not get a withheld credential for signatures either.
func TestWithheldCredentialIsNotUsedForSignatures(t *testing.T) {
	p := newNodeProxy(t, exact(), "alice")
	s := signingOf(p, signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	file, _ := lending(t)
	p.access(file)
	p.wantPull(p.Pod("bob"), app, "node", id1, "pull of a pod that gets a credential lent")
	if asked := s.requests(); len(asked) != 1 || asked[0].Credential != (admission.Login{}) {
		t.Errorf("asked %d times; want once, without a credential", len(asked))
	}
}

func TestNodeNamespacesInShadowMode(t *testing.T) {
	c := exact()
	c.Shadow = true
	var noted decisions
	c.Decisions = &noted
	p := newNodeProxy(t, c, "bob")
	carol := p.Pod("carol")
	p.wantPull(carol, app, "node", id1, "pull in shadow mode")
	if d := noted.last(); d.Verdict.Reason != policy.NodeCredentials {
		t.Errorf("decision = %+v; want node_credentials", d)
	}
	p.wantPrecheck(carol, app, id1, "pre-check in shadow mode")
	p.wantCreate(carol, id1, app, codes.OK, "container in shadow mode")
	r := testkit.Value(p.store.Images())(t)
	if rec := r[0].Records[0]; rec.ByNode.IsZero() || rec.ForEveryPod() {
		t.Errorf("record = %+v; want it open by the node", rec)
	}
}

// A reload while a pull runs closes what the pull brings.
func TestNodeNamespacesAreReloadedDuringAPull(t *testing.T) {
	p := newNodeProxy(t, exact(), "bob", "carol")
	carol := p.Pod("carol")
	p.beforeAnswer("PullImage", func() {
		r := p.options.Rules
		r.NodeNamespaces = []string{"bob"}
		p.tracker.SetRules(r)
	})
	p.wantPull(carol, app, "node", id1, "pull during which the namespace is removed")
	p.wantCreate(carol, id1, app, codes.PermissionDenied, "container after it")
	p.wantPrecheck(p.Pod("bob"), app, id1, "pre-check of a listed namespace")

	// The same for a container that is being created.
	p.beforeAnswer("PullImage", func() {})
	r := p.options.Rules
	p.tracker.SetRules(r)
	dave := p.Pod("carol")
	p.beforeAnswer("CreateContainer", func() {
		r.NodeNamespaces = nil
		r.NodeNamespaces = append(r.NodeNamespaces, "bob")
		p.tracker.SetRules(r)
	})
	p.wantCreate(dave, id1, app, codes.PermissionDenied, "container during whose creation the namespace is removed")
	p.wantNoContainers("none of a pod that lost its right")
}
