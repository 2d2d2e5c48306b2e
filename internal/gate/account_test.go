package gate_test

import (
	"fmt"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// An accountNode is a node whose credential providers give out tokens for service accounts.
type accountNode struct {
	*proxy
	source *fakeSource // nil if there is none
	mu     sync.Mutex
	given  map[string][]records.SecretRef // by token; a restart of pullgated forgets it
	valid  map[string]bool                // what the registry accepts
}

func newAccountNode(t *testing.T, sources bool) *accountNode {
	t.Helper()
	n := &accountNode{given: map[string][]records.SecretRef{}, valid: map[string]bool{}}
	config := exact()
	if sources {
		n.source, config = sourced(config)
	}
	n.proxy = newProxy(t, tracker.Options{AccountsOf: n.accountsOf}, config)
	if sources {
		n.source.key = n.key
	}
	n.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if name != app || !n.valid[auth.GetPassword()] {
				return criproxytest.Image{}, criproxytest.Denied(name)
			}
			return img(id1, app), nil
		}
	})
	return n
}

func (n *accountNode) accountsOf(_ string, id credential.ID) (all []tracker.Secret) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for token, refs := range n.given {
		if n.key.ID(credential.New(credential.Login{Username: "tenant", Password: token})) != id {
			continue
		}
		for _, ref := range refs {
			name, _ := ref.Account()
			account, _ := tracker.OfAccount(n.key, ref.Namespace, name, ref.UID)
			all = append(all, account)
		}
	}
	return all
}

// gives notes that a provider gave out a token, valid at the registry or not, for an account.
func (n *accountNode) gives(token, namespace, name, uid string, valid bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ref, ok := records.OfAccount(namespace, name, uid)
	if !ok {
		n.t.Fatalf("%s/%s %s is not an account", namespace, name, uid)
	}
	n.given[token] = append(n.given[token], ref)
	n.valid[token] = valid
}

// forgets does what a restart does.
func (n *accountNode) forgets() {
	n.mu.Lock()
	clear(n.given)
	n.mu.Unlock()
	n.restart()
}

// pod returns a new pod with an account, whose UID the source knows.
func (n *accountNode) pod(namespace, account, uid string, policies ...string) *criproxytest.Pod {
	x := n.Pod(namespace)
	if n.source != nil {
		n.source.pods[x.UID] = sourcePod{policies: policies, namespace: namespace, account: account, uid: uid}
	}
	return x
}

// wantUse reports a use of the image by a pod that needs another number of pulls at the registry.
func (n *accountNode) wantUse(x *criproxytest.Pod, token string, asked int, ok bool, what string) {
	n.t.Helper()
	before := n.runtime.Calls("PullImage")
	var err error
	shown := n.Precheck(x, app)
	if shown == "" {
		_, err = n.Pull(n.t.Context(), x, app, token)
	}
	if err == nil {
		_, err = n.Create(n.t.Context(), x, id1, app)
	}
	if got := n.runtime.Calls("PullImage") - before; (err == nil) != ok || got != asked {
		n.t.Errorf("%s: %v, after %d pulls at the registry; want success: %v, after %d", what, err, got, ok, asked)
	}
}

// Both cache types of the kubelet, with and without a pod source. With Token each pod has its own token, with
// ServiceAccount a pod gets that of an earlier one.
// Shows: 001-18
func TestRotatedTokenNeedsNoRegistry(t *testing.T) {
	for _, sources := range []bool{false, true} {
		t.Run(fmt.Sprint("pod source ", sources), func(t *testing.T) {
			n := newAccountNode(t, sources)
			n.gives("t1", "team-a", "app", "u1", true)
			n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 1, true, "the first pod")
			n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 0, true, "the cached token")
			n.gives("t2", "team-a", "app", "u1", false) // the registry is not asked about it
			n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t2", 0, true, "a rotated token")

			n.gives("t3", "team-a", "app", "u2", false)
			n.wantUse(n.pod("team-a", "app", "u2", "IfNotPresent"), "t3", 1, false, "the recreated account")
			n.gives("t4", "team-a", "app", "u2", true)
			n.wantUse(n.pod("team-a", "app", "u2", "IfNotPresent"), "t4", 1, true, "the recreated account, with a good token")
			n.gives("t5", "team-a", "other", "u3", false)
			n.wantUse(n.pod("team-a", "other", "u3", "IfNotPresent"), "t5", 1, false, "another account of the namespace")
			n.gives("t6", "team-b", "app", "u4", false)
			n.wantUse(n.pod("team-b", "app", "u4", "IfNotPresent"), "t6", 1, false, "an account of another namespace")

			// A restart forgets what was given out, and not who proved access.
			n.forgets()
			asked := 1
			if sources {
				asked = 0
			}
			n.valid["t7"] = true
			n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t7", asked, true, "a token from before the restart")
			n.gives("t8", "team-a", "app", "u1", false)
			n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t8", 0, true, "a token after the restart")
		})
	}
}

// With the source a pod that pulls nothing is allowed by its account, and Always asks the registry.
func TestAccountAllowsBeforeAnyPull(t *testing.T) {
	n := newAccountNode(t, true)
	n.gives("t1", "team-a", "app", "u1", true)
	n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 1, true, "the first pod")
	n.wantPrecheck(n.pod("team-a", "app", "u1", "Never"), app, id1, "Never with the account")
	n.wantPrecheck(n.pod("team-a", "app", "u2", "Never"), app, "", "Never with the recreated account")
	n.wantPrecheck(n.pod("team-a", "other", "u3", "Never"), app, "", "Never with another account")
	n.wantPrecheck(n.pod("team-a", "app", "", "Never"), app, "", "Never with an account whose UID is not known")
	n.gives("t2", "team-a", "app", "u1", true)
	x, before := n.pod("team-a", "app", "u1", "Always"), n.runtime.Calls("PullImage")
	n.MustPull(x, app, "t2")
	if got := n.runtime.Calls("PullImage") - before; got != 1 {
		t.Errorf("Always asked the registry %d times; want once", got)
	}
}

// A tenant that has the credential of another account does not become that account: the registry is asked, and what it
// proves is for the credential.
func TestStolenCredentialIsNoAccount(t *testing.T) {
	for _, sources := range []bool{false, true} {
		t.Run(fmt.Sprint("pod source ", sources), func(t *testing.T) {
			n := newAccountNode(t, sources)
			n.gives("t1", "team-a", "app", "u1", true)
			n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 1, true, "the first pod")
			n.gives("t2", "team-a", "app", "u1", false)
			n.wantUse(n.pod("team-b", "app", "u9", "IfNotPresent"), "t1", 1, true, "another namespace, a valid token")
			n.wantUse(n.pod("team-b", "app", "u9", "IfNotPresent"), "t2", 1, false, "another namespace, a token that ended")
			n.wantUse(n.pod("team-b", "app", "u1", "IfNotPresent"), "t2", 1, false, "another namespace, with that UID")
			asked, ok := 0, true // without a source only the namespace is known
			if sources {
				asked, ok = 1, false
			}
			n.wantUse(n.pod("team-a", "other", "u2", "IfNotPresent"), "t2", asked, ok, "another account of the namespace")
			n.wantUse(n.pod("team-a", "app", "u3", "IfNotPresent"), "t2", asked, ok, "the recreated account")
			n.wantUse(n.pod("team-a", "", "", "IfNotPresent"), "t2", asked, ok, "an account that is not known")
			if !sources {
				return
			}
			// Nor is its own proof taken for one of that account.
			n.gives("t4", "team-a", "other", "u2", true)
			n.wantUse(n.pod("team-a", "app", "u3", "IfNotPresent"), "t4", 1, true, "the good token of another account")
			n.gives("t5", "team-a", "other", "u2", false)
			n.wantUse(n.pod("team-a", "other", "u2", "IfNotPresent"), "t5", 1, false, "the account whose token was stolen")
		})
	}
}

// What another account proved with a copy is not the account's: a revocation by account does not select it.
func TestCopyIsRevokedByItsID(t *testing.T) {
	n := newAccountNode(t, true)
	n.gives("t1", "team-a", "app", "u1", true)
	n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 1, true, "the account")
	thief := n.pod("team-b", "app", "u9", "IfNotPresent")
	n.wantUse(thief, "t1", 1, true, "a copy")
	n.valid["t1"] = false
	revoke := func(r records.Revocation) {
		if _, err := n.tracker.Revoke(t.Context(), tracker.Revocation{Revocation: r}); err != nil {
			t.Fatal(err)
		}
	}
	ref, _ := records.OfAccount("team-a", "app", "u1")
	revoke(records.Revocation{Secret: ref})
	n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 1, false, "the account after its revocation")
	n.wantUse(thief, "t1", 0, true, "the copy after the revocation by account")
	revoke(records.Revocation{Credential: n.key.ID(credential.New(credential.Login{Username: "tenant", Password: "t1"}))})
	n.wantUse(thief, "t1", 1, false, "the copy after the revocation by ID")
}

// Without a pod source, a credential that was given out for two accounts of a namespace shows neither.
func TestCredentialOfTwoAccountsShowsNeither(t *testing.T) {
	n := newAccountNode(t, false)
	n.gives("t1", "team-a", "app", "u1", true)
	n.gives("t1", "team-a", "other", "u2", true)
	n.wantUse(n.pod("team-a", "app", "u1"), "t1", 1, true, "the first pod")
	n.gives("t2", "team-a", "app", "u1", false)
	n.wantUse(n.pod("team-a", "app", "u1"), "t2", 1, false, "a rotated token")

	n = newAccountNode(t, true)
	n.gives("t1", "team-a", "app", "u1", true)
	n.gives("t1", "team-a", "other", "u2", true)
	n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t1", 1, true, "the first pod")
	n.gives("t2", "team-a", "app", "u1", false)
	n.wantUse(n.pod("team-a", "app", "u1", "IfNotPresent"), "t2", 0, true, "a rotated token, with a pod source")
}
