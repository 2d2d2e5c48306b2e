package tracker_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Two concurrent pulls of one image, one with a good and one with a bad credential, never share a result.
func TestConcurrentPullsAreJudgedEachByItself(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	for round := range 200 {
		name := fmt.Sprintf("%s:%d", app, round)
		img := image(id1, name)
		good, bad := pod(fmt.Sprintf("good%d", round)), pod(fmt.Sprintf("bad%d", round))
		start := make(chan struct{})
		var wg sync.WaitGroup
		for who, ok := range map[tracker.Pod]bool{good: true, bad: false} {
			wg.Go(func() {
				<-start
				pull, err := w.BeginPull(t.Context(), imageref.New(name), tracker.Image{})
				if err != nil {
					t.Errorf("BeginPull = %v; want nil", err)
					return
				}
				if !ok {
					err = pull.Refused()
				} else {
					_, err = pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent("good"), Pod: who})
				}
				if err != nil {
					t.Errorf("end of the pull = %v; want nil", err)
				}
			})
		}
		close(start)
		wg.Wait()
		if v := w.check(good, name, img); !v.Allowed() {
			t.Fatalf("round %d: good pod = %v by %s; want Allow", round, v.Verdict, v.Reason)
		}
		if v := w.check(bad, name, img, "bad"); v.Allowed() {
			t.Fatalf("round %d: bad pod = %v by %s; want Reverify", round, v.Verdict, v.Reason)
		}
	}
	if got := w.intents(); len(got) != 0 {
		t.Errorf("intents left: %v; want none", got)
	}
}

// Events between the list of images and the marks of a scan decide whether the list can be used.
func TestScanMarksOnlyWhatNoOperationCanHaveBrought(t *testing.T) {
	for _, tc := range []struct {
		name   string
		during func(w *world)
		marked bool
	}{
		{"nothing", func(*world) {}, true},
		{"pull of another repository in progress", func(w *world) { w.begin("repo.test/other/app:1") }, true},
		{"pull of another repository is refused", func(w *world) { _ = w.begin("repo.test/other/app:1").Refused() }, true},
		{"pull of the repository in progress", func(w *world) { w.begin(app + ":1") }, false},
		{"pull of the repository has no known result", func(w *world) { _ = w.begin(app + ":1").Lost() }, false},
		{"pull of the repository is refused", func(w *world) { _ = w.begin(app + ":1").Refused() }, true},
		{"pull of the repository succeeds", func(w *world) { w.pulled(pod("alice"), app+":1", id1, "alice") }, false},
		{"pull of an invalid name in progress", func(w *world) { w.begin("Repo.test/App") }, false},
		{"pull of an invalid name is refused", func(w *world) { _ = w.begin("Repo.test/App").Refused() }, false},
		{"removal", func(w *world) { w.BeginRemoval()() }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{})
			w.runtime.set(image(id1, app+":1"))
			w.runtime.during = func() {
				w.runtime.mu.Lock()
				w.runtime.during = nil
				w.runtime.mu.Unlock()
				tc.during(w)
			}
			v := w.check(pod("bob"), app+":1", image(id1, app+":1"))
			if v.Allowed() != tc.marked {
				t.Errorf("Check = %v by %s; want Allow to be %v", v.Verdict, v.Reason, tc.marked)
			}
		})
	}
}

// A registry that never answers keeps a pull in progress for as long as its tenant wants.
func TestPullInProgressDoesNotStopMarksOfOtherRepositories(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id3, "repo.test/any:1"))
	w.sync()
	w.begin("tenant.test/endless:1")
	const system = "docker.io/rancher/coredns"
	w.runtime.set(image(id3, "repo.test/any:1"), image(id2, system+":new"), image(id1, app+":1"))
	w.want(w.check(pod("system"), system+":new", image(id2, system+":new")), policy.Allow, policy.Preloaded)
	const id4 = "sha256:4444444444444444444444444444444444444444444444444444444444444444"
	w.runtime.set(image(id4, "repo.test/second:1"), image(id2, system+":new"))
	got, err := w.accept(records.Selection{All: true}, false)
	if want := []records.Pair{pairOf(id4, "repo.test/second")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("AcceptMarks(all) = %v, %v; want %v, nil", got, err, want)
	}
}

// A pull that ends while image lists are compared keeps its record, although its image is in no list.
func TestPruneThatRacesWithAPullKeepsItsRecord(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.pulled(pod("old"), "repo.test/gone/app:1", id3, "alice")
	w.runtime.set(image(id2, "repo.test/any/app:1"))
	w.runtime.during = func() {
		w.runtime.mu.Lock()
		w.runtime.during = nil
		w.runtime.mu.Unlock()
		w.pulled(pod("alice"), app+":1", id1, "alice")
	}
	testkit.Must(t, w.Prune(t.Context()))
	w.want(w.check(pod("carol"), app+":1", image(id1, app+":1"), "alice"), policy.Allow, policy.Proved)
	w.want(w.check(pod("carol"), "repo.test/gone/app:1", image(id3, "repo.test/gone/app:1"), "alice"), policy.Reverify,
		policy.NotProved)
}

func TestPruneNeedsTwoEqualLists(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.pulled(pod("alice"), app+":1", id1, "alice")
	for name, lists := range map[string][2][]tracker.Image{
		"empty":  {nil, nil},
		"differ": {{image(id2, "repo.test/a:1")}, {image(id2, "repo.test/a:1"), image(id3, "repo.test/b:1")}},
	} {
		w.runtime.set(lists[0]...)
		w.runtime.during = func() { w.runtime.set(lists[1]...) }
		if err := w.Prune(t.Context()); err == nil {
			t.Errorf("%s: Prune = nil; want an error", name)
		}
	}
	w.runtime.err = errors.New("runtime is away")
	if err := w.Prune(t.Context()); err == nil {
		t.Error("Prune = nil while the runtime is away; want an error")
	}
	w.want(w.check(pod("carol"), app+":1", image(id1, app+":1"), "alice"), policy.Allow, policy.Proved)
}

// After any failure of the store images need proof, and exempt pods still run.
func TestStoreThatFailsOpensNothing(t *testing.T) {
	exempt := tracker.Rules{ExemptNamespaces: []string{"kube-system"}, ExemptStaticPods: true}
	w := newWorld(t, tracker.Options{Rules: exempt})
	img := image(id1, app+":1")
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.want(w.check(pod("alice"), app+":1", img, "alice"), policy.Allow, policy.Granted)
	pull := w.begin(app + ":2")
	w.close()

	w.want(w.check(pod("bob"), app+":1", img, "alice"), policy.Reverify, policy.RecordUnreadable)
	rules := w.Rules()
	lax := rules
	lax.Policy = testkit.Value(policy.New("NeverVerify", nil))(t)
	w.SetRules(lax)
	w.want(w.check(pod("bob"), app+":1", img, "alice"), policy.Reverify, policy.RecordUnreadable)
	w.SetRules(rules)
	w.want(w.check(tracker.Pod{UID: "u", Namespace: "kube-system"}, app+":1", img), policy.Allow, policy.ExemptNamespace)
	w.want(w.check(tracker.Pod{Static: true}, app+":1", img), policy.Allow, policy.ExemptStaticPod)
	if _, err := w.BeginPull(t.Context(), imageref.New(app+":3"), tracker.Image{}); !errors.Is(err, tracker.ErrNoIntent) {
		t.Errorf("BeginPull = %v; want ErrNoIntent", err)
	}
	before := w.Grants()
	v, err := pull.Proved(tracker.Proof{ImageID: id2, Sent: w.sent("alice"), Pod: pod("carol")})
	if err == nil || !v.Allowed() {
		t.Errorf("Proved = %v, %v; want Allow, the registry let the pod have it, and an error", v.Verdict, err)
	}
	if w.Grants() != before+1 {
		t.Errorf("%d grants; want %d: the pod gets its grant", w.Grants(), before+1)
	}
	if s, f := w.Settle(t.Context()), w.Flush(); s == nil || f == nil {
		t.Errorf("Settle = %v, Flush = %v on a closed store; want errors", s, f)
	}
	w.open()
	if got := w.intents(); !slices.Equal(got, []string{"team/app:2 unresolved"}) {
		t.Errorf("intents = %v; want the one whose record could not be written", got)
	}
	w.want(w.check(pod("dora"), app+":2", image(id2, app+":2"), "alice"), policy.Reverify, policy.Pulling)
}

func TestNamesThatAreNoneAreExemptFromNothing(t *testing.T) {
	long := strings.Repeat("a", 4085) + ".test"
	p := testkit.Value(policy.New("NeverVerifyAllowlistedImages", []string{"docker.io/library/*", long + "/*"}))(t)
	w := newWorld(t, tracker.Options{Rules: tracker.Rules{Policy: p, ExemptNamespaces: []string{"team-bob"}}})
	hex := strings.Repeat("7", 64)
	for _, name := range []string{hex, "Repo.test/App", "https://repo.test/app", "repo.test/app/", long + "/app:12"} {
		w.want(w.check(pod("bob"), name, image("sha256:"+hex, app+":1")), policy.Reverify, policy.ImageIDName)
	}
	w.want(w.check(pod("carol"), long+"/app:1", image("sha256:"+hex, long+"/app:1")), policy.Allow, policy.Allowlisted)
	w.want(w.check(pod("carol"), long+"/app:12", image("sha256:"+hex, long+"/app:12")), policy.Reverify,
		policy.ImageIDName)
	w.want(w.check(pod("bob"), "sha256:7", image("sha256:"+hex, app+":1")), policy.Allow, policy.ExemptNamespace)
	w.want(w.check(pod("carol"), "sha256:7", image("sha256:"+hex, app+":1")), policy.Reverify, policy.ImageIDName)
	w.want(w.check(pod("carol"), "busybox", image("sha256:"+hex, "docker.io/library/busybox:latest")), policy.Allow,
		policy.Allowlisted)
	w.want(w.check(pod("carol"), "busybox", image("sha256:"+hex, "docker.io/library/busybox:1")), policy.Reverify,
		policy.ImageIDName)
}

func TestCheckIDHidesOnlyNamesThatAreIDs(t *testing.T) {
	w := newWorld(t, tracker.Options{Rules: tracker.Rules{ExemptNamespaces: []string{"team-exempt"}}})
	for name, want := range map[string]policy.Verdict{
		"sha256:7": policy.Reverify, "sha256:": policy.Reverify, "7692": policy.Reverify,
		"docker.io/library/sha256:76": policy.Reverify, strings.Repeat("a", 64): policy.Reverify,
		"busybox:1": policy.Allow, app: policy.Allow, appD: policy.Allow, "cafe:latest": policy.Allow,
	} {
		if d := w.CheckID(pod("bob"), imageref.New(name)); d.Verdict != want {
			t.Errorf("CheckID(%q) = %v by %s; want %v", name, d.Verdict, d.Reason, want)
		}
	}
	if d := w.CheckID(pod("exempt"), imageref.New("sha256:7")); d.Verdict != policy.Allow {
		t.Errorf("CheckID of an exempt pod = %v; want Allow", d.Verdict)
	}
}

func TestAbsentImageIsNeitherAllowedNorGranted(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.want(w.check(pod("bob"), app+":1", tracker.Image{}, "alice"), policy.Reverify, policy.Absent)
	if got := w.Grants(); got != 0 {
		t.Errorf("%d grants; want none", got)
	}
}

func TestUnidentifiedPodGetsNoGrant(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(tracker.Pod{}, app+":1", id1, "alice")
	w.want(w.check(tracker.Pod{}, app+":1", image(id1, app+":1"), "alice"), policy.Allow, policy.Proved)
	w.want(w.check(tracker.Pod{}, app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
	if got := w.Grants(); got != 0 {
		t.Errorf("%d grants; want none", got)
	}
}

func TestUsesReachTheDiskWithAFlush(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.pulled(pod("alice"), app+":1", id1, "alice")
	before := lastUsed(w)
	w.check(pod("carol"), app+":1", image(id1, app+":1"), "alice")
	if got := lastUsed(w); got != before {
		t.Errorf("last used = %v before the flush; want it unchanged, %v", got, before)
	}
	testkit.Must(t, w.Flush())
	if got := lastUsed(w); got == before {
		t.Errorf("last used = %v after the flush; want it later", got)
	}
}

func lastUsed(w *world) string {
	all, _ := w.contents()
	return all[0].LastUsed.String() + all[0].Proofs[0].LastUsed.String()
}

// A lookup requests the images of the runtime only if a mark can result.
func TestScanRunsOnlyForWhatIsUntracked(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id1, app+":1"))
	w.pulled(pod("alice"), app+":1", id1, "alice")
	for range 3 {
		w.check(pod("bob"), app+":1", image(id1, app+":1"))
		w.check(pod("bob"), "repo.test/rival:1", image(id1, app+":1", "repo.test/rival:1"))
		w.check(pod("bob"), "sha256:1", image(id1, app+":1"))
	}
	if got := w.runtime.listed(); got != 0 {
		t.Errorf("%d image lists; want none", got)
	}
}

// Under each of the two rules one of the image's names is enough; under a mix of both possibly none.
func TestAJudgementSeesOldRulesOrNewOnes(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	var both []tracker.Rules
	for _, repository := range []string{"repo.test/a", "repo.test/b"} {
		p := testkit.Value(policy.New(string(policy.ModeNeverVerifyAllowlistedImages), []string{repository}))(t)
		both = append(both, tracker.Rules{Policy: p})
	}
	w.SetRules(both[0])
	img := image(id1, "repo.test/a:1", "repo.test/b:1")
	w.runtime.set(img)
	if err := w.Sync(t.Context()); err != nil { // marks both names, so that the allowlist exempts each separately
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				w.SetRules(both[i%2])
			}
		}
	})
	for range 2000 {
		if v := w.check(tracker.Pod{}, "", img); !v.Allowed() || v.Reason != policy.Allowlisted {
			t.Errorf("verdict %v by %s; want Allow, both rules say so", v.Verdict, v.Reason)
			break
		}
	}
	close(done)
	wg.Wait()
}
