package gate_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// digest1 is a repo digest of the image id1.
const digest1 = "repo.test/team/app@sha256:d111111111111111111111111111111111111111111111111111111111111111"

// pullRef pulls with the good password and returns the image_ref of the answer.
func (p *proxy) pullRef(x *criproxytest.Pod, name string) (string, error) {
	resp, err := p.Images.PullImage(p.t.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: name}, SandboxConfig: x.Config,
		Auth: &runtimeapi.AuthConfig{Username: "tenant", Password: "good"},
	})
	return resp.GetImageRef(), err
}

// Before CRI 0.36 a runtime may answer a pull with a digest, as CRI-O does.
func TestPullIsRecordedUnderTheImageID(t *testing.T) {
	for name, ref := range map[string]string{"image ID": id1, "repo digest": digest1, "name": app} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, tracker.Options{}, exact())
			p.serves(app, "good", img(id1, digest1))
			p.runtime.Do(func(r *criproxytest.Runtime) { r.ImageRef = func(string, criproxytest.Image) string { return ref } })
			alice, bob := p.Pod("alice"), p.Pod("bob")
			if got, err := p.pullRef(alice, app); got != ref || err != nil {
				t.Fatalf("pull = %q, %v; want the runtime's own answer, %s", got, err, ref)
			}
			for range 2 { // a pre-check marks an untracked image preloaded
				for _, name := range []string{app, digest1} {
					p.wantPrecheck(bob, name, "", "bob's pre-check of %s", name)
				}
			}
			p.wantCreate(bob, id1, app, codes.PermissionDenied, "bob's container")
			p.wantPrecheck(alice, app, id1, "alice's pre-check")
			for _, image := range []string{ref, id1} { // a kubelet copies image_ref into CreateContainer
				p.wantCode(p.createAndStart(alice, image, app), codes.OK, "alice's container on %s", image)
			}
			want := records.Stats{Records: 1}
			got, err := p.store.Stats()
			got.Bytes, got.Format = 0, 0
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("store, %v (-want +got):\n%s", err, diff)
			}
			if n := p.counts.get()["unresolved"]; n != 0 {
				t.Errorf("%d pulls counted as unresolved; want none", n)
			}
		})
	}
}

// The result of a pull is known only if the requested name and the answer are one image.
func TestPullThatCannotBeResolvedOpensNothing(t *testing.T) {
	unresolved := func(method string) error {
		if method == "ImageStatus" {
			return status.Error(codes.Unknown, "not now")
		}
		return nil
	}
	for name, tc := range map[string]struct {
		ref  string
		fail func(method string) error
	}{
		"the answer is another image":    {ref: id2},
		"the answer is not on the node":  {ref: id3},
		"the answer is a digest of none": {ref: "repo.test/team/app@sha256:" + strings.TrimPrefix(id3, "sha256:")},
		"the answer is not a name":       {ref: "No Name"},
		"the answer is empty":            {},
		"ImageStatus fails":              {ref: id1, fail: unresolved},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, tracker.Options{VerifyUntracked: false}, exact())
			alice, bob := p.Pod("alice"), p.Pod("bob")
			p.runtime.Do(func(r *criproxytest.Runtime) {
				r.ImageRef = func(string, criproxytest.Image) string { return tc.ref }
				r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
					return map[string]criproxytest.Image{app: {ID: id1}, "repo.test/other/app:1": {ID: id2}}[name], nil
				}
			})
			p.Precheck(alice, app) // the daemon is synced before the runtime fails
			p.runtime.Do(func(r *criproxytest.Runtime) { r.Fail = tc.fail })
			if tc.ref == id2 {
				// It is on the node, and belongs to another tenant.
				p.runtime.SetImages(img(id2, "repo.test/other/app:1"))
			}
			if got, err := p.pullRef(alice, app); got != tc.ref || err != nil {
				t.Errorf("pull = %q, %v; want the runtime's own answer, %q", got, err, tc.ref)
			}
			p.runtime.Do(func(r *criproxytest.Runtime) { r.Fail = nil })
			for range 2 {
				for _, x := range []*criproxytest.Pod{alice, bob} {
					p.wantPrecheck(x, app, "", "%s's pre-check", x.UID)
					p.wantCreate(x, id1, app, codes.PermissionDenied, "%s's container", x.UID)
				}
			}
			if n := p.counts.get()["unresolved"]; n != 1 {
				t.Errorf("%d pulls counted as unresolved; want 1", n)
			}
			p.restart()
			p.wantPrecheck(p.Pod("carol"), app, "", "carol's pre-check after a restart")
			got, err := p.store.Stats()
			got.Bytes, got.Marks, got.Format = 0, 0, 0
			if diff := cmp.Diff(records.Stats{Intents: 1}, got); err != nil || diff != "" {
				t.Errorf("store, %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// The runtime has pulled, so the record is kept if a client disconnects while pullgated resolves the answer.
func TestClientThatHangsUpAfterThePullKeepsTheRecord(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1))
	alice, bob := p.Pod("alice"), p.Pod("bob")
	ctx, hangUp := context.WithCancel(t.Context())
	pulled, answered := false, make(chan struct{})
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.BeforeAnswer = func(method string) {
			switch {
			case method == "PullImage":
				pulled = true
			case pulled && method == "ImageStatus":
				hangUp()
				<-answered // the proxy has detected that the client disconnected
			}
		}
	})
	_, err := p.Pull(ctx, alice, app, "good")
	close(answered)
	p.wantCode(err, codes.Canceled, "pull")
	p.stop() // waits for the call
	p.runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = nil })
	p.start()
	if got, err := p.store.Stats(); err != nil || got.Records != 1 || got.Intents != 0 {
		t.Errorf("store = %+v, %v; want one record and no intent", got, err)
	}
	p.wantPrecheck(p.PodFrom("dora", "api"), app, "", "pre-check of another pod")
	p.wantPrecheck(bob, app, "", "bob's pre-check")
}
