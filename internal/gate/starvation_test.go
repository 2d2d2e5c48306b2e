package gate_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// Pulls of a tenant wait at a registry, each with a request in memory and an intent on disk. The pods of others start.
// With PULLGATE_STARVATION set 10,000 pulls wait, and a call of another pod may take 200 ms.
func TestWaitingPullsDelayNoOtherPod(t *testing.T) {
	pulls, limit := 300, 10*time.Second
	if os.Getenv("PULLGATE_STARVATION") != "" {
		pulls, limit = 10000, 200*time.Millisecond
	}
	p, _ := newProxyOfAlice(t, tracker.Options{}, exact())
	var waiting atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	goOn := make(chan struct{})
	p.beforeAnswer("PullImage", func() {
		waiting.Add(1)
		<-goOn
	})
	var all sync.WaitGroup
	mallory := p.Pod("mallory")
	mallory.Config.Annotations["a"] = strings.Repeat("x", 200)
	for i := range pulls {
		all.Go(func() { _, _ = p.Pull(ctx, mallory, fmt.Sprintf("repo.test/mallory/app-%d:1", i), "guess") })
	}
	defer func() { cancel(); close(goOn); all.Wait() }()
	for began := time.Now(); waiting.Load() < int64(pulls); time.Sleep(time.Millisecond) {
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("%d of %d pulls have reached the registry", waiting.Load(), pulls)
		}
	}
	var took []time.Duration
	timed := func(call func()) {
		began := time.Now()
		call()
		took = append(took, time.Since(began))
	}
	for range 20 {
		alice, bob := p.Pod("alice"), p.Pod("bob")
		timed(func() { p.wantPrecheck(alice, app, "", "pre-check of a pod whose credential is not known") })
		timed(func() { p.wantPull(alice, app, "good", id1, "a pull that is answered by the node") })
		timed(func() { p.must(p.createAndStart(alice, id1, app)) })
		timed(func() { p.wantCreate(bob, id1, app, codes.PermissionDenied, "a container without access") })
	}
	slices.Sort(took)
	t.Logf("beside %d pulls that wait: median %v, longest %v", pulls, took[len(took)/2], took[len(took)-1])
	if longest := took[len(took)-1]; longest > limit {
		t.Errorf("a call took %v; want %v at most", longest, limit)
	}
}
