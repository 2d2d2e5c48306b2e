//go:build crashpoint

package daemon_test

import (
	"slices"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// The daemon is killed at every point between the runtime's answer to a pull and its own. After the restart no image
// has an endorsement that was not written, whose pull is answered without a verification, or that can not be verified
// any more.
func TestKilledWhileSignaturesAreVerified(t *testing.T) {
	written := []string{crashpoint.After(crashpoint.Endorse), crashpoint.Endorsed}
	for _, point := range slices.Concat(written, []string{
		crashpoint.Pulled, crashpoint.Before(crashpoint.Prove), crashpoint.After(crashpoint.Prove), crashpoint.Verified,
		crashpoint.Before(crashpoint.Endorse), crashpoint.Recorded,
	}) {
		t.Run(point, func(t *testing.T) {
			ctx, r := t.Context(), criproxytest.NewRuntime(t)
			var policyd verifyingPolicyd
			policyd.signed.Store(true)
			p := prepare(t, r.Endpoint())
			p.requireSignatures(&policyd)

			p.env = []string{crashpoint.Env + "=" + point}
			p.spawn()
			if p.ready() {
				k := p.kubelet()
				alice := k.Pod("alice")
				serves(r, app, "good", id1)
				if id, err := k.Pull(ctx, alice, app, "good"); err == nil {
					t.Errorf("the pull was answered with %s before the kill", id)
				}
			}
			if code := p.wait(); code != -1 {
				t.Fatalf("exit code %d; want SIGKILL: the pull does not reach the point", code)
			}
			policyd.signed.Store(false)
			p.env = nil
			p.start()

			k := p.kubelet()
			endorsed := slices.Contains(written, point)
			carol := k.Pod("carol")
			if id, err := k.Pull(ctx, carol, app, "good"); (err == nil) != endorsed {
				t.Errorf("a pull with the right credential while the registry is down = %q, %v; want success: %v", id, err,
					endorsed)
			}
			if id, err := k.Create(ctx, carol, id1, app); (err == nil) != endorsed {
				t.Errorf("a container = %q, %v; want success: %v", id, err, endorsed)
			}
			policyd.signed.Store(true)
			before := policyd.asked.Load()
			if id, err := k.Pull(ctx, carol, app, "good"); id != id1 || err != nil {
				t.Errorf("a pull when the registry is back = %q, %v; want %s", id, err, id1)
			}
			if id, err := k.Create(ctx, carol, id1, app); err != nil {
				t.Errorf("a container when the registry is back = %q, %v; want success", id, err)
			}
			if asked := policyd.asked.Load() > before; asked == endorsed {
				t.Errorf("verified again: %v; want %v", asked, !endorsed)
			}
		})
	}
}
