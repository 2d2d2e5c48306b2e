package criproxy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

var errOutage = status.Error(codes.Unknown, "failed to pull and unpack image: failed to resolve reference: dial tcp 127.0.0.1:1: connect: connection refused")

// outage makes the registry one that is not reached.
func (p *proxy) outage() {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, errOutage
		}
	})
}

// failWrites makes the store one that can be read and not written, by a read-only file in the place of its own.
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

// A kubelet that verifies by itself pulls although its pre-check was shown the image, which has left the pod
// a grant. Its proved credential needs no registry; one that nobody has tried does, grant or not.
func TestAGrantNeitherStandsInForNorHidesAProvedCredential(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	x := p.Pod("carol")
	f.tells(x, "good", "IfNotPresent")
	if got := p.Precheck(x, app); got != id1 {
		t.Fatalf("pre-check = %q; want the image, or this test shows nothing", got)
	}
	p.outage()
	if id, err := p.Pull(t.Context(), x, app, "good"); id != id1 || err != nil {
		t.Errorf("pull with the proved credential during an outage = %q, %v; want the image on the node", id, err)
	}
	if id, err := p.Pull(t.Context(), x, app, "bad"); err == nil {
		t.Errorf("pull with a credential that nobody has tried = %q; want the outage", id)
	}
}

// Two names of one image: the first brings the pod a grant while the pre-check of the second is hidden. A
// bad credential for the second must not be answered as if it were good.
func TestAHiddenPrecheckAndAGrantProveNoCredential(t *testing.T) {
	const other = "repo.test/team/app:other"
	for name, policies := range map[string][]string{"policy known": {"IfNotPresent"}, "policy not known": nil} {
		t.Run(name, func(t *testing.T) {
			p, f := newProxyWithSource(t, exact())
			p.runtime.SetImages(criproxytest.Image{ID: id1, Names: []string{app, other}})
			x := p.Pod("carol")
			for _, image := range []string{app, other} {
				if got := p.Precheck(x, image); got != "" {
					t.Fatalf("pre-check of %s = %q; want it hidden, or this test shows nothing", image, got)
				}
			}
			f.tells(x, "", policies...)
			if id, err := p.Pull(t.Context(), x, app, "good"); id != id1 || err != nil {
				t.Fatalf("pull = %q, %v; want the image", id, err)
			}
			if id, err := p.Pull(t.Context(), x, other, "bad"); err == nil {
				t.Errorf("pull with a bad credential = %q; want what the registry says", id)
			}
			if id, err := p.Pull(t.Context(), x, other, "good"); id != id1 || err != nil {
				t.Errorf("pull with the good one = %q, %v; want the image", id, err)
			}
		})
	}
}

// A tenant may be able to fill the disk. A container with Always that has no grant yet must not run on what is
// on the node because of that.
func TestAlwaysIsNotAnsweredFromTheNodeWithoutAStore(t *testing.T) {
	for _, tc := range []struct {
		policy  string
		granted bool
		want    bool
	}{{"Always", false, false}, {"Always", true, true}, {"IfNotPresent", false, true}} {
		p, f := newProxyWithSource(t, exact())
		x := p.Pod("carol")
		f.tells(x, "good", tc.policy)
		if tc.granted {
			if _, err := p.Pull(t.Context(), x, app, "good"); err != nil {
				t.Fatal(err)
			}
		}
		p.failWrites()
		if id, err := p.Pull(t.Context(), x, app, "good"); (err == nil) != tc.want {
			t.Errorf("%s, granted %v: pull without a store = %q, %v; want it answered: %v", tc.policy, tc.granted, id, err, tc.want)
		}
	}
}
