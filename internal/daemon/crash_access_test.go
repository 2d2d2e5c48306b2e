//go:build crashpoint

package daemon_test

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// The daemon is killed while bob's right to alice's image is replaced by one of carol. After the restart, rights are
// those of the files of that moment: no pod keeps what it used by a file that is gone, and none uses a file too early.
func TestKilledWhileRightsChange(t *testing.T) {
	for _, point := range []string{
		crashpoint.AccessAdded, crashpoint.Before(crashpoint.Revoke), crashpoint.After(crashpoint.Revoke),
		crashpoint.AccessEnded,
	} {
		for files, carolMay := range map[string]bool{"carol": true, "": false} {
			t.Run(point+", then "+files, func(t *testing.T) {
				r := criproxytest.NewRuntime(t)
				p := prepare(t, r.Endpoint())
				testkit.Must(t, os.Mkdir(p.path("policies"), 0o755))
				p.configure("admission: {policies: " + p.path("policies") + "}")
				share := func(namespace string) {
					t.Helper()
					testkit.Must(t, os.RemoveAll(p.path("policies/share.yaml")))
					if namespace == "" {
						return
					}
					testkit.Must(t, os.WriteFile(p.path("policies/share.yaml"), []byte(
						"apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: share}\nspec: {images: ["+
							strings.TrimSuffix(app, ":1")+"], from: [{namespaces: ["+namespace+"]}], grant: Share}\n"), 0o644))
				}
				share("bob")
				p.start()
				serves(r, app, "good", id1)
				k := p.kubelet()
				alice, bob, carol := k.PodFrom("alice", "api"), k.PodFrom("bob", "api"), k.PodFrom("carol", "api")
				for _, x := range []*criproxytest.Pod{alice, bob, carol} {
					testkit.Must(t, k.Sandbox(t.Context(), x))
				}
				testkit.Value(k.Pull(t.Context(), alice, app, "good"))(t)
				for _, x := range []*criproxytest.Pod{alice, bob} {
					id := testkit.Value(k.Create(t.Context(), x, id1, app))(t)
					testkit.Must(t, k.Start(t.Context(), id))
				}
				p.stop()

				share("carol")
				p.env = []string{crashpoint.Env + "=" + point}
				p.spawn()
				if code := p.wait(); code != -1 {
					t.Fatalf("exit code %d; want SIGKILL: the start does not reach the point", code)
				}
				share(files)
				p.env = nil
				p.start()
				k = p.kubelet()
				testkit.Value(k.Pull(t.Context(), alice, app, "good"))(t) // her grant may have ended
				for x, may := range map[*criproxytest.Pod]bool{alice: true, bob: false, carol: carolMay} {
					_, err := k.Create(t.Context(), x, id1, app)
					if may && err != nil || !may && status.Code(err) != codes.PermissionDenied {
						t.Errorf("container of %s: %v; want it allowed: %v", x.UID, err, may)
					}
				}
			})
		}
	}
}
