package tracker_test

import (
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// namespaceWorld is a world with a runtime that may hold credentials for namespaces, and has the image of app.
func namespaceWorld(t *testing.T) (*world, tracker.Image) {
	t.Helper()
	w := newWorld(t, tracker.Options{RuntimeCredentialsPerNamespace: true})
	return w, image(id1, app+":1")
}

func inNamespace(uid, namespace string) tracker.Pod {
	return tracker.Pod{UID: uid, Namespace: namespace}
}

func TestPullWithoutCredentialProvesForItsNamespaceAlone(t *testing.T) {
	w, img := namespaceWorld(t)
	v := w.pulled(inNamespace("a1", "team-a"), app+":1", id1, "")
	w.want(v, policy.Allow, policy.Proved)
	if id := w.key.NamespaceID("team-a"); v.Credential != id {
		t.Errorf("credential of the verdict = %q; want %q, that of the namespace", v.Credential, id)
	}
	w.restart()
	w.want(w.check(inNamespace("a2", "team-a"), app+":1", img), policy.Allow, policy.Proved)
	w.want(w.check(inNamespace("b1", "team-b"), app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(inNamespace("b1", "team-b"), app+":1", img, ""), policy.Reverify, policy.NotProved)
	w.want(w.check(tracker.Pod{}, app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(inNamespace("a3", "team-a"), app+":1", img, ""), policy.Allow, policy.Proved)
	// Another repository of the image needs its own proof.
	other := image(id1, app+":1", "repo.test/other:1")
	w.want(w.check(inNamespace("a4", "team-a"), "repo.test/other:1", other), policy.Reverify, policy.Untracked)
	// Each namespace needs its own proof.
	w.want(w.pulled(inNamespace("b1", "team-b"), app+":1", id1, ""), policy.Allow, policy.Proved)
	w.want(w.check(inNamespace("b2", "team-b"), app+":1", img), policy.Allow, policy.Proved)
	w.want(w.check(inNamespace("c1", "team-c"), app+":1", img), policy.Reverify, policy.NotProved)
}

// A request with a credential asks whether that credential is good. A proof of the namespace does not answer this.
func TestProofOfANamespaceAnswersForNoCredential(t *testing.T) {
	w, img := namespaceWorld(t)
	w.pulled(inNamespace("a1", "team-a"), app+":1", id1, "")
	w.want(w.check(inNamespace("a2", "team-a"), app+":1", img, "bad"), policy.Reverify, policy.NotProved)
	w.want(w.pulled(inNamespace("b1", "team-b"), app+":1", id1, "bob"), policy.Allow, policy.Proved)
	w.want(w.check(inNamespace("c1", "team-c"), app+":1", img, "bob"), policy.Allow, policy.Proved)
	w.want(w.check(inNamespace("b2", "team-b"), app+":1", img), policy.Reverify, policy.NotProved)
}

// Such a runtime sends only user names with passwords. A credential without a user name therefore proves only what the
// namespace's credential proves.
func TestCredentialWithoutUserNameProvesForItsNamespace(t *testing.T) {
	w, _ := namespaceWorld(t)
	token, a1 := credential.New(credential.Login{IdentityToken: "token"}), inNamespace("a1", "team-a")
	pull := w.begin(app + ":1")
	testkit.Value(pull.Proved(tracker.Proof{ImageID: id1, Sent: w.Sent(token, a1), Pod: a1}))(t)
	ask := func(p tracker.Pod) tracker.Verdict {
		r := asking(p)
		r.Sent = w.Sent(token, p)
		return w.Check(t.Context(), r)
	}
	w.want(ask(inNamespace("b1", "team-b")), policy.Reverify, policy.NotProved)
	w.want(ask(inNamespace("a2", "team-a")), policy.Allow, policy.Proved)
}

// The runtime selects the namespace's credential by the pod's sandbox. A pull without a sandbox uses only the node's
// credentials.
func TestPullWithoutPodOpens(t *testing.T) {
	w, img := namespaceWorld(t)
	w.want(w.pulled(tracker.Pod{}, app+":1", id1, ""), policy.Allow, policy.Open)
	w.want(w.check(inNamespace("b1", "team-b"), app+":1", img), policy.Allow, policy.Open)
}

func TestNamespacesCountOnlyWithTheSetting(t *testing.T) {
	w, img := namespaceWorld(t)
	w.pulled(inNamespace("a1", "team-a"), app+":1", id1, "")
	w.options.RuntimeCredentialsPerNamespace = false
	w.restart()
	w.want(w.check(inNamespace("a2", "team-a"), app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.pulled(inNamespace("a1", "team-a"), app+":1", id1, ""), policy.Allow, policy.Open)
	w.want(w.check(inNamespace("b1", "team-b"), app+":1", img), policy.Allow, policy.Open)
}

func TestRevocationByNamespaceEndsItsProof(t *testing.T) {
	for _, bySecret := range []bool{true, false} {
		w, img := namespaceWorld(t)
		by := records.Revocation{Credential: w.key.NamespaceID("team-a")}
		if bySecret {
			by = records.Revocation{Secret: records.SecretRef{Namespace: "team-a"}}
		}
		w.pulled(inNamespace("a1", "team-a"), app+":1", id1, "")
		w.pulled(inNamespace("b1", "team-b"), app+":1", id1, "")
		w.check(inNamespace("a2", "team-a"), app+":1", img)
		if gone := w.revokes(by); len(gone.Proofs) != 1 || len(gone.Grants) != 2 {
			t.Errorf("Revoke(%+v) = %+v; want the proof of team-a and the grants of its two pods", by, gone)
		}
		w.want(w.check(inNamespace("a2", "team-a"), app+":1", img), policy.Reverify, policy.NotProved)
		w.want(w.check(inNamespace("b2", "team-b"), app+":1", img), policy.Allow, policy.Proved)
	}
}

func TestProofOfANamespaceExpiresAndLosesItsGrace(t *testing.T) {
	w, img := namespaceWorld(t)
	w.SetRules(tracker.Rules{Validity: time.Hour, Grace: time.Hour})
	w.provedAt(w.key.NamespaceID("team-a"), time.Now().Add(-90*time.Minute))
	r := asking(inNamespace("", "team-a"))
	r.Unasked = true
	w.want(w.Check(t.Context(), r), policy.Allow, policy.ProvedInGrace)
	pull := testkit.Value(w.BeginPull(t.Context(), imageref.New(app+":1"), img))(t)
	testkit.Must(t, pull.Denied(img, w.Sent(credential.Credential{}, inNamespace("a1", "team-a"))))
	w.want(w.Check(t.Context(), r), policy.Reverify, policy.ProofExpired)
}

func TestExplainOfANamespacesProof(t *testing.T) {
	w, _ := namespaceWorld(t)
	w.pulled(inNamespace("a1", "team-a"), app+":1", id1, "")
	e := w.Explain(t.Context(), asking(inNamespace("", "team-a")))
	w.want(e.Verdict, policy.Allow, policy.Proved)
	want := []records.SecretRef{{Namespace: "team-a"}}
	testkit.Equal(t, "what the proof is from", e.Known.Record.Proofs[0].Secrets, want)
	if !want[0].OfNamespace() || (records.SecretRef{Namespace: "team-a", Name: "pull"}).OfNamespace() {
		t.Error("OfNamespace does not distinguish a namespace and a Secret")
	}
}
