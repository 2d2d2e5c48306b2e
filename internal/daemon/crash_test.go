//go:build crashpoint

package daemon_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

const gone = "repo.test/gone/app:1"

// answered records the answers of the daemon before it was killed.
type answered struct {
	alicePulled  bool
	aliceCreated bool
}

// The daemon is killed at every crash point of a scenario. After the restart everything that was answered is still
// true, and no image is open that was not proved.
func TestKilledAtEveryPoint(t *testing.T) {
	// The scenario does not reach these points: an intent is settled after an hour, a rotation needs an API server, and a
	// revocation and changes of marks need an operator. The tests of the store cover them. Signatures and files
	// of kind ImageAccess have scenarios of their own.
	elsewhere := []string{
		crashpoint.Before(crashpoint.Settle), crashpoint.After(crashpoint.Settle), crashpoint.Before(crashpoint.Rotate),
		crashpoint.After(crashpoint.Rotate),
		crashpoint.Before(crashpoint.Revoke), crashpoint.After(crashpoint.Revoke), crashpoint.Before(crashpoint.Accept),
		crashpoint.After(crashpoint.Accept),
		crashpoint.Before(crashpoint.Forget), crashpoint.After(crashpoint.Forget), crashpoint.Before(crashpoint.Withdraw),
		crashpoint.After(crashpoint.Withdraw),
		crashpoint.Verified, crashpoint.Before(crashpoint.Endorse), crashpoint.After(crashpoint.Endorse),
		crashpoint.AccessAdded, crashpoint.AccessEnded,
		crashpoint.CompactWritten, crashpoint.CompactRenamed, // not in a daemon
	}
	for _, point := range crashpoint.All() {
		if slices.Contains(elsewhere, point) {
			continue
		}
		t.Run(point, func(t *testing.T) {
			r := criproxytest.NewRuntime(t)
			r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
			p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true")
			distrusted := point == crashpoint.SetAside
			if distrusted {
				damagedBefore(p)
			}
			p.env = []string{crashpoint.Env + "=" + point}
			p.spawn()
			var was answered
			if p.ready() {
				was = scenario(t, r, p)
			}
			if code := p.wait(); code != -1 {
				t.Fatalf("exit code %d; want SIGKILL: the scenario does not reach the point", code)
			}
			p.env = nil
			p.start()
			after(t, r, p, was, distrusted)
		})
	}
}

// damagedBefore replaces the store by one that cannot be read.
func damagedBefore(p *process) {
	p.t.Helper()
	testkit.Must(p.t, os.MkdirAll(p.path("state"), 0o700))
	testkit.Must(p.t, os.WriteFile(p.path("state/records.db"), []byte(strings.Repeat("damaged", 4096)), 0o600))
}

// scenario runs until the daemon is killed: a pull, a container, a refused pull, a lost one, a removal.
func scenario(t *testing.T, r *criproxytest.Runtime, p *process) (was answered) {
	t.Helper()
	ctx := t.Context()
	k := p.kubelet()
	alice, bob := k.PodFrom("alice", "api"), k.PodFrom("bob", "api")
	if k.Sandbox(ctx, alice) != nil || k.Sandbox(ctx, bob) != nil {
		return was
	}
	serves(r, app, "good", id1)
	if _, err := k.Pull(ctx, alice, app, "good"); err != nil {
		return was
	}
	was.alicePulled = true
	if id, err := k.Create(ctx, alice, id1, app); err != nil || k.Start(ctx, id) != nil {
		return was
	}
	was.aliceCreated = true
	_, _ = k.Pull(ctx, bob, app, "bad") // refused
	lost, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	// The registry answers when all clients have gone; otherwise its refusal could come first.
	answer := make(chan struct{})
	defer close(answer)
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			<-answer
			return criproxytest.Image{}, criproxytest.Denied(name)
		}
	})
	_, _ = k.Pull(lost, bob, app, "good")
	serves(r, gone, "good", "sha256:"+strings.Repeat("9", 64))
	if _, err := k.Pull(ctx, alice, gone, "good"); err != nil {
		return was
	}
	_, _ = k.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: gone}})
	return was
}

// after checks the restarted daemon.
func after(t *testing.T, r *criproxytest.Runtime, p *process, was answered, distrusted bool) {
	t.Helper()
	ctx := t.Context()
	serves(r, "repo.test/nothing:1", "", "") // the registry refuses everything from now on
	k := p.kubelet()
	bob, carol := k.Pod("bob"), k.Pod("carol")
	present, err := k.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: app}})
	testkit.Must(t, err)
	prechecked(t, k, "bob's pre-check of alice's image", bob, app, "")
	for _, password := range []string{"", "bad"} {
		if id, err := k.Pull(ctx, bob, app, password); err == nil {
			t.Errorf("bob's pull with %q = %q; want it refused", password, id)
		}
	}
	if present.GetImage() != nil {
		if id, err := k.Create(ctx, bob, id1, app); err == nil {
			t.Errorf("bob's container on alice's image = %q; want it denied", id)
		}
	}
	if was.alicePulled {
		prechecked(t, k, "carol's pre-check", carol, app, "") // until she shows her credential
		before := r.Calls("PullImage")
		if id, err := k.Pull(ctx, carol, app, "good"); id != id1 || err != nil || r.Calls("PullImage") != before {
			t.Errorf("carol's pull with the proved credential = %q, %v after %d calls; want the image at once", id, err,
				r.Calls("PullImage")-before)
		}
	}
	want := id2
	if distrusted {
		want = ""
	}
	prechecked(t, k, "bob's pre-check of the preloaded image", bob, pre, want)
	if got := p.metric("pullgate_store_distrusted") == 1; got != distrusted {
		t.Errorf("distrusted = %v; want %v", got, distrusted)
	}
}
