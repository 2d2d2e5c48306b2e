package tracker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

var ownSecret = records.SecretRef{UID: "u1", Namespace: "team-m", Name: "pull"}

// holding returns a request of a pod with a pull secret of this content.
func (w *world) holding(uid string, ref records.SecretRef, password string) tracker.Request {
	r := asking(pod(uid))
	r.Secrets = []tracker.Secret{{Credential: w.id(password), Ref: ref}}
	return r
}

// pulledWith makes a successful pull with the content of a pull secret.
func (w *world) pulledWith(uid string, ref records.SecretRef, password string) {
	w.t.Helper()
	pull, from := w.begin(app+":1"), []tracker.Secret{{Credential: w.id(password), Ref: ref}}
	testkit.Value(pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent(password), Secrets: from, Pod: pod(uid)}))(w.t)
}

func (w *world) revokeCredential(password string) tracker.Revoked {
	w.t.Helper()
	return w.revokes(records.Revocation{Credential: w.id(password)})
}

// A Secret that is overwritten before the credential that leaked is revoked does not keep what the credential proved.
func TestRevocationFindsWhatARotationHides(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id1, app+":1"))
	w.pulledWith("m1", ownSecret, "leaked")
	w.want(w.Check(t.Context(), w.holding("m2", ownSecret, "junk")), policy.Allow, policy.Proved)
	w.want(w.Check(t.Context(), w.holding("m3", ownSecret, "more junk")), policy.Allow, policy.Proved)
	got := w.revokeCredential("leaked")
	if len(got.Proofs) != 1 || len(got.Grants) != 3 {
		t.Errorf("Revoke = %+v; want the proof and the grants of all three pods", got)
	}
	for _, uid := range []string{"m1", "m2", "m3", "m4"} {
		w.want(w.Check(t.Context(), w.holding(uid, ownSecret, "more junk")), policy.Reverify, policy.NotProved)
	}
}

// Two Secrets hold a credential, and one of them is overwritten. A revocation of the other one selects the credential
// as a whole.
func TestRevocationOfASecretFindsWhatAnotherOneRotatedFrom(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id1, app+":1"))
	other := records.SecretRef{UID: "u2", Namespace: "team-m", Name: "other"}
	w.pulledWith("m1", ownSecret, "leaked")
	w.want(w.Check(t.Context(), w.holding("m2", other, "leaked")), policy.Allow, policy.Proved)
	testkit.Must(t, w.Flush()) // the use, with its Secret
	w.want(w.Check(t.Context(), w.holding("m3", other, "next")), policy.Allow, policy.Proved)
	w.want(w.Check(t.Context(), w.holding("m4", other, "last")), policy.Allow, policy.Proved)
	got, err := w.Revoke(t.Context(), tracker.Revocation{Revocation: records.Revocation{Secret: ownSecret}})
	if err != nil || len(got.Proofs) != 2 || len(got.Grants) != 4 {
		t.Errorf("Revoke = %+v, %v; want both proofs and the grants of all four pods", got, err)
	}
	w.want(w.Check(t.Context(), w.holding("m3", other, "last")), policy.Reverify, policy.NotProved)
}

// A credential that no registry has confirmed proves nothing for other holders.
func TestUnconfirmedCredentialCountsForItsOwnSecretOnly(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.pulledWith("a1", ownSecret, "old")
	w.want(w.Check(t.Context(), w.holding("a2", ownSecret, "new")), policy.Allow, policy.Proved)
	other := records.SecretRef{UID: "u2", Namespace: "team-s", Name: "pull"}
	w.want(w.check(pod("b1"), app+":1", img, "new"), policy.Reverify, policy.NotProved)
	w.want(w.Check(t.Context(), w.holding("b1", other, "new")), policy.Reverify, policy.NotProved)
	if e := w.Explain(t.Context(), w.holding("b1", other, "new")); e.Statuses[0] != tracker.ProvedNothing {
		t.Errorf("Explain: the Secret of another pod is %v; want ProvedNothing", e.Statuses[0])
	}
	w.want(w.Check(t.Context(), w.holding("a3", ownSecret, "new")), policy.Allow, policy.Proved)
	// A registry confirms it.
	w.pulledWith("a4", ownSecret, "new")
	w.want(w.check(pod("b1"), app+":1", img, "new"), policy.Allow, policy.Proved)
	if got := w.revokeCredential("old"); len(got.Proofs) > 0 {
		t.Errorf("Revoke of what a registry has replaced = %+v; want no proof", got)
	}
	w.want(w.Check(t.Context(), w.holding("a5", ownSecret, "new")), policy.Allow, policy.Proved)
}

func TestRotationsWithoutARegistryAreBounded(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id1, app+":1"))
	w.pulledWith("a", ownSecret, "0")
	for i := 1; i <= records.MaxRotations; i++ {
		w.want(w.Check(t.Context(), w.holding(fmt.Sprint("a", i), ownSecret, fmt.Sprint(i))), policy.Allow, policy.Proved)
	}
	w.want(w.Check(t.Context(), w.holding("late", ownSecret, "late")), policy.Reverify, policy.NotProved)
	if got := w.revokeCredential("0"); len(got.Proofs) != 1 {
		t.Errorf("Revoke of the first = %+v; want the proof", got)
	}
}

// Proofs of one tenant displace only its own proofs, not those of other tenants.
func TestProofsOfOneNamespaceDoNotEvictOthers(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.pulled(pod("victim"), app+":1", id1, "victim")
	for i := range 3 * records.MaxProofs / 2 {
		w.pulled(tracker.Pod{UID: fmt.Sprint("m", i), Namespace: "team-m"}, app+":1", id1, fmt.Sprint("m", i))
	}
	w.want(w.check(pod("victim-2"), app+":1", img, "victim"), policy.Allow, policy.Proved)
	w.want(w.check(pod("m-new"), app+":1", img, fmt.Sprint("m", 3*records.MaxProofs/2-1)), policy.Allow, policy.Proved)
	w.want(w.check(pod("m-old"), app+":1", img, "m0"), policy.Reverify, policy.NotProved)
}

// While nothing is verified, a pod gets grants for the images that it uses, not for those that it asks about.
func TestVerdictByPolicyLeavesNoGrantUntilTheImageIsUsed(t *testing.T) {
	rules := func(policyName string, allowlist ...string) tracker.Rules {
		p := testkit.Value(policy.New(policyName, allowlist))(t)
		return tracker.Rules{Policy: p}
	}
	exempt := rules("AlwaysVerify")
	exempt.ExemptNamespaces = []string{"team-mallory", "team-user"}
	for name, lax := range map[string]tracker.Rules{
		"NeverVerify": rules("NeverVerify"), "allowlist": rules("NeverVerifyAllowlistedImages", app),
		"exempt namespace": exempt,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{Rules: rules("AlwaysVerify")})
			img := image(id1, app+":1")
			w.runtime.set(img)
			w.pulled(pod("victim"), app+":1", id1, "victim")
			w.SetRules(lax)
			for i := range 2 {
				if v := w.check(pod("mallory"), app+":1", img); !v.Allowed() || v.First != (i == 0) {
					t.Errorf("check %d = %v by %s, first %v; want Allow, first only once", i, v.Verdict, v.Reason, v.First)
				}
			}
			w.check(pod("user"), app+":1", img)
			v := w.Check(t.Context(), tracker.Request{Pod: pod("user"), Name: imageref.New(app + ":1"), Image: img, Using: true})
			if !v.Allowed() || v.First {
				t.Errorf("use = %v by %s, first %v; want Allow, and the pre-check as the first", v.Verdict, v.Reason, v.First)
			}
			// Without a name it is unknown which repository the pod uses.
			if v := w.Check(t.Context(), tracker.Request{Pod: pod("mallory"), Image: img, Using: true}); !v.Allowed() {
				t.Errorf("use without a name = %v by %s; want Allow", v.Verdict, v.Reason)
			}
			w.SetRules(rules("AlwaysVerify"))
			w.want(w.check(pod("mallory"), app+":1", img), policy.Reverify, policy.NotProved)
			w.want(w.check(pod("user"), app+":1", img), policy.Allow, policy.Granted)
			w.EndPod("mallory")
			if got := w.GrantedPods(); len(got) != 2 {
				t.Errorf("GrantedPods = %v; want user and victim", got)
			}
		})
	}
}

// It is unknown whether the pod uses the repository with the mark.
func TestUseWithoutANameLeavesNoGrantByAMark(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.sync()
	w.want(w.Check(t.Context(), tracker.Request{Pod: pod("mallory"), Image: img, Using: true}), policy.Allow,
		policy.Preloaded)
	w.want(w.check(pod("user"), app+":1", img), policy.Allow, policy.Preloaded)
	always := testkit.Value(policy.New("AlwaysVerify", nil))(t)
	w.SetRules(tracker.Rules{Policy: always})
	w.want(w.check(pod("mallory"), app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("user"), app+":1", img), policy.Allow, policy.Granted)
}

// The clock was two hours ahead when the container was created, was corrected, and then the image was revoked.
func TestContainerFromTheFutureRestoresNoGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		img := image(id1, app+":1")
		w.runtime.set(img)
		w.pulled(pod("m"), app+":1", id1, "leaked")
		created := time.Now().Add(2 * time.Hour)
		w.revokeCredential("leaked")
		w.restart()
		w.Restore(pod("m"), imageref.New(app+":1"), img, created)
		w.want(w.check(pod("m"), app+":1", img), policy.Reverify, policy.NotProved)
	})
}
