package policyclient_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// scannedRules return a rule with conditions for all images of repo.test.
func scannedRules(tb testing.TB) *requirement.Set {
	tb.Helper()
	r := signedRule(tb, "a", "repo.test/**")
	r.Requirement.SignedBy.Statement = &requirement.Statement{
		PredicateType: "https://scan.test", Conditions: []requirement.Conditions{{}},
	}
	return requirement.NewSet("", &requirement.Policies{Rules: []requirement.Rule{r}})
}

// A background is a Renewal whose images are in use, and what it did.
type background struct {
	*testing.T
	*policyclient.Renewal
	verifier *fakeVerifier
	store    *records.Store
	state    *policyclient.EndorserState
	endorser *policyclient.Endorser
	hash     string

	mu     sync.Mutex
	used   []admission.UsedImage
	listed int
	events []string
}

func newBackground(t *testing.T, store *records.Store, change func(*policyclient.EndorserOptions)) *background {
	t.Helper()
	b := &background{
		T: t, verifier: &fakeVerifier{result: met}, store: store, state: policyclient.NewEndorserState(),
	}
	o := policyclient.EndorserOptions{Store: store, Verifier: b.verifier, State: b.state}
	if change != nil {
		change(&o)
	}
	set := scannedRules(t)
	b.endorser, b.hash = policyclient.NewEndorser(set, o), set.Rules()[0].Hash
	b.Renewal = policyclient.NewRenewal(policyclient.RenewalOptions{
		Stored: store.SelectedEndorsements,
		InUse: func(_ context.Context, wanted map[string]bool) (used []admission.UsedImage, _ error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.listed++
			for _, u := range b.used {
				if wanted[u.Image.ID] {
					used = append(used, u)
				}
			}
			return used, nil
		},
		Renewed:  func(records.Endorsement) { b.note("renewed") },
		Drifted:  func(d policyclient.Drift, ended bool) { b.note("drift %s ended=%v", d.Reason, ended) },
		Failed:   func(f policyclient.VerificationFailure) { b.note("failed %v", f.Err) },
		Panicked: func(any, []byte) { b.note("panicked") },
	})
	return b
}

func (b *background) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, fmt.Sprintf(format, args...))
}

func (b *background) noted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.events)
}

// uses makes pods use images; a name is namespace, image and ID.
func (b *background) uses(names ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = nil
	for _, n := range names {
		f := strings.Fields(n)
		b.used = append(b.used, admission.UsedImage{
			Image: admission.Image{ID: f[2], Requested: imageref.New(f[1])}, Namespace: f[0], Digests: []string{"sha256:hint"},
		})
	}
}

func (b *background) endorse(image, id string, lasts time.Duration) records.Endorsement {
	b.Helper()
	e := records.Endorsement{
		Pair:        records.Pair{ImageID: id, Repository: imageref.New(image).Repository()},
		Requirement: b.hash, At: time.Now(),
	}
	if lasts > 0 {
		e.Until = e.At.Add(lasts)
	}
	must(b, b.store.Endorse([]records.Endorsement{e}, nil))
	return e
}

// pass lets the loop of a daemon run for a time.
func (b *background) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(3 * time.Second) {
		b.Tick(b.Context(), b.endorser)
		synctest.Wait()
	}
}

func (b *background) happened(name string, want ...string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if fmt.Sprint(b.events) != fmt.Sprint(want) {
		b.Errorf("%s: %q; want %q", name, b.events, want)
	}
	b.events = nil
}

func inBackground(t *testing.T, change func(*policyclient.EndorserOptions), f func(b *background)) {
	t.Helper()
	store := openStore(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBackground(t, store, change)
		f(b)
		b.Wait()
	})
}

// An endorsement with an end is collected again in its last quarter, if a pod uses the image. A start then needs no
// pull.
func TestEndorsementsAreRenewedBeforeTheirEnd(t *testing.T) {
	inBackground(t, nil, func(b *background) {
		b.uses("team "+name+" "+id, "team "+name+" "+id, "other repo.test/team/app:2 "+id)
		old := b.endorse(name, id, 4*time.Hour)
		b.endorse("repo.test/team/unused", "sha256:2222", 4*time.Hour)
		b.endorse("repo.test/team/forever", "sha256:3333", 0)
		b.verifier.result.Until = old.Until // no newer statement yet
		b.pass(3 * time.Hour)
		b.happened("in the first three quarters")
		if n := b.verifier.requests(); n != 0 {
			b.Errorf("%d requests before the last quarter; want none", n)
		}
		b.pass(40 * time.Minute)
		if n := b.verifier.requests(); n < 1 || n > 4 {
			b.Errorf("%d requests in most of the last quarter, without a newer statement; want 1 to 4", n)
		}
		b.happened("without a newer statement")
		b.verifier.result.Until = old.Until.Add(4 * time.Hour)
		b.pass(19 * time.Minute)
		b.happened("with a newer statement", "renewed")
		for _, r := range b.verifier.asked {
			if !r.Background || !r.Credential.Anonymous() || r.Name != name || r.Digests[0] != "sha256:hint" {
				b.Errorf("request %+v; want one in the background, without a credential", r)
			}
		}
		if got, _ := b.store.Endorsed(old.Pair, b.hash); !got.Until.Equal(old.Until.Add(4 * time.Hour)) {
			b.Errorf("it counts until %v; want %v", got.Until, old.Until.Add(4*time.Hour))
		}
		b.verifier.requests()
		b.pass(10 * time.Minute)
		if d := verifyPull(b.endorser, app, "good"); !d.Admitted() || b.verifier.requests() != 0 {
			b.Errorf("a pull after the first end: %+v; want it admitted without a request", d)
		}
	})
}

// Containers are not listed all the time for an endorsement that has ended, and whose image no pod uses.
func TestUnusedImagesAreRarelyLookedFor(t *testing.T) {
	inBackground(t, nil, func(b *background) {
		b.endorse(name, id, 4*time.Hour)
		b.pass(6 * time.Hour)
		if b.listed < 1 || b.listed > 20 || b.verifier.requests() != 0 {
			b.Errorf("listed %d times in three hours; want 1 to 20, and no requests", b.listed)
		}
	})
}

// What happens between the beginning of a verification and its end wins.
func TestRenewalDoesNotOverwrite(t *testing.T) {
	for what, tc := range map[string]struct {
		meanwhile func(b *background, old records.Endorsement)
		left      bool
	}{
		"a revocation": {func(b *background, old records.Endorsement) {
			b.state.NoteRevocation()
			_, err := b.store.RevokeEndorsements(records.EndorsementSelection{ImageID: old.Pair.ImageID})
			must(b, err)
		}, false},
		"a revocation that waits for the store": {func(b *background, _ records.Endorsement) {
			b.state.NoteRevocation()
		}, true},
		"a deletion without a notice": {func(b *background, old records.Endorsement) {
			_, err := b.store.RevokeEndorsements(records.EndorsementSelection{ImageID: old.Pair.ImageID})
			must(b, err)
		}, false},
		"a newer endorsement": {func(b *background, old records.Endorsement) {
			old.At, old.Until = time.Now(), old.Until.Add(time.Minute)
			must(b, b.store.Endorse([]records.Endorsement{old}, nil))
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			inBackground(t, nil, func(b *background) {
				b.uses("team " + name + " " + id)
				old := b.endorse(name, id, time.Hour)
				b.verifier.result.Until = old.Until.Add(time.Hour)
				b.verifier.release = func(policyclient.VerifyRequest) {
					b.verifier.release = nil
					tc.meanwhile(b, old)
				}
				time.Sleep(55 * time.Minute)
				b.pass(time.Second)
				got, ok := b.store.Endorsed(old.Pair, b.hash)
				if ok != tc.left || got.Until.Equal(b.verifier.result.Until) {
					b.Errorf("left %v, until %v; want %v, and not the result of the verification", ok, got.Until, tc.left)
				}
				b.happened("events")
			})
		})
	}
}

// Every result of a recheck. Endorsements stay, and only what is about the image is drift.
func TestRecheckReportsDrift(t *testing.T) {
	hourly := func(o *policyclient.EndorserOptions) { o.Recheck = time.Hour }
	for reason, want := range map[string]bool{
		requirement.SignatureMissing: true, requirement.AttestationMissing: true, requirement.ConditionNotMet: true,
		requirement.IdentityMismatch: true, requirement.LimitExceeded: true,
		requirement.RegistryDenied: false, requirement.RegistryUnavailable: false,
	} {
		t.Run(reason, func(t *testing.T) {
			inBackground(t, hourly, func(b *background) {
				b.uses("team " + name + " " + id)
				e := b.endorse(name, id, 0)
				unused := b.endorse("repo.test/team/unused", "sha256:2222", 0)
				b.pass(90 * time.Minute)
				if n := b.verifier.requests(); n != 1 {
					b.Errorf("%d requests; want 1", n)
				}
				b.happened("met")
				b.verifier.result = unmet(reason)
				b.pass(2 * time.Hour)
				var events []string
				if want {
					events = []string{"drift " + reason + " ended=false"}
				}
				if reason == requirement.RegistryUnavailable {
					b.mu.Lock()
					b.events = nil
					b.mu.Unlock()
				}
				b.happened("unmet", events...)
				if d := b.Drift(); (len(d) == 1) != want || want && d[0].Message != "the sentence of pullgate-policyd" {
					b.Errorf("drift %+v; want %v", d, want)
				}
				for _, e := range []records.Endorsement{e, unused} {
					if _, ok := b.store.Endorsed(e.Pair, b.hash); !ok {
						b.Errorf("the endorsement of %v has ended", e.Pair)
					}
				}
				if d := b.Drift(); want && time.Since(d[0].Since) < time.Hour {
					b.Errorf("drift since %v; want the first of two rechecks", d[0].Since)
				}
				b.verifier.result = unmet(requirement.RegistryUnavailable)
				b.pass(time.Hour)
				if (len(b.Drift()) == 1) != want {
					b.Errorf("an outage changes what is known: %+v", b.Drift())
				}
				b.verifier.result = met
				b.pass(2 * time.Hour)
				if len(b.Drift()) != 0 {
					b.Errorf("met again: %+v", b.Drift())
				}
				for _, r := range b.verifier.asked {
					if !r.Background || r.ImageID != id {
						b.Errorf("request %+v; want one in the background about the image in use", r)
					}
				}
			})
		})
	}
}

// Drift ends if no pod uses the image any more, if its endorsement is gone, and if nothing is rechecked any more.
func TestDriftEnds(t *testing.T) {
	for what, end := range map[string]func(b *background){
		"unused": func(b *background) { b.uses() },
		"revoked": func(b *background) {
			_, err := b.store.RevokeEndorsements(records.EndorsementSelection{All: true})
			must(b, err)
		},
		"off":         func(b *background) { b.endorser = fixture(b, b.verifier, nil) },
		"no policies": func(b *background) { b.endorser = nil },
		"another requirement": func(b *background) {
			b.endorser = fixture(b, b.verifier, func(o *policyclient.EndorserOptions) {
				o.Store, o.Recheck = b.store, time.Hour
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			store := openStore(t)
			synctest.Test(t, func(t *testing.T) {
				b := newBackground(t, store, func(o *policyclient.EndorserOptions) { o.Recheck = time.Hour })
				b.uses("team " + name + " " + id)
				b.endorse(name, id, 0)
				b.verifier.result = unmet(requirement.SignatureMissing)
				b.pass(90 * time.Minute)
				if len(b.Drift()) != 1 {
					b.Fatalf("drift %+v; want one", b.Drift())
				}
				end(b)
				b.pass(time.Minute)
				if what == "unused" {
					b.pass(2 * time.Hour) // the next recheck finds that
				}
				if len(b.Drift()) != 0 {
					b.Errorf("drift %+v; want none", b.Drift())
				}
				b.happened("events", "drift SIGNATURE_MISSING ended=false", "drift SIGNATURE_MISSING ended=true")
				b.Wait()
			})
		})
	}
}

// Many images of one namespace, each of which takes long, do not delay that of another, and all have their turn. The
// requests are bounded, and one after the other.
func TestNamespacesTakeTurns(t *testing.T) {
	inBackground(t, func(o *policyclient.EndorserOptions) { o.Recheck = time.Hour }, func(b *background) {
		var used []string
		b.endorse("repo.test/victim", "sha256:ffff", 0)
		for i := range 60 {
			image, id := fmt.Sprintf("repo.test/a%d:1", i), fmt.Sprintf("sha256:%04d", i)
			b.endorse(image, id, 0)
			used = append(used, "attacker "+image+" "+id)
		}
		used = append(used, "victim repo.test/victim:1 sha256:ffff")
		b.uses(used...)
		var atOnce atomic.Int32
		b.verifier.release = func(r policyclient.VerifyRequest) {
			if n := atOnce.Add(1); n > 1 {
				b.Errorf("%d requests at the same time", n)
			}
			b.note("%s", r.ImageID)
			time.Sleep(20 * time.Second)
			atOnce.Add(-1)
		}
		b.pass(time.Hour + 6*time.Minute)
		asked := b.noted()
		if first := slices.Index(asked, "sha256:ffff"); first < 0 || first > 1 {
			b.Errorf("the other namespace was request %d of %d; want one of the first two", first, len(asked))
		}
		// It does not wait for all that has begun to wait before it either.
		before := len(asked)
		b.endorse("repo.test/late", "sha256:eeee", time.Second)
		b.uses(append(used, "late repo.test/late:1 sha256:eeee")...)
		b.pass(2 * time.Minute)
		asked = b.noted()
		if now := asked[before:min(before+6, len(asked))]; !slices.Contains(now, "sha256:eeee") {
			b.Errorf("another namespace was not among the next requests: %v", now)
		}
		b.uses(used...)
		b.pass(30 * time.Minute)
		asked = slices.DeleteFunc(b.noted(), func(id string) bool { return id == "sha256:eeee" || id == "renewed" })
		seen := map[string]bool{}
		for _, id := range asked {
			seen[id] = true
		}
		if len(seen) != 61 || len(asked) != 61 {
			b.Errorf("%d requests about %d images; want one for each of 61", len(asked), len(seen))
		}
	})
}

// Images that are due again before all others of their namespace had their turn do not come before these.
func TestImagesTakeTurns(t *testing.T) {
	inBackground(t, nil, func(b *background) {
		var used []string
		for i := range 10 {
			image, id := fmt.Sprintf("repo.test/a%d:1", i), fmt.Sprintf("sha256:%04d", i)
			b.endorse(image, id, 2*time.Minute)
			used = append(used, "team "+image+" "+id)
		}
		b.uses(used...)
		b.verifier.result = unmet(requirement.RegistryUnavailable)
		b.verifier.release = func(r policyclient.VerifyRequest) {
			b.note("%s", r.ImageID)
			time.Sleep(20 * time.Second)
		}
		b.pass(7 * time.Minute)
		seen := slices.DeleteFunc(b.noted(), func(event string) bool { return !strings.HasPrefix(event, "sha256:") })
		if slices.Sort(seen); len(slices.Compact(seen)) != len(used) {
			b.Errorf("%v were verified; want all %d", seen, len(used))
		}
	})
}

// A panic ends neither the process nor the work, and a stop ends a verification.
func TestThePanicOfARoundIsCaught(t *testing.T) {
	inBackground(t, func(o *policyclient.EndorserOptions) { o.Recheck = time.Hour }, func(b *background) {
		b.uses("team " + name + " " + id)
		b.endorse(name, id, 0)
		b.verifier.release = func(policyclient.VerifyRequest) { panic("a defect") }
		b.pass(90 * time.Minute)
		b.happened("panic", "panicked")
		b.verifier.release = nil
		b.verifier.err = errors.New("no answer")
		b.pass(time.Hour)
		b.happened("afterwards", "failed no answer")
		b.verifier.err = policyclient.ErrOtherPolicies
		b.pass(time.Hour)
		b.happened("while policy files are being changed")
		ctx, stop := context.WithCancel(b.Context())
		b.verifier.err = nil
		b.verifier.release = func(policyclient.VerifyRequest) { stop() }
		time.Sleep(time.Hour)
		b.Tick(ctx, b.endorser)
		b.Wait()
		b.happened("stopped")
	})
}

// Without rules, and without conditions or a recheck, nothing is done.
func TestNoBackgroundWorkIfItIsOff(t *testing.T) {
	b := newBackground(t, openStore(t), nil)
	plain := fixture(t, b.verifier, nil)
	for what, e := range map[string]*policyclient.Endorser{"no policies": nil, "no conditions": plain} {
		if n := testing.AllocsPerRun(100, func() { b.Tick(t.Context(), e) }); n != 0 {
			t.Errorf("%s: %v allocations; want none", what, n)
		}
	}
	if b.listed != 0 {
		t.Error("containers were listed")
	}
}
