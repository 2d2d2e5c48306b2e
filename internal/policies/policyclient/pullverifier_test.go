package policyclient_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const (
	id   = "sha256:1111"
	name = "repo.test/team/app:1"
)

// A verifier answers every request with the same result, once release allows it.
type fakeVerifier struct {
	result  requirement.Result
	byUser  map[string]requirement.Result // other results, by password
	err     error
	release func(r policyclient.VerifyRequest)

	mu    sync.Mutex
	asked []policyclient.VerifyRequest
}

func (v *fakeVerifier) Verify(ctx context.Context, r policyclient.VerifyRequest) (a requirement.Report, _ error) {
	v.mu.Lock()
	v.asked = append(v.asked, r)
	v.mu.Unlock()
	if v.release != nil {
		v.release(r)
	}
	if ctx.Err() != nil {
		return a, ctx.Err()
	}
	for _, hash := range r.Requirements {
		result := v.result
		if other, ok := v.byUser[r.Credential.Password]; ok {
			result = other
		}
		result.Requirement = hash
		a.Results = append(a.Results, result)
	}
	return a, v.err
}

// requests returns the number of requests since the last call.
func (v *fakeVerifier) requests() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := len(v.asked)
	v.asked = nil
	return n
}

func signedRule(tb testing.TB, key, images string) requirement.Rule {
	tb.Helper()
	p, err := requirement.ParsePattern(images, requirement.KyvernoSyntax)
	must(tb, err)
	by := &requirement.Signer{Key: &requirement.Key{Public: []byte(key), Hash: "sha256"}}
	return requirement.Rule{
		Policy: "images", Name: "by-" + key, Images: []requirement.Pattern{p},
		Requirement: &requirement.Requirement{SignedBy: by},
	}
}

func openStore(tb testing.TB) *records.Store {
	tb.Helper()
	s, _, err := records.Open(filepath.Join(tb.TempDir(), "records.db"), records.Options{})
	must(tb, err)
	tb.Cleanup(func() { must(tb, s.Close()) })
	return s
}

// fixture returns an Endorser with a rule for all images of repo.test, and what it uses.
func fixture(tb testing.TB, v *fakeVerifier, change func(*policyclient.EndorserOptions)) *policyclient.Endorser {
	tb.Helper()
	o := policyclient.EndorserOptions{Store: openStore(tb), Verifier: v, State: policyclient.NewEndorserState()}
	if change != nil {
		change(&o)
	}
	return policyclient.NewEndorser(rules(tb), o)
}

func rules(tb testing.TB) *requirement.Set {
	tb.Helper()
	return requirement.NewSet("", &requirement.Policies{Rules: []requirement.Rule{signedRule(tb, "a", "repo.test/*")}})
}

// expire writes an endorsement that has expired.
func expire(tb testing.TB, s *records.Store) {
	tb.Helper()
	must(tb, s.Endorse([]records.Endorsement{{
		Pair:        records.Pair{ImageID: id, Repository: "repo.test/team/app"},
		Requirement: rules(tb).Rules()[0].Hash, At: time.Now().Add(-2 * time.Hour),
	}}, nil))
}

func containerOf(namespace, image string) admission.Subject {
	ref := imageref.New(image)
	return admission.Subject{
		Pod: admission.Pod{Namespace: namespace}, Container: &admission.Container{Name: "main", Image: admission.Set(image)},
		Image: admission.Image{ID: id, Requested: ref},
	}
}

var app = containerOf("team", name)

func pulled(password string) admission.Pull {
	return admission.Pull{Login: admission.Login{Username: "tenant", Password: password}}
}

// verifyPull returns the answer to a pull.
func verifyPull(e *policyclient.Endorser, s admission.Subject, password string) admission.Decision {
	return admission.DecisionOf(e.PullVerifier(pulled(password)).Validate(context.Background(), s))
}

var met = requirement.Result{Met: true, Signers: []string{"key a"}, Digest: "sha256:signed"}

func unmet(reason string) requirement.Result {
	return requirement.Result{Reason: reason, Message: "the sentence of pullgate-policyd"}
}

// Shows: 002-31
func TestEveryResult(t *testing.T) {
	type want struct {
		answer  admission.Answer
		reason  admission.Reason
		outcome string
		again   int // requests of a second pull
	}
	denied := func(reason admission.Reason) want { return want{admission.Deny, reason, policyclient.Denied, 0} }
	unavailable := want{admission.Unverified, admission.EndorsementMissing, policyclient.Unavailable, 1}
	for name, tc := range map[string]struct {
		result requirement.Result
		err    error
		want   want
	}{
		"met":          {met, nil, want{admission.Admit, "", policyclient.Endorsed, 0}},
		"missing":      {unmet("SIGNATURE_MISSING"), nil, denied(admission.SignatureMissing)},
		"invalid":      {unmet("SIGNATURE_INVALID"), nil, denied(admission.SignatureInvalid)},
		"identity":     {unmet("IDENTITY_MISMATCH"), nil, denied(admission.IdentityMismatch)},
		"content":      {unmet("CONTENT_MISMATCH"), nil, denied(admission.ContentMismatch)},
		"limit":        {unmet("LIMIT_EXCEEDED"), nil, denied(admission.SignatureMissing)},
		"denied":       {unmet("REGISTRY_DENIED"), nil, denied(admission.SignatureMissing)},
		"unavailable":  {unmet("REGISTRY_UNAVAILABLE"), nil, unavailable},
		"not reached":  {met, policyclient.ErrNotReached, unavailable},
		"timed out":    {met, policyclient.ErrTimedOut, unavailable},
		"other folder": {met, policyclient.ErrOtherPolicies, unavailable},
		"lost":         {met, policyclient.ErrLost, unavailable},
		"failed":       {met, policyclient.ErrFailed, unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			v := &fakeVerifier{result: tc.result, err: tc.err}
			var outcomes []string
			e := fixture(t, v, func(o *policyclient.EndorserOptions) {
				o.Outcome = func(s string) { outcomes = append(outcomes, s) }
			})
			d := verifyPull(e, app, "good")
			reason, text := d.Refusal()
			outcome := strings.Join(outcomes, " ")
			after := decide(t, e, app)
			v.requests()
			verifyPull(e, app, "good")
			if got := (want{d.Answer, reason, outcome, v.requests()}); got != tc.want {
				t.Errorf("%+v; want %+v", got, tc.want)
			}
			if d.Answer == admission.Deny && !strings.Contains(text, "the sentence of pullgate-policyd; required: key sha256:") {
				t.Errorf("%q does not say why and what is required", text)
			}
			if after.Admitted() != d.Admitted() || d.Admitted() && (after.Findings[0].Digest != "sha256:signed" ||
				len(after.Findings[0].Signers) != 1) {
				t.Errorf("the container: %+v; want the answer to the pull, with digest and signer", after)
			}
		})
	}
}

// A denial counts 10 s, and for no other credential: what a registry answers to one tenant does not lock out another.
func TestDenialsAreOfOneCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVerifier{result: unmet("SIGNATURE_MISSING")}
		e := fixture(t, v, nil)
		for _, tc := range []struct {
			after    time.Duration
			password string
			asks     int
		}{{0, "alice", 1}, {9 * time.Second, "alice", 0}, {0, "bob", 1}, {0, "alice", 0}, {2 * time.Second, "alice", 1}} {
			time.Sleep(tc.after)
			if d := verifyPull(e, app, tc.password); d.Answer != admission.Deny {
				t.Errorf("%+v: %+v; want a denial", tc, d)
			}
			if n := v.requests(); n != tc.asks {
				t.Errorf("%+v: %d requests", tc, n)
			}
		}
		v.result = met
		if d := verifyPull(e, app, "carol"); !d.Admitted() {
			t.Errorf("another credential with a signature: %+v; want it admitted", d)
		}
		if d := verifyPull(e, app, "alice"); !d.Admitted() || v.requests() != 1 {
			t.Errorf("with the endorsement: %+v; want it admitted whatever was denied before", d)
		}
	})
}

// What a registry answers to one credential does not end an endorsement that another one has got in the meantime.
func TestADenialLeavesANewerEndorsement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		denied := make(chan struct{})
		v := &fakeVerifier{
			result: met, byUser: map[string]requirement.Result{"bob": unmet("SIGNATURE_MISSING")},
			release: func(r policyclient.VerifyRequest) {
				if r.Credential.Password == "bob" {
					<-denied
				}
			},
		}
		e := fixture(t, v, nil)
		var all sync.WaitGroup
		all.Go(func() { verifyPull(e, app, "bob") })
		synctest.Wait()
		if d := verifyPull(e, app, "alice"); !d.Admitted() {
			t.Errorf("alice: %+v; want it admitted", d)
		}
		close(denied)
		all.Wait()
		if d := decide(t, e, app); !d.Admitted() {
			t.Errorf("the image of alice after the denial of bob: %+v; want it admitted", d)
		}
	})
}

// A tenant whose registry is slow does not delay the verifications of another namespace.
func TestSlowTenantsDelayOnlyThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		v := &fakeVerifier{result: met, release: func(r policyclient.VerifyRequest) {
			if strings.Contains(r.Name, "slow") {
				<-slow
			}
		}}
		e := fixture(t, v, nil)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() { verifyPull(e, containerOf("mallory", fmt.Sprintf("repo.test/slow/app-%d:1", i)), "good") })
		}
		synctest.Wait()
		if n := v.requests(); n != 2 {
			t.Errorf("%d verifications at the same time; want 2", n)
		}
		if d := verifyPull(e, app, "good"); !d.Admitted() {
			t.Errorf("another namespace: %+v; want it admitted at once", d)
		}
		// A caller that ends while it waits gets an answer at once.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		waiting := containerOf("mallory", "repo.test/slow/another:1")
		if got := e.PullVerifier(pulled("good")).Validate(ctx, waiting); got[0].Answer != admission.Unverified {
			t.Errorf("a canceled pull: %+v; want Unverified", got)
		}
		close(slow)
		all.Wait()
		if n := v.requests(); n != 19 {
			t.Errorf("%d further verifications; want 18, and that of the other namespace", n)
		}
	})
}

func TestPullsWithDifferentCredentialsDoNotShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		v := &fakeVerifier{result: met, release: func(policyclient.VerifyRequest) { <-release }}
		e := fixture(t, v, nil)
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				if d := verifyPull(e, app, fmt.Sprint(i%2)); !d.Admitted() {
					t.Errorf("%+v; want it admitted", d)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		if n := v.requests(); n != 2 {
			t.Errorf("%d requests; want one for each credential", n)
		}
	})
}

// The caller ends while it waits for pullgate-policyd: the endorsement is written nevertheless.
func TestAVerificationCompletesWithoutItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	v := &fakeVerifier{result: met, release: func(policyclient.VerifyRequest) { cancel() }}
	e := fixture(t, v, nil)
	e.PullVerifier(pulled("good")).Validate(ctx, app)
	if d := decide(t, e, app); !d.Admitted() {
		t.Errorf("%+v; want the endorsement", d)
	}
}

// A verification that panics fails for all that wait, and leaves nothing locked.
func TestAPanicEndsTheVerification(t *testing.T) {
	v := &fakeVerifier{result: met, release: func(policyclient.VerifyRequest) { panic("defect") }}
	e := fixture(t, v, nil)
	chain := admission.New(admission.Rules{Validators: []admission.Named{{Name: "v", Validator: e}}}, nil)
	d := chain.Ask(t.Context(), admission.Named{Name: "v", Validator: e.PullVerifier(pulled("good"))}, app)
	if d.Admitted() || d.Findings[0].Reason != admission.ValidatorFailed {
		t.Errorf("%+v; want VALIDATOR_FAILED", d)
	}
	v.release = nil
	if d := verifyPull(e, app, "good"); !d.Admitted() {
		t.Errorf("afterwards: %+v; want it admitted", d)
	}
}

func TestEndorserReadsOtherPoliciesAgain(t *testing.T) {
	old, current := &fakeVerifier{err: policyclient.ErrOtherPolicies}, &fakeVerifier{result: met}
	next := fixture(t, current, func(o *policyclient.EndorserOptions) { o.PolicyHash = "next" })
	e := fixture(t, old, func(o *policyclient.EndorserOptions) {
		o.Successor = func(context.Context) *policyclient.Endorser { return next }
	})
	if d := verifyPull(e, app, "good"); !d.Admitted() || old.requests() != 1 || current.requests() != 1 {
		t.Errorf("%+v; want the answer by the policies that are read again", d)
	}
}

// A faulty store fails each call in turn. No failure admits, and none prevents the next verification.
type faulty struct {
	*records.Store

	calls, fail int
}

var errDisk = errors.New("disk full")

func (f *faulty) Endorse(all []records.Endorsement, mayReplace func(records.Endorsement) bool) error {
	if f.calls++; f.calls == f.fail {
		return errDisk
	}
	return f.Store.Endorse(all, mayReplace)
}

func (f *faulty) RevokeEndorsements(of records.EndorsementSelection) ([]records.Endorsement, error) {
	if f.calls++; f.calls == f.fail {
		return nil, errDisk
	}
	return f.Store.RevokeEndorsements(of)
}

// Only what is not reached forgives an expired endorsement: a tenant can choose an image whose verification takes long.
func TestATimeoutExtendsNoEndorsement(t *testing.T) {
	for err, want := range map[error]bool{
		policyclient.ErrTimedOut: false, policyclient.ErrLost: false,
		policyclient.ErrFailed: false, policyclient.ErrNotReached: true,
	} {
		store := openStore(t)
		e := fixture(t, &fakeVerifier{err: err}, func(o *policyclient.EndorserOptions) {
			o.Store, o.Validity, o.Grace = store, time.Hour, 24*time.Hour
		})
		expire(t, store)
		if d := verifyPull(e, app, "good"); d.Admitted() != want {
			t.Errorf("%v: %+v; want admitted %v", err, d, want)
		}
	}
}

func TestFaultsOfTheStore(t *testing.T) {
	for fail := 1; ; fail++ {
		v := &fakeVerifier{result: met}
		f := &faulty{Store: openStore(t), fail: fail}
		e := fixture(t, v, func(o *policyclient.EndorserOptions) {
			o.Store, o.Validity, o.Grace = f, time.Hour, 24*time.Hour
		})
		expire(t, f.Store)
		v.result = unmet("SIGNATURE_MISSING") // ends the expired endorsement
		if d := verifyPull(e, app, "good"); d.Answer != admission.Deny {
			t.Errorf("fault %d: %+v; want a denial", fail, d)
		}
		v.result = unmet("REGISTRY_UNAVAILABLE")
		if d := verifyPull(e, app, "other"); d.Answer != admission.Unverified {
			t.Errorf("fault %d: an outage after a denial: %+v; want Unverified", fail, d)
		}
		v.result = met
		d := verifyPull(e, app, "good2")
		if container := decide(t, e, app); container.Admitted() != d.Admitted() {
			t.Errorf("fault %d: pull %v, container %v", fail, d.Answer, container.Answer)
		}
		if d = verifyPull(e, app, "good3"); !d.Admitted() {
			t.Errorf("fault %d: %+v; want it admitted in the end", fail, d)
		}
		if f.calls < fail {
			break
		}
	}
}
