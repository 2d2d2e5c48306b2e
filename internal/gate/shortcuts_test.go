package gate_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// newOrdinary returns a node on which alice may use app, which is known not to be a checkpoint.
func newOrdinary(tb testing.TB) (p *proxy, alice *criproxytest.Pod) {
	tb.Helper()
	p, alice = newProxyOfAlice(tb, tracker.Options{}, exact())
	p.must(p.createAndStart(alice, id1, app))
	return p, alice
}

// asked returns how often the gate asks the runtime for images while it judges a creation.
func (p *proxy) asked(x *criproxytest.Pod, id string) int {
	p.t.Helper()
	before := p.runtime.Calls("ImageStatus")
	p.must(p.createAndStart(x, id, app))
	return p.runtime.Calls("ImageStatus") - before
}

func TestImageThatThePodWasShownIsNotAskedForAgain(t *testing.T) {
	other := img(id3, "repo.test/other:1")
	for name, tc := range map[string]struct {
		// between the pre-check and the creation by the pod that it returns
		then func(p *proxy, x *criproxytest.Pod) *criproxytest.Pod
		want int
	}{
		"at once": {func(_ *proxy, x *criproxytest.Pod) *criproxytest.Pod { return x }, 0},
		"after a pull": {func(p *proxy, x *criproxytest.Pod) *criproxytest.Pod {
			p.serves("repo.test/other:1", "good", other)
			p.MustPull(p.Pod("bob"), "repo.test/other:1", "good")
			return x
		}, 1},
		"after a pull that was cancelled": {func(p *proxy, x *criproxytest.Pod) *criproxytest.Pod {
			p.fails("PullImage", status.Error(codes.Canceled, "cancelled"))
			_, _ = p.Pull(t.Context(), p.Pod("bob"), "repo.test/other:1", "good")
			p.fails("", nil)
			p.Precheck(x, app)
			return x
		}, 1},
		"after a removal": {func(p *proxy, x *criproxytest.Pod) *criproxytest.Pod {
			p.done(p.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id3}}))
			return x
		}, 1},
		"by another pod": {func(p *proxy, _ *criproxytest.Pod) *criproxytest.Pod {
			y := p.Pod("alice")
			p.wantPull(y, app, "good", id1, "pull")
			return y
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newOrdinary(t)
			x := p.Pod("alice")
			p.Precheck(x, app)
			p.wantPull(x, app, "good", id1, "hit")
			p.wantPrecheck(x, app, id1, "pre-check")
			y := tc.then(p, x)
			if got := p.asked(y, id1); got != tc.want {
				t.Errorf("the runtime was asked %d times for the image; want %d", got, tc.want)
			}
		})
	}
}

// A revocation between the pre-check and the creation denies the creation, although the image is not asked for again.
func TestRevocationIsSeenBetweenPrecheckAndCreation(t *testing.T) {
	p, alice := newOrdinary(t)
	p.wantPrecheck(alice, app, id1, "pre-check")
	_, err := p.tracker.Revoke(t.Context(),
		tracker.Revocation{Revocation: records.Revocation{Repository: "repo.test/team/app"}})
	p.must(err)
	p.wantCreate(alice, id1, app, codes.PermissionDenied, "creation after a revocation")
}

// The start waits for the read-back. A container that is on another image is denied then, and removed.
func TestStartWaitsForTheReadBack(t *testing.T) {
	p, alice := newOrdinary(t)
	p.runtime.SetImages(img(id1, app), img(id2, "repo.test/secret:1"))
	p.must(p.createAndStart(alice, id1, app)) // the image has other names now
	for _, revealed := range []bool{false, true} {
		read, answered := make(chan struct{}), make(chan struct{})
		seen := sync.OnceFunc(func() { close(read) }) // a late start may read the container back once more
		p.runtime.Do(func(r *criproxytest.Runtime) {
			r.Rewrite = func(method string, answer []byte) []byte {
				if method != "ListContainers" {
					return answer
				}
				seen()
				<-answered
				if revealed {
					return []byte(strings.ReplaceAll(string(answer), id1, id2))
				}
				return answer
			}
		})
		id := testkit.Value(p.Create(t.Context(), alice, id1, app))(p.t)
		<-read
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		p.wantCode(p.Start(short, id), codes.DeadlineExceeded, "start during the read-back")
		cancel()
		close(answered)
		want := codes.OK
		if revealed {
			want = codes.PermissionDenied
		}
		err := p.Start(t.Context(), id)
		if revealed && status.Code(err) == codes.NotFound {
			want = codes.NotFound // the start came after the container was removed
		}
		p.wantCode(err, want, "start after the read-back, on another image: %v", revealed)
		p.wantPrecheck(alice, app, map[bool]string{false: id1}[revealed], "next pre-check, on another image: %v", revealed)
		p.runtime.Do(func(r *criproxytest.Runtime) { r.Rewrite = nil })
		if left := len(p.runtime.Containers()); left != 3 { // two from before, and that which may start
			t.Errorf("%d containers; want 3", left)
		}
	}
}

// A restart between the answer to the creation and the start: the container is read back at its start.
func TestRestartBeforeTheReadBackJudgesAtTheStart(t *testing.T) {
	p, alice := newOrdinary(t)
	id := testkit.Value(p.Create(t.Context(), alice, id1, app))(p.t)
	p.restart()
	before := p.runtime.Calls("ListContainers")
	p.must(p.Start(t.Context(), id))
	if p.runtime.Calls("ListContainers") == before {
		t.Error("the container was started without a read-back")
	}
}

// A kubelet that removes a container before it was read back, as for a pod that is deleted at once, does not make later
// creations slower.
func TestContainerThatIsRemovedBeforeTheReadBackChangesNothing(t *testing.T) {
	p, alice := newOrdinary(t)
	removed := make(chan struct{})
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Fail = func(method string) error {
			if method == "ListContainers" {
				<-removed
			}
			return nil
		}
	})
	id := testkit.Value(p.Create(t.Context(), alice, id1, app))(p.t)
	p.behindRemoved(id)
	close(removed)
	p.gate.Wait()
	p.fails("", nil)
	listed := p.runtime.Calls("ListImages")
	p.must(p.createAndStart(alice, id1, app))
	if p.runtime.Calls("ListImages") != listed {
		t.Error("the image is not known to be no checkpoint any more")
	}
}
