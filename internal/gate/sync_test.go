package gate_test

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A runtime does not send a list that is too large; five images with a USER of 4 MiB are enough.
func tooLarge(method string) error {
	if method == "ListImages" {
		return status.Error(codes.ResourceExhausted, "trying to send message larger than max (20448734 vs. 16777216)")
	}
	return nil
}

// running returns a proxy for a node on which a pod of alice runs app.
func running(t *testing.T) (p *proxy, alice *criproxytest.Pod) {
	t.Helper()
	p, alice = newProxyOfAlice(t, tracker.Options{}, exact())
	p.must(p.createAndStart(alice, id1, app))
	return p, alice
}

func TestImageListThatIsTooLargeDeniesNoPod(t *testing.T) {
	p, alice := running(t)
	p.serves("repo.test/team/old:1", "good", img(id2))
	p.MustPull(alice, "repo.test/team/old:1", "good")
	p.runtime.Do(func(r *criproxytest.Runtime) { r.Fail = tooLarge })
	p.restart()
	p.wantPrecheck(alice, app, id1, "pre-check of a running pod after a restart")
	if p.Precheck(p.Pod("mallory"), app) != "" {
		t.Error("another pod may use the image")
	}
	if !p.gate.Synced() {
		t.Error("not synced with the runtime")
	}
	// Proofs are deleted with their images.
	p.runtime.SetImages(img(id1, app))
	p.wantCode(p.tracker.Prune(t.Context()), codes.OK, "Prune")
	proved := func() (image1, image2 int) {
		n := map[string]int{}
		for id, repository := range map[string]string{id1: "repo.test/team/app", id2: "repo.test/team/old"} {
			f := testkit.Value(p.store.Describe(records.Pair{ImageID: id, Repository: repository}))(p.t)
			if f.Record != nil {
				n[id] = len(f.Record.Proofs)
			}
		}
		return n[id1], n[id2]
	}
	if one, two := proved(); one != 1 || two != 0 {
		t.Errorf("%d proofs of the image that is there, %d of the other; want 1 and 0", one, two)
	}
	// As with a list, the answer does not count if the runtime has none of the recorded images.
	p.runtime.SetImages(img(id3, "repo.test/any:1"))
	if err := p.tracker.Prune(t.Context()); err == nil {
		t.Error("Prune = nil for a runtime that has no image with a record; want an error")
	}
	if one, _ := proved(); one != 1 {
		t.Errorf("%d proofs of the image; want 1", one)
	}
}

// An image that cannot be read does not prevent the grants of the other pods.
func TestUnreadableImageDeniesNoPodOfOtherImages(t *testing.T) {
	p, alice := running(t)
	p.fails("ImageStatus", status.Error(codes.ResourceExhausted, "too large"))
	p.restart()
	if err := p.gate.Sync(t.Context()); err != nil || !p.gate.Synced() {
		t.Errorf("Sync = %v; want nil", err)
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.Fail = nil })
	want := id1
	if underTest() != criproxytest.Containerd {
		want = "" // CRI-O does not report the name of the container, so its pod proves access again
	}
	p.wantPrecheck(alice, app, want, "pre-check")
}

// An item with text that is not UTF-8 does not hide any item of a list, including itself.
func TestTextThatIsNotUTF8HidesNothing(t *testing.T) {
	for _, method := range []string{"ListPodSandbox", "ListContainers", "ListImages"} {
		t.Run(method, func(t *testing.T) {
			p, alice := running(t)
			p.Pod("mallory-text")
			p.runtime.SetImages(img(id1, app), img(id2, "repo.test/mallory-text:1"))
			p.runtime.Do(func(r *criproxytest.Runtime) {
				r.Rewrite = func(m string, answer []byte) []byte {
					if m != method {
						return answer
					}
					if m == "ListContainers" {
						return bytes.ReplaceAll(answer, []byte("main"), []byte("ma\xff\xfe"))
					}
					return bytes.ReplaceAll(answer, []byte("mallory-text"), []byte("mallory-\xff\xfe\xfd\xfc"))
				}
			})
			p.restart()
			p.wantPrecheck(alice, app, id1, "pre-check of a running pod after a restart")
			if err := p.gate.Sync(t.Context()); err != nil || !p.gate.Synced() {
				t.Errorf("Sync = %v; want nil", err)
			}
			_, err := p.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			if changed := err == nil; changed && method == "ListPodSandbox" {
				t.Error("a kubelet gets another answer than the runtime's")
			}
			p.wantPrecheck(alice, app, id1, "pre-check of a running pod after another list")
			p.wantCode(p.tracker.Prune(t.Context()), codes.OK, "Prune")
			if got, want := p.onDisk(), "0 intents, 1 records"; got != want {
				t.Errorf("on disk: %s; want %s", got, want)
			}
		})
	}
}

// After a failed sync not every call tries to sync again.
func TestAFailedSyncIsNotRepeatedByEveryCall(t *testing.T) {
	p, alice := running(t)
	p.fails("ListPodSandbox", status.Error(codes.Internal, "no list"))
	p.restart()
	before := p.runtime.Calls("ListPodSandbox")
	for range 50 {
		p.Precheck(alice, app)
	}
	if n := p.runtime.Calls("ListPodSandbox") - before; n > 2 {
		t.Errorf("50 pre-checks asked for the sandboxes %d times; want at most 2", n)
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.Fail = nil })
	if err := p.gate.Sync(t.Context()); err != nil { // the daemon's own attempt does not pause
		t.Errorf("Sync = %v; want nil", err)
	}
	p.wantPrecheck(alice, app, id1, "pre-check")
}
