package tracker_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// accounts is a world whose credential providers give out passwords for service accounts.
type accounts struct {
	*world
	of map[string][]tracker.Secret // by password
}

func newAccounts(t *testing.T) *accounts {
	t.Helper()
	a := &accounts{of: map[string][]tracker.Secret{}}
	a.world = newWorld(t, tracker.Options{AccountsOf: func(repository string, id credential.ID) (all []tracker.Secret) {
		for password, of := range a.of {
			if repository == app && a.id(password) == id {
				all = append(all, of...)
			}
		}
		return all
	}})
	return a
}

func (a *accounts) account(namespace, name, uid string) tracker.Secret {
	a.t.Helper()
	s, ok := tracker.OfAccount(a.key, namespace, name, uid)
	if !ok {
		a.t.Fatalf("%s/%s %s is not an account", namespace, name, uid)
	}
	return s
}

// pulledBy ends a pull of a pod with a token, which is bound to an account or not, as the gate does.
func (a *accounts) pulledBy(p tracker.Pod, password string) tracker.Verdict {
	a.t.Helper()
	proof := tracker.Proof{ImageID: id1, Sent: a.Sent(secret(password), p), Pod: p}
	if bound := a.Bound(a.t.Context(), proof.Sent, p, app); len(bound) > 0 {
		proof.Sent, proof.Secrets = tracker.SentBy(bound[0]), bound
	}
	v, err := a.begin(app + ":1").Proved(proof)
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

func (a *accounts) ask(p tracker.Pod, held ...tracker.Secret) tracker.Verdict {
	r := asking(p)
	r.Image, r.Name, r.Secrets = image(id1, app+":1"), imageref.New(app+":1"), held
	return a.Check(a.t.Context(), r)
}

func TestProofBelongsToTheAccount(t *testing.T) {
	a := newAccounts(t)
	builder := a.account("team-a", "builder", "u1")
	a.of["token1"] = []tracker.Secret{builder}
	if a.HasAccounts() {
		t.Error("HasAccounts before the first proof")
	}
	a.want(a.pulledBy(inNamespace("a1", "team-a"), "token1"), policy.Allow, policy.Proved)
	for _, when := range []string{"before", "after"} {
		if !a.HasAccounts() {
			t.Errorf("%s the restart: no account may have proved anything", when)
		}
		// Without the token, and with another token of the account: it is not compared.
		a.want(a.ask(inNamespace("a2-"+when, "team-a"), builder), policy.Allow, policy.Proved)
		a.of["token2"] = []tracker.Secret{builder}
		r := asking(inNamespace("a3-"+when, "team-a"))
		r.Sent = tracker.SentBy(a.Bound(a.t.Context(), a.Sent(secret("token2"), r.Pod), r.Pod, app)[0])
		a.want(a.Check(t.Context(), r), policy.Allow, policy.Proved)

		for what, other := range map[string]tracker.Secret{
			"recreated":         a.account("team-a", "builder", "u2"),
			"another name":      a.account("team-a", "deployer", "u1"),
			"another namespace": a.account("team-b", "builder", "u1"),
			"a Secret that is named like it": {
				Credential: a.id("x"), Ref: records.SecretRef{UID: "u3", Namespace: "team-a", Name: "builder"},
			},
		} {
			if v := a.ask(inNamespace("b-"+what+when, "team-a"), other); v.Allowed() {
				t.Errorf("%s the restart, %s: %+v; want it to need proof", when, what, v)
			}
		}
		// The token itself proved nothing: it can be stolen, and ends soon.
		a.want(a.check(inNamespace("b1-"+when, "team-b"), app+":1", image(id1, app+":1"), "token1"), policy.Reverify,
			policy.NotProved)
		a.restart()
	}
	if data, err := os.ReadFile(a.path); err != nil || bytes.Contains(data, []byte(a.id("token1"))) {
		t.Errorf("the store has the ID of the token (%v)", err)
	}
}

func TestBound(t *testing.T) {
	a := newAccounts(t)
	one, two := a.account("team-a", "app", "u1"), a.account("team-b", "app", "u2")
	a.of["token"] = []tracker.Secret{one, two}
	sent := func(p tracker.Pod, password string) tracker.Sent { return a.Sent(secret(password), p) }
	pod, other := inNamespace("a1", "team-a"), inNamespace("b1", "team-b")
	static := pod
	static.Static = true
	for what, tc := range map[string]struct {
		pod                  tracker.Pod
		password, repository string
		want                 []tracker.Secret
	}{
		"its own":            {pod, "token", app, []tracker.Secret{one}},
		"another namespace":  {other, "token", app, []tracker.Secret{two}},
		"no account there":   {inNamespace("c1", "team-c"), "token", app, nil},
		"no namespace":       {tracker.Pod{UID: "d1"}, "token", app, nil},
		"static":             {static, "token", app, nil},
		"another repository": {pod, "token", "repo.test/other", nil},
		"another credential": {pod, "other", app, nil},
		"no credential":      {pod, "", app, nil},
	} {
		got := a.Bound(t.Context(), sent(tc.pod, tc.password), tc.pod, tc.repository)
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: Bound = %v; want %v", what, got, tc.want)
		}
	}
	// For another repository, too, and after the node's own report has expired: a plugin may fall back to it.
	a.options.NodeHolds = func(_ context.Context, id credential.ID) bool { return id == a.id("token") }
	a.restart()
	if got := a.Bound(t.Context(), sent(pod, "token"), pod, app); len(got) > 0 {
		t.Errorf("Bound of what the node has offered to every pod = %v; want nothing", got)
	}
	a.options.NodeOffers = func(_ string, id credential.ID) bool { return id == a.id("token") }
	a.restart()
	a.want(a.pulledBy(pod, "token"), policy.Allow, policy.Open)
}

func TestRevocationReachesAccounts(t *testing.T) {
	for what, by := range map[string]records.Revocation{
		"account":    {Secret: records.SecretRef{Namespace: "team-a", Name: "serviceaccount/app"}},
		"UID":        {Secret: records.SecretRef{UID: "u1"}},
		"namespace":  {Secret: records.SecretRef{Namespace: "team-a"}},
		"repository": {Repository: app},
	} {
		a := newAccounts(t)
		one, two := a.account("team-a", "app", "u1"), a.account("team-b", "app", "u2")
		a.of["t1"], a.of["t2"] = []tracker.Secret{one}, []tracker.Secret{two}
		a.pulledBy(inNamespace("a1", "team-a"), "t1")
		a.pulledBy(inNamespace("b1", "team-b"), "t2")
		a.want(a.ask(inNamespace("a2", "team-a"), one), policy.Allow, policy.Proved)
		running := a.begin(app + ":1")
		gone := a.revokes(by)
		if whole := what == "repository"; !whole && (len(gone.Proofs) != 1 || len(gone.Grants) != 2) {
			t.Errorf("%s: Revoke = %+v; want the proof of one account and the grants of its two pods", what, gone)
		}
		a.want(a.ask(inNamespace("a2", "team-a"), one), policy.Reverify, policy.NotProved)
		// A pull that began before does not prove again what is revoked.
		v, err := running.Proved(tracker.Proof{
			ImageID: id1, Sent: tracker.SentBy(one), Secrets: []tracker.Secret{one}, Pod: inNamespace("a3", "team-a"),
		})
		if err != nil || v.Allowed() {
			t.Errorf("%s: a pull that began before = %+v, %v; want no proof", what, v, err)
		}
		if v := a.ask(inNamespace("b2", "team-b"), two); v.Allowed() != (what != "repository") {
			t.Errorf("%s: the other account = %+v", what, v)
		}
	}
}

// An account does not take the place of a pull secret, nor does one of them take its place.
func TestAccountCountsBesideThePullSecrets(t *testing.T) {
	a := newAccounts(t)
	builder := a.account("team-a", "builder", "u1")
	held := []tracker.Secret{builder}
	for i := range credential.MaxOffers + 1 {
		held = append(held, tracker.Secret{
			Credential: a.id(fmt.Sprint("p", i)), Ref: records.SecretRef{UID: fmt.Sprint(i), Namespace: "team-a", Name: "s"},
		})
	}
	if got := len(tracker.Considered(held)); got != credential.MaxOffers+1 {
		t.Errorf("%d are considered; want %d and the account", got, credential.MaxOffers)
	}
	if got := len(tracker.Considered(held[1:])); got != credential.MaxOffers {
		t.Errorf("%d are considered without an account; want %d", got, credential.MaxOffers)
	}
	a.pulled(inNamespace("a1", "team-a"), app+":1", id1, fmt.Sprint("p", credential.MaxOffers-1))
	a.want(a.ask(inNamespace("a2", "team-a"), held...), policy.Allow, policy.Proved)
	a.want(a.ask(inNamespace("a3", "team-a"), builder), policy.Reverify, policy.NotProved)
}

// A damaged record proves nothing, for an account as for any credential.
func TestDamagedRecordOfAnAccount(t *testing.T) {
	a := newAccounts(t)
	builder := a.account("team-a", "builder", "u1")
	a.of["t"] = []tracker.Secret{builder}
	a.pulledBy(inNamespace("a1", "team-a"), "t")
	a.damage(records.Pair{ImageID: id1, Repository: app})
	if v := a.ask(inNamespace("a2", "team-a"), builder); v.Allowed() {
		t.Errorf("after the record was damaged: %+v; want it to need proof", v)
	}
	a.want(a.pulledBy(inNamespace("a3", "team-a"), "t"), policy.Allow, policy.Proved)
	a.want(a.ask(inNamespace("a4", "team-a"), builder), policy.Allow, policy.Proved)
}

// A proof of an account expires, and loses its grace when the registry denies a token of the account.
func TestProofOfAnAccountExpires(t *testing.T) {
	a := newAccounts(t)
	builder := a.account("team-a", "builder", "u1")
	a.SetRules(tracker.Rules{Validity: time.Hour, Grace: time.Hour})
	a.provedAt(builder.Credential, time.Now().Add(-90*time.Minute), builder.Ref)
	unasked := func() policy.Reason {
		r := asking(inNamespace("a1", "team-a"))
		r.Secrets, r.Unasked = []tracker.Secret{builder}, true
		return a.Explain(t.Context(), r).Reason
	}
	if got := unasked(); got != policy.ProvedInGrace {
		t.Errorf("in its grace: %s", got)
	}
	if err := a.begin(app+":1").Denied(image(id1, app+":1"), tracker.SentBy(builder)); err != nil {
		t.Fatal(err)
	}
	if got := unasked(); got != policy.ProofExpired {
		t.Errorf("after a denial: %s; want no grace", got)
	}
}

// To be run under the race detector.
func TestAccountsConcurrently(t *testing.T) {
	a := newAccounts(t)
	var all []tracker.Secret
	for i := range 4 {
		all = append(all, a.account("team-a", fmt.Sprint("app", i), fmt.Sprint("u", i)))
	}
	var wg sync.WaitGroup
	for i, account := range all {
		wg.Go(func() {
			for n := range 10 {
				p := inNamespace(fmt.Sprint("p", i, n), "team-a")
				if _, err := a.begin(app + ":1").Proved(tracker.Proof{
					ImageID: id1, Sent: tracker.SentBy(account), Secrets: []tracker.Secret{account}, Pod: p,
				}); err != nil {
					t.Error(err)
				}
				if v := a.ask(inNamespace(p.UID+"x", "team-a"), account); !v.Allowed() {
					t.Errorf("%v: %+v", account.Ref, v)
				}
				a.HasAccounts()
			}
		})
	}
	wg.Wait()
}
