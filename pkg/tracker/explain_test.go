package tracker_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// In any state Explain returns what Check returns afterwards, and changes nothing: no byte of the file, no grant, no
// time of use.
func TestExplainReturnsTheVerdictOfCheckAndChangesNothing(t *testing.T) {
	seeds := 20
	if testing.Short() || testkit.Raced { // there is one goroutine; make race runs all seeds without the detector
		seeds = 3
	}
	for range seeds {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { explainedOverTime(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// A state is everything that Explain must not change.
type state struct {
	File   [sha256.Size]byte
	Grants []tracker.Grant
	Uses   map[records.Pair]records.Use
	Holds  uint64
}

func (w *world) state() state {
	w.t.Helper()
	file, err := os.ReadFile(w.path)
	testkit.Must(w.t, err)
	all := w.SelectedGrants(func(tracker.Grant) bool { return true })
	return state{File: sha256.Sum256(file), Grants: all, Uses: w.Uses(), Holds: w.Holds()}
}

func explainedOverTime(t *testing.T, random *rand.Rand) {
	t.Helper()
	pick := func(n int) int { return random.IntN(n) }
	modes := policy.Modes()
	w := newWorld(t, tracker.Options{VerifyUntracked: pick(3) == 0})
	names := []string{app + ":1", app + ":2", "repo.test/other:1", app + ":1", app + ":2", app + ":1", id1, "UPPER"}
	images := []tracker.Image{
		{},
		image(id1, app+":1", "repo.test/other:1"), image(id2, app+":2", "repo.test/third:1"),
		image(id1, app+":1"),
	}
	passwords := []string{"alice", "bob", "carol"}
	ref := func() records.SecretRef {
		return records.SecretRef{UID: fmt.Sprintf("u%d", pick(2)), Namespace: "team", Name: "pull"}
	}
	someSecret := func() tracker.Secret {
		return tracker.Secret{Credential: w.id(passwords[pick(3)]), Ref: ref()}
	}
	for step := range 120 {
		switch pick(13) {
		case 0:
			mode := modes[pick(len(modes))]
			var list []string
			if mode == policy.ModeNeverVerifyAllowlistedImages {
				list = []string{"repo.test/other"}
			}
			p := testkit.Value(policy.New(string(mode), list))(t)
			w.SetRules(tracker.Rules{
				Policy: p, ExemptStaticPods: pick(2) == 0, ExemptNamespaces: []string{"team-exempt"},
				Validity: time.Duration(pick(3)) * time.Hour, Grace: time.Duration(pick(2)) * time.Hour,
			})
		case 1, 2, 3:
			pull, err := w.BeginPull(t.Context(), imageref.New(names[pick(3)]), images[pick(4)])
			testkit.Must(t, err)
			proof := tracker.Proof{ImageID: []string{id1, id2}[pick(2)], Pod: tracker.Pod{}}
			if pick(4) > 0 {
				pw := passwords[pick(3)]
				proof.Sent = w.sent(pw)
				if pick(2) == 0 {
					proof.Secrets = []tracker.Secret{{Credential: w.id(pw), Ref: ref()}}
				}
			}
			switch pick(6) {
			case 0:
				err = pull.Lost()
			case 1:
				err = pull.Denied(images[pick(4)], w.sent(passwords[pick(3)]))
			default:
				_, err = pull.Proved(proof)
			}
			testkit.Must(t, err)
		case 4:
			w.runtime.set(images[1+pick(3)])
		case 5:
			time.Sleep(time.Duration(pick(90)) * time.Minute)
		case 6:
			w.revokes(records.Revocation{Repository: []string{app, "repo.test/other"}[pick(2)]})
		case 7:
			_, _ = w.ForgetMarks(t.Context(), records.Selection{ImageID: []string{id1, id2}[pick(2)]}, false)
		case 8:
			_, _ = w.accept(records.Selection{ImageID: []string{id1, id2}[pick(2)]}, false)
		case 9:
			done := w.BeginRemoval()
			if pick(2) == 0 {
				_ = w.Prune(t.Context())
			}
			if pick(3) > 0 {
				done()
			} else {
				defer done()
			}
		case 10: // the clock was set back: a proof from the future
			w.provedAt(w.id(passwords[pick(3)]), time.Now().Add(time.Hour))
		case 11:
			w.EndPod(fmt.Sprintf("pod-%d", pick(20)))
		case 12:
			if pick(3) == 0 {
				w.restart()
			}
		}
		r := tracker.Request{
			Name: imageref.New(names[pick(len(names))]), Image: images[pick(4)], Unasked: pick(2) == 0,
			Substituted: pick(8) == 0,
			Pod: tracker.Pod{
				UID: fmt.Sprintf("pod-%d", pick(20)), Namespace: []string{"team", "team-exempt"}[pick(12)/11],
				Static: pick(12) == 0,
			},
		}
		switch {
		case pick(6) == 0:
			r.Name = imageref.Ref{}
		case len(r.Image.Names) > 0 && pick(8) > 0:
			r.Name = r.Image.Names[0]
		}
		for range pick(3) {
			r.Secrets = append(r.Secrets, someSecret())
		}
		before := w.state()
		e := w.Explain(t.Context(), r)
		if diff := cmp.Diff(before, w.state()); diff != "" {
			t.Fatalf("step %d: Explain(%+v) changed something:\n%s", step, r, diff)
		}
		v := w.Check(t.Context(), r)
		if diff := cmp.Diff(v, e.Verdict); diff != "" {
			t.Fatalf("step %d: Explain(%+v) differs from Check after it (-Check +Explain):\n%s", step, r, diff)
		}
		if len(e.Statuses) != len(r.Secrets) && e.Reason != policy.Absent {
			t.Fatalf("step %d: %d standings of %d Secrets", step, len(e.Statuses), len(r.Secrets))
		}
	}
}
