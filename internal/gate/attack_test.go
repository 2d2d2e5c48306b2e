package gate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

var errOutage = status.Error(codes.Unknown, "failed to pull and unpack image: failed to resolve reference: dial tcp "+
	"127.0.0.1:1: connect: connection refused")

// outage makes the registry unreachable.
func (p *proxy) outage() {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, errOutage
		}
	})
}

// failWrites makes the store readable but not writable: it replaces the file by a read-only one.
func (p *proxy) failWrites() {
	p.t.Helper()
	path := filepath.Join(p.dir, "records.db")
	all, err := os.ReadDir("/proc/self/fd")
	p.must(err)
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || to != path {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		p.must(err)
		readOnly, err := os.Open(path)
		p.must(err)
		p.must(errors.Join(syscall.Dup3(int(readOnly.Fd()), fd, syscall.O_CLOEXEC), readOnly.Close()))
		return
	}
	p.t.Fatal("the store's file is not open")
}

// A kubelet with its own verification pulls although the gate showed the image at its pre-check, which left the pod a
// grant. A proved credential of the pod needs no registry; an untried credential needs the registry, with or without a
// grant.
func TestAGrantNeitherStandsInForNorHidesAProvedCredential(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	x := p.Pod("carol")
	f.addPod(x, "good", "IfNotPresent")
	p.wantPrecheck(x, app, id1, "pre-check (or this test shows nothing)")
	p.outage()
	p.wantPull(x, app, "good", id1, "pull with the proved credential during an outage")
	if id, err := p.Pull(t.Context(), x, app, "bad"); err == nil {
		t.Errorf("pull with an untried credential = %q; want the outage", id)
	}
}

// Two names of one image: the first gives the pod a grant while the pre-check of the second is hidden. The gate must
// not answer a bad credential for the second like a good one.
func TestAHiddenPrecheckAndAGrantProveNoCredential(t *testing.T) {
	const other = "repo.test/team/app:other"
	for name, policies := range map[string][]string{"policy known": {"IfNotPresent"}, "policy not known": nil} {
		t.Run(name, func(t *testing.T) {
			p, f := newProxyWithSource(t, exact())
			p.runtime.SetImages(img(id1, app, other))
			x := p.Pod("carol")
			for _, image := range []string{app, other} {
				p.wantPrecheck(x, image, "", "pre-check of %s (or this test shows nothing)", image)
			}
			f.addPod(x, "", policies...)
			p.wantPull(x, app, "good", id1, "pull")
			if id, err := p.Pull(t.Context(), x, other, "bad"); err == nil {
				t.Errorf("pull with a bad credential = %q; want what the registry says", id)
			}
			p.wantPull(x, other, "good", id1, "pull with the good one")
		})
	}
}

// A tenant may be able to fill the disk. A full disk must not let a container with Always and without a grant run on an
// image on the node.
func TestAlwaysIsNotAnsweredFromTheNodeWithoutAStore(t *testing.T) {
	for _, tc := range []struct {
		policy  string
		granted bool
		want    bool
	}{{"Always", false, false}, {"Always", true, true}, {"IfNotPresent", false, true}} {
		p, f := newProxyWithSource(t, exact())
		x := p.Pod("carol")
		f.addPod(x, "good", tc.policy)
		if tc.granted {
			p.MustPull(x, app, "good")
		}
		p.failWrites()
		if id, err := p.Pull(t.Context(), x, app, "good"); (err == nil) != tc.want {
			t.Errorf("%s, granted %v: pull without a store = %q, %v; want it answered: %v", tc.policy, tc.granted, id, err,
				tc.want)
		}
	}
}

// A slowSource counts the requests for Secrets, and may be slow to answer.
type slowSource struct {
	*fakeSource
	takes time.Duration

	mu    sync.Mutex
	asked []string
}

func (s *slowSource) Secrets(ctx context.Context, uid string, image imageref.Ref) ([]tracker.Secret, bool) {
	s.mu.Lock()
	s.asked = append(s.asked, uid)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.takes)
	defer cancel()
	<-ctx.Done()
	return s.fakeSource.Secrets(ctx, uid, image)
}

// took returns the number of requests for Secrets since the last call.
func (s *slowSource) took() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.asked)
	s.asked = nil
	return n
}

// slowed replaces the source of a proxy by a slow one.
func (p *proxy) slowed(f *fakeSource, takes time.Duration) *slowSource {
	p.t.Helper()
	s := &slowSource{fakeSource: f, takes: takes}
	p.config.PodSource = s
	p.restart()
	return s
}

// A tenant can name a hundred Secrets that do not exist, and measure the duration of a pre-check. The answer for an
// image that is hidden, for any reason, takes as long as for an absent one.
func TestDurationOfAPrecheckDoesNotRevealAnImage(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	s := p.slowed(f, 0)
	p.runtime.SetImages(img(id1, app, "repo.test/rival/app:1"), img(id2, "repo.test/any:2"), img(id3, "repo.test/any:3"))
	x := p.Pod("mallory")
	f.addPod(x, "bad", "Never")
	for name, image := range map[string]string{
		"hidden": app, "hidden, never proved": "repo.test/rival/app:1", "absent": "repo.test/team/none:1",
		"an ID": "sha256:1", "an ID that is absent": "sha256:9", "an ambiguous ID": "sha256:2",
	} {
		s.took()
		p.wantPrecheck(x, image, "", "%s: pre-check", name)
		if got := s.took(); got != 1 {
			t.Errorf("%s: Secrets were asked for %d times; want once, as for every other empty answer", name, got)
		}
	}
}

// After a restart of the kubelet any of a tenant's pods, which are equal to another pod and slow to judge, may have
// sent its pre-check.
func TestManyWhoMayBeAskingDoNotTakeForEver(t *testing.T) {
	for name, tc := range map[string]struct {
		password string
		takes    time.Duration
		asked    int // at most
	}{
		"none may use it":     {"bad", 0, 1},
		"all may, and slowly": {"good", time.Second, 50},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.takes > 0 && testing.Short() {
				t.Skip("waits for what is slow")
			}
			p, f := newProxyWithSource(t, exact())
			s := p.slowed(f, tc.takes)
			for i := range 50 {
				x := p.Pod(fmt.Sprintf("mallory%02d", i))
				f.addPod(x, tc.password, "Never")
				f.asks = append(f.asks, x.UID)
			}
			began := time.Now()
			got := p.Precheck(unknownSender("api"), app)
			if took, n := time.Since(began), s.took(); took > 10*time.Second || n > tc.asked {
				t.Errorf("pre-check took %v and asked for the Secrets of %d pods; want at most %d in some seconds", took, n,
					tc.asked)
			}
			if want := map[string]string{"good": id1, "bad": ""}[tc.password]; got != want {
				t.Errorf("pre-check = %q; want %q", got, want)
			}
		})
	}
}
