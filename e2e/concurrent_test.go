package e2e_test

import (
	"sync"
	"testing"

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
