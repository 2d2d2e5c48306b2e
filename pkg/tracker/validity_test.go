package tracker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A confirmed is the model's state of a credential: when a registry last confirmed it, whether a registry denied it
// since, and whether the Secret holds it.
type confirmed struct {
	at     time.Time
	denied bool
	held   bool
}

// At any time a proof allows a pod without a grant if and only if a registry confirmed the proof within the validity.
// The grace extends this if the registry is not asked and no registry has denied the credential since.
// Shows: 001-23
func TestProofCountsAsLongAsItIsValid(t *testing.T) {
	for range 5 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { overTime(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func overTime(t *testing.T, random *rand.Rand) {
	t.Helper()
	minutes := func(n int) time.Duration { return time.Duration(random.IntN(n)) * time.Minute }
	rules := tracker.Rules{Validity: time.Minute + minutes(90), Grace: minutes(60)}
	if random.IntN(8) == 0 {
		rules.Validity = 0
	}
	w := newWorld(t, tracker.Options{Rules: rules, VerifyUntracked: true})
	img := image(id1, app+":1")
	ref := records.SecretRef{UID: "u1", Namespace: "team-a", Name: "pull"}
	passwords := []string{"alice", "bob", "carol"}
	model := map[string]*confirmed{}
	var done []string
	for step := range 60 {
		pw := passwords[random.IntN(len(passwords))]
		var did string
		switch random.IntN(8) {
		case 0:
			pull := testkit.Value(w.BeginPull(t.Context(), imageref.New(app+":1"), img))(t)
			held, bySecret := []tracker.Secret{}, random.IntN(2) == 0
			if bySecret {
				held = []tracker.Secret{{Credential: w.id(pw), Ref: ref}}
				for other, m := range model {
					if m.held && other != pw {
						delete(model, other) // the Secret now holds another one
					}
				}
			}
			testkit.Value(pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent(pw), Secrets: held}))(t)
			was := model[pw]
			model[pw] = &confirmed{at: time.Now(), held: bySecret || was != nil && was.held}
			did = fmt.Sprintf("%s confirmed, by its Secret: %v", pw, bySecret)
		case 1:
			pull := testkit.Value(w.BeginPull(t.Context(), imageref.New(app+":1"), img))(t)
			testkit.Must(t, pull.Denied(img, w.sent(pw)))
			if m := model[pw]; m != nil {
				m.denied = true
			}
			did = pw + " denied"
		case 2:
			w.restart()
			did = "restart"
		case 3:
			testkit.Must(t, w.Flush())
			did = "flush"
		default:
			d := minutes(40)
			if random.IntN(2) == 0 {
				d = rules.Validity - time.Nanosecond*time.Duration(random.IntN(2))
			}
			time.Sleep(d)
			did = "advance " + d.String()
		}
		done = append(done, did)
		for i, pw := range passwords {
			for _, unasked := range []bool{false, true} {
				want := policy.NotProved
				if len(model) == 0 {
					want = policy.Untracked
				}
				if m := model[pw]; m != nil {
					age := time.Since(m.at)
					switch {
					case rules.Validity == 0 || age < rules.Validity:
						want = policy.Proved
					case unasked && !m.denied && age < rules.Validity+rules.Grace:
						want = policy.ProvedInGrace
					default:
						want = policy.ProofExpired
					}
				}
				if f, err := w.store.Describe(pairOf(id1, app)); err == nil &&
					want == policy.Untracked && f.Record != nil {
					want = policy.NotProved
				}
				r := asking(pod(fmt.Sprintf("%d-%d-%v", step, i, unasked)))
				r.Sent, r.Unasked = w.sent(pw), unasked
				v := w.Check(t.Context(), r)
				if v.Reason != want || v.Allowed() != (want == policy.Proved || want == policy.ProvedInGrace) ||
					v.InGrace != (want == policy.ProvedInGrace) {
					t.Fatalf("validity %v, grace %v: %s, unasked %v: %v by %s; want %s, after %q", rules.Validity, rules.Grace, pw,
						unasked, v.Verdict, v.Reason, want, done)
				}
			}
		}
	}
}

// The clock was set back after a proof was made: by its own time the proof would be valid for longer than allowed.
func TestProofFromTheFutureIsValidNoLongerThanOneFromNow(t *testing.T) {
	const validity, grace = 2 * time.Hour, time.Hour
	img := image(id1, app+":1")
	begin := func(t *testing.T, ahead time.Duration) *world {
		t.Helper()
		w := newWorld(t, tracker.Options{Rules: tracker.Rules{Validity: validity, Grace: grace}, VerifyUntracked: true})
		w.provedAt(w.id("alice"), time.Now().Add(ahead))
		return w
	}
	n := 0
	fresh := func(w *world) tracker.Verdict {
		n++
		return w.check(pod(fmt.Sprint(n)), app+":1", img, "alice")
	}
	for _, ahead := range []time.Duration{time.Nanosecond, time.Hour, 1000 * time.Hour} {
		for name, notice := range map[string]func(t *testing.T, w *world){
			"by a check":   func(_ *testing.T, w *world) { w.want(fresh(w), policy.Allow, policy.Proved) },
			"by a restart": func(_ *testing.T, w *world) { w.restart() },
			"by upkeep": func(t *testing.T, w *world) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Nanosecond)
				defer cancel()
				w.Run(ctx)
			},
		} {
			t.Run(fmt.Sprintf("%v/%s", ahead, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := begin(t, ahead)
					notice(t, w)
					noticed := time.Now()
					time.Sleep(validity - time.Minute - time.Second)
					w.want(fresh(w), policy.Allow, policy.Proved)
					time.Sleep(time.Until(noticed.Add(validity)))
					w.want(fresh(w), policy.Reverify, policy.ProofExpired)
				})
			})
		}
	}
}

// A denial by a registry counts, also if the clock was set back to before the proof.
func TestDenialBeforeAProofFromTheFutureEndsItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := tracker.Rules{Validity: 2 * time.Hour, Grace: time.Hour}
		w := newWorld(t, tracker.Options{Rules: rules, VerifyUntracked: true})
		img := image(id1, app+":1")
		w.provedAt(w.id("alice"), time.Now().Add(time.Hour))
		pull := testkit.Value(w.BeginPull(t.Context(), imageref.New(app+":1"), img))(t)
		testkit.Must(t, pull.Denied(img, w.sent("alice")))
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		w.Run(ctx) // sets the time of the proof back to the clock
		time.Sleep(2*time.Hour + time.Minute)
		r := asking(pod("a"))
		r.Sent, r.Unasked = w.sent("alice"), true
		w.want(w.Check(t.Context(), r), policy.Reverify, policy.ProofExpired)
	})
}

// The clock was set back after a Secret proved access, and then its content changed: the proof counts from now.
func TestProofFromTheFutureIsSetBackBeforeItIsRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{Rules: tracker.Rules{Validity: time.Hour}, VerifyUntracked: true})
		w.provedAt(w.id("old"), time.Now().Add(24*time.Hour), ref("u1"))
		holding := func(uid string) tracker.Request { return w.holding(uid, ref("u1"), "new") }
		w.want(w.Check(t.Context(), holding("a")), policy.Allow, policy.Proved)
		time.Sleep(time.Hour)
		w.want(w.Check(t.Context(), holding("b")), policy.Reverify, policy.ProofExpired)
	})
}

// A Secret may hold several credentials for one image. A proof by one of them does not make the others new.
func TestSecretThatStillHoldsTheCredentialIsNotRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{Rules: tracker.Rules{Validity: time.Hour}, VerifyUntracked: true})
		w.pulledWith("a", ref("u1"), "alice")
		time.Sleep(time.Hour)
		for i := range 3 {
			r := w.holding(fmt.Sprint(i), ref("u1"), "alice")
			r.Secrets = append(r.Secrets, tracker.Secret{Credential: w.id("bob"), Ref: ref("u1")})
			w.want(w.Check(t.Context(), r), policy.Reverify, policy.ProofExpired)
			f, err := w.store.Describe(pairOf(id1, app))
			if err != nil || len(f.Record.Proofs) != 1 || f.Record.Proofs[0].Credential != w.id("alice") {
				t.Fatalf("after %d judgements Lookup = %+v, %v; want alice's proof", i+1, f.Record, err)
			}
		}
	})
}

func ref(uid string) records.SecretRef {
	return records.SecretRef{UID: uid, Namespace: "team", Name: "pull"}
}

// What was proved at once does not end at once, and nothing is valid for longer than the rules say. A proof that is
// renewed ends at another part of its time.
func TestSpread(t *testing.T) {
	r := tracker.Rules{Validity: 24 * time.Hour, Spread: true}
	at := time.Now()
	ends := func(id string, at time.Time) time.Duration {
		p := records.Proof{Credential: credential.ID(id), LastProved: at}
		end := r.Expires(p)
		for d, want := range map[time.Duration]tracker.CredentialStatus{-1: tracker.Valid, 0: tracker.Expired} {
			if got := r.Status(&p, end.Add(d)); got != want {
				t.Fatalf("%v after it expires, the status is %v; want %v", d, got, want)
			}
		}
		return end.Sub(at)
	}
	const nodes, parts = 10_000, 10
	var perPart [parts]int
	for range nodes {
		d := ends(fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()), at)
		if d <= r.Validity*4/5 || d > r.Validity {
			t.Fatalf("a proof is valid for %v", d)
		}
		perPart[(r.Validity-d)*parts/(r.Validity/5)]++
	}
	for i, n := range perPart {
		if n < nodes/parts*8/10 || n > nodes/parts*12/10 {
			t.Errorf("%d of %d proofs end in part %d of %d; want about the same in each", n, nodes, i, parts)
		}
	}
	if a, b := ends("1f", at), ends("1f", at.Add(time.Hour)); a == b {
		t.Error("a renewed proof ends at the same part of its time")
	}
	if a, b := ends("1f", at), ends("1f", at.UTC()); a != b {
		t.Errorf("the same proof ends after %v and after %v", a, b)
	}
}
