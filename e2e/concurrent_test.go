package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pullgate/pullgate/e2e/node"
)

// Two pulls of one image at once never share a result.
func TestConcurrentPullsOfGoodAndBadCredentials(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		s := begin(t)
		app := s.private("concurrent/app:1", node.Image{})
		for round := range 4 {
			good := pod("good", app, node.IfNotPresent, node.Alice())
			bad := pod("bad", app, node.IfNotPresent, node.Mallory())
			s.must(s.k.Sandbox(t.Context(), good))
			s.must(s.k.Sandbox(t.Context(), bad))
			var wg sync.WaitGroup
			wg.Go(func() {
				if o := s.k.Start(t.Context(), good); o.State != node.Running {
					t.Errorf("round %d: good: %v; want Running", round, o)
				}
			})
			wg.Go(func() {
				if o := s.k.Start(t.Context(), bad); o.State != node.PullFailed {
					t.Errorf("round %d: bad: %v; want ErrImagePull", round, o)
				}
			})
			wg.Wait()
			s.must(s.k.Remove(t.Context(), good))
			s.must(s.k.Remove(t.Context(), bad))
			s.must(s.k.RemoveImage(t.Context(), app.Name))
		}
	})
}

// Pulls at once by a credential whose proof has expired make the requests of one pull, for each credential.
func TestPullsOfAnExpiredProofAtOnce(t *testing.T) {
	on(t, func(t runtimeTest) {
		const validity = 5 * time.Second
		s := begin(t, fmt.Sprintf("credentialValidity: %s", validity))
		app := s.private("concurrent/expired:1", node.Image{})
		registry := s.node.Private
		manifests := func(policy string, logins ...node.Login) (requests int) {
			t.Helper()
			var pods []*node.Pod
			var made, pulled, removed errgroup.Group
			for _, l := range logins {
				p := pod("team", app, policy, l)
				pods = append(pods, p)
				made.Go(func() error { return s.k.Sandbox(t.Context(), p) })
			}
			s.must(made.Wait())
			time.Sleep(validity)
			since := registry.Mark()
			for _, p := range pods {
				pulled.Go(func() error {
					if o := s.k.EnsureImage(t.Context(), p); o.State != node.Running || o.Pulls != 1 {
						return fmt.Errorf("%v after %d pulls; want the image after one", o, o.Pulls)
					}
					return nil
				})
			}
			s.must(pulled.Wait())
			for _, r := range registry.Requests(since, app.Repository) {
				if strings.Contains(r.Path, "/manifests/") {
					requests++
				}
			}
			for _, p := range pods {
				removed.Go(func() error { return s.k.Remove(t.Context(), p) })
			}
			s.must(removed.Wait())
			return requests
		}
		s.run(pod("team", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
		s.run(pod("team", app, node.IfNotPresent, node.Dora()), app, node.Running, -1)
		registry.Fault(func(http.ResponseWriter, *http.Request) bool {
			time.Sleep(500 * time.Millisecond) // so that the pulls overlap
			return false
		})
		one := manifests(node.Always, node.Alice())
		t.Logf("one pull: %d requests for manifests", one)
		alice := slices.Repeat([]node.Login{node.Alice()}, 20)
		if got := manifests(node.IfNotPresent, alice...); one == 0 || got != one {
			t.Errorf("20 pulls at once: %d requests for manifests; want %d, as for one pull", got, one)
		}
		if got := manifests(node.IfNotPresent, append(alice[:10], node.Dora(), node.Dora())...); got != 2*one {
			t.Errorf("12 pulls at once by two credentials: %d requests for manifests; want %d", got, 2*one)
		}
	}, containerd24)
}
