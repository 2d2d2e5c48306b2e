package gate_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

func TestCreateContainerIsTheSecondGate(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1))
	alice, bob := p.Pod("alice"), p.Pod("bob")
	p.MustPull(alice, app, "good")
	p.runtime.SetImages(img(id1, app), img(id2, "repo.test/any:2"))
	mount := &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}}
	gone := &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: id3, UserSpecifiedImage: "repo.test/gone:1"}}
	for _, tc := range []struct {
		what     string
		x        *criproxytest.Pod
		id, name string
		mounts   []*runtimeapi.Mount
		want     codes.Code
	}{
		{"alice's image for alice", alice, id1, app, nil, codes.OK},
		{"alice's image for alice by a kubelet that sends no name", alice, id1, "", nil, codes.OK},
		{"a preloaded image for bob", bob, id2, "repo.test/any:2", nil, codes.OK},
		{"alice's image for bob", bob, id1, app, nil, codes.PermissionDenied},
		{"alice's image for bob without a name", bob, id1, "", nil, codes.PermissionDenied},
		{"alice's image for bob under a name that is open", bob, id1, "repo.test/any:2", nil, codes.PermissionDenied},
		{"alice's image mounted by bob", bob, id2, "repo.test/any:2", []*runtimeapi.Mount{mount}, codes.PermissionDenied},
		{"alice's image mounted by alice", alice, id2, "repo.test/any:2", []*runtimeapi.Mount{mount}, codes.OK},
		{"a mount that is not there", alice, id2, "repo.test/any:2", []*runtimeapi.Mount{gone}, codes.PermissionDenied},
	} {
		before := p.runtime.Calls("CreateContainer")
		id, err := p.Create(t.Context(), tc.x, tc.id, tc.name, tc.mounts...)
		p.wantCode(err, tc.want, "%s", tc.what)
		if tc.want == codes.PermissionDenied && p.runtime.Calls("CreateContainer") != before {
			t.Errorf("%s: the runtime was asked", tc.what)
		}
		if err == nil {
			p.wantCode(p.Start(t.Context(), id), codes.OK, "%s: start", tc.what)
		}
	}
	_, err := p.Create(t.Context(), bob, id1, app)
	wantDenied(t, "alice's image for bob", err, "ACCESS_NOT_PROVED", "bob/"+bob.UID, app, "imagePullSecrets")
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); !ok || info.GetDomain() != "pullgate.dev" {
			t.Errorf("details = %v; want ErrorInfo of pullgate.dev", d)
		}
	}
}

// A pod without a right gets one answer, whether the image is present, absent or an ambiguous prefix of an ID, as the
// image of a container or of a mount. A pod that may use the image learns that it is absent.
// Shows: 001-07
func TestCreateDoesNotRevealWhichImagesArePresent(t *testing.T) {
	for _, release := range [][2]string{{"containerd", "1.6.20"}, {"containerd", "2.4.2"}} {
		t.Run(release[1], func(t *testing.T) {
			p, alice := newProxyOfAlice(t, tracker.Options{}, exact())
			hex := strings.TrimPrefix(id1, "sha256:")
			p.runtime.Do(func(r *criproxytest.Runtime) { r.Release = release })
			p.runtime.SetImages(img(id1, app), img(id2, "repo.test/any:2"), img(id3, "repo.test/any:3"))
			bob := p.Pod("bob")
			answers := map[string][]string{}
			for what, image := range map[string][2]string{
				"present": {id1, app}, "absent": {strings.Replace(id1, hex[:8], "99999999", 1), app},
				"present, by a prefix": {hex[:12], hex[:12]}, "absent, by a prefix": {"999999999999", "999999999999"},
				"ambiguous": {"2", "2"},
			} {
				_, err := p.Create(t.Context(), bob, image[0], image[1])
				_, mounted := p.Create(t.Context(), bob, id2, "repo.test/any:2",
					&runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: image[0], UserSpecifiedImage: image[1]}})
				for kind, err := range map[string]error{"image ": err, "mount ": mounted} {
					kind += map[bool]string{true: "by a name", false: "by an ID"}[image[1] == app]
					answer := status.Code(err).String() + strings.ReplaceAll(status.Convert(err).Message(), strconv.Quote(image[1]),
						"IMAGE")
					if answers[kind] = append(answers[kind], answer); answer != answers[kind][0] ||
						status.Code(err) != codes.PermissionDenied {
						t.Errorf("%s, %s: %v; want PermissionDenied, as %s", kind, what, err, answers[kind][0])
					}
				}
			}
			p.runtime.SetImages(img(id2, "repo.test/any:2"))
			want := codes.NotFound
			if release[1] == "2.4.2" { // every image may be a checkpoint, whose base may be absent
				want = codes.PermissionDenied
			}
			p.wantCreate(alice, id1, app, want, "alice's absent image")
		})
	}
}

// A pod that was refused a container has to prove access, even for an image that its pre-check would show.
func TestRefusedContainerHidesTheNextPrecheck(t *testing.T) {
	p, _ := newProxyOfAlice(t, tracker.Options{}, restoring())
	for what, restores := range map[string]string{"lands on alice's image": id1, "the runtime fails": "sha256:9"} {
		all := []criproxytest.Image{
			{ID: id1, Names: []string{app}}, {ID: id2, Names: []string{"repo.test/any:2"}, Restores: restores},
		}
		p.runtime.SetImages(all...)
		bob := p.Pod("bob")
		p.wantPrecheck(bob, "repo.test/any:2", id2, "pre-check")
		p.wantCreate(bob, id2, "repo.test/any:2", codes.PermissionDenied, "container: %s", what)
		p.runtime.SetImages(all...)
		p.wantPrecheck(bob, "repo.test/any:2", "", "next pre-check: %s", what)
		p.wantPrecheck(bob, "repo.test/any:2", id2, "pre-check after that: %s", what)
	}
}

// containerd puts a container that is created from a checkpoint image on the image that the checkpoint names, and gives
// that image the requested name.
func TestCheckpointImageDoesNotRevealTheImageItNames(t *testing.T) {
	p, alice := newProxyOfAlice(t, tracker.Options{}, restoring())
	mallory := p.withCheckpoint(criproxytest.Image{Restores: id1})
	p.wantPrecheck(mallory, checkpointImage, id2, "pre-check")
	p.wantCreate(mallory, id2, checkpointImage, codes.PermissionDenied, "container")
	p.wantNoContainers("the denied one removed")
	// The requested name is now a name of alice's image.
	p.wantPrecheck(mallory, checkpointImage, "", "pre-check of the moved name")
	p.wantCreate(mallory, id1, checkpointImage, codes.PermissionDenied, "container on the moved name")
	// Alice may restore onto her own image.
	p.runtime.SetImages(img(id1, app), criproxytest.Image{ID: id2, Names: []string{checkpointImage}, Restores: id1})
	p.MustPull(alice, checkpointImage, "mallorys")
	p.runtime.SetImages(img(id1, app), criproxytest.Image{ID: id2, Names: []string{checkpointImage}, Restores: id1})
	p.wantCreate(alice, id2, checkpointImage, codes.OK, "alice's container")
}

// A container that was created without a read-back is read back before it starts, and is not evidence for a grant.
func TestContainerThatWasNotReadBackIsReadBackAtItsStart(t *testing.T) {
	p, alice := newProxyOfAlice(t, tracker.Options{VerifyUntracked: true}, exact())
	mallory := p.withCheckpoint(criproxytest.Image{Restores: id1})
	// As after a crash between the creation and the read-back: without the gate.
	for _, tc := range []struct {
		what string
		end  func(id string)
	}{
		{"created", func(string) {}},
		{"stopped without ever having been started", func(id string) {
			if _, err := p.Runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		p.runtime.SetImages(img(id1, app), criproxytest.Image{ID: id2, Names: []string{checkpointImage}, Restores: id1})
		made := p.behind(mallory, id2, checkpointImage)
		tc.end(made)
		p.restart()
		p.wantPrecheck(mallory, app, "", "%s: pre-check of alice's image (such a container is not evidence)", tc.what)
		p.wantPrecheck(mallory, checkpointImage, "", "%s: pre-check of the moved name", tc.what)
		if tc.what == "created" {
			p.wantCode(p.Start(t.Context(), made), codes.PermissionDenied, "%s: start", tc.what)
			p.wantNoContainers("%s: the denied one removed", tc.what)
		}
	}
	// A container that alice had created and not started starts after a restart.
	p.runtime.SetImages(img(id1, app))
	p.wantNoPull(alice, app, "good", "a pull while the registry serves mallory's image only")
	p.serves(app, "good", img(id1))
	p.MustPull(alice, app, "good")
	id := testkit.Value(p.Create(t.Context(), alice, id1, app))(p.t)
	p.wantCode(p.Start(t.Context(), id), codes.OK, "start")
	p.restart()
	p.wantPrecheck(alice, app, id1, "alice's pre-check after a restart (her container runs on it)")
}

func TestRestorePodIsJudgedLikeCreateContainer(t *testing.T) {
	const checkpoint = "repo.test/bob/checkpoint:1"
	p, alice := newProxyOfAlice(t, tracker.Options{}, restoring())
	bob := p.PodFrom("bob", "api")
	if _, err := p.restorePod(bob, container(id1, app)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("bob restores on alice's image: %v; want PermissionDenied", err)
	}
	p.serves(checkpoint, "bobs", criproxytest.Image{ID: id2, Restores: id1})
	p.MustPull(bob, checkpoint, "bobs")
	if _, err := p.restorePod(bob, container(id2, checkpoint)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("bob restores a checkpoint onto alice's image: %v; want PermissionDenied", err)
	}
	p.wantNoContainers("the sandbox removed with them")
	resp, err := p.restorePod(alice, container(id1, app))
	if err != nil {
		t.Fatalf("alice restores on her image: %v; want nil", err)
	}
	p.wantCode(p.Start(t.Context(), resp.GetRestoredContainers()[0].GetContainerId()), codes.OK, "start")
}

// An ID that the runtime would expand does not start a container that was not read back.
func TestShortContainerIDIsReadBackToo(t *testing.T) {
	p, mallory := aliceAndMallory(t, tracker.Options{VerifyUntracked: true}, exact(), criproxytest.Image{Restores: id1})
	made := p.behind(mallory, id2, checkpointImage)
	short := made[:len(made)-1]
	p.wantCode(p.Start(t.Context(), short), codes.PermissionDenied, "start by %q of container %q", short, made)
}

// Access is revoked while the runtime creates the container. The runtime's creation time of the container is later, so
// a restart would restore the grant from it.
func TestCreateDuringWhichAccessIsRevokedIsDenied(t *testing.T) {
	for name, tc := range map[string]struct{ takeBack func(p *proxy) error }{
		"a proof": {func(p *proxy) error {
			_, err := p.tracker.Revoke(t.Context(),
				tracker.Revocation{Revocation: records.Revocation{Repository: "repo.test/team/app"}})
			return err
		}},
		"a mark": {func(p *proxy) error {
			_, err := p.tracker.ForgetMarks(t.Context(), records.Selection{Repository: "repo.test/team/app"}, false)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, tracker.Options{}, exact())
			p.serves(app, "good", img(id1, app))
			alice := p.Pod("alice")
			if name == "a proof" {
				p.done(p.Pull(t.Context(), alice, app, "good"))
			} else {
				p.runtime.SetImages(img(id1, app))
				p.must(p.gate.Sync(t.Context()))
			}
			p.wantCreate(alice, id1, app, codes.OK, "create")
			var once sync.Once
			p.beforeAnswer("CreateContainer", func() {
				once.Do(func() { p.must(tc.takeBack(p)) })
			})
			p.wantCreate(alice, id1, app, codes.PermissionDenied, "create during a revocation")
			p.runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = nil })
			p.restart()
			p.wantPrecheck(alice, app, "", "pre-check after a restart")
		})
	}
}

// A container that was created before the store was lost is judged again at its start, with the images that it mounts.
func TestMountsAreJudgedAtALateStart(t *testing.T) {
	const base = "docker.io/library/base:1"
	rules, err := policy.New(string(policy.ModeNeverVerifyAllowlistedImages), []string{"docker.io/library/base"})
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, tracker.Options{Rules: tracker.Rules{Policy: rules}}, exact())
	p.serves(app, "good", img(id1, app))
	p.runtime.SetImages(img(id2, base))
	alice := p.Pod("alice")
	p.MustPull(alice, app, "good")
	mount := &runtimeapi.Mount{ContainerPath: "/m", Image: &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}}
	id := testkit.Value(p.Create(t.Context(), alice, id2, base, mount))(p.t)
	p.stop()
	p.must(os.Remove(filepath.Join(p.dir, "records.db")))
	p.start()
	p.wantCode(p.Start(t.Context(), id), codes.PermissionDenied, "late start of a container that mounts an unproved image")
}

// The runtime does not report the name with which a container was created. Its start while nothing is verified gives
// the pod no grant for another repository of the image.
func TestLateStartWithoutANameLeavesNoGrantByPolicy(t *testing.T) {
	p, _ := newProxyOfAlice(t, tracker.Options{}, exact())
	never := testkit.Value(policy.New(string(policy.ModeNeverVerify), nil))(p.t)
	p.tracker.SetRules(tracker.Rules{Policy: never})
	p.runtime.SetImages(img(id1, app, "repo.test/zoe/app:1"))
	bob := p.Pod("bob")
	p.must(p.Start(t.Context(), p.behind(bob, id1, "")))
	p.tracker.SetRules(tracker.Rules{})
	p.wantPrecheck(bob, app, "", "bob's pre-check of alice's repository")
}

// CRI-O resolves short names by its own list of registries, so the image has another name than the pod's name for it.
// The message says which name to use, and contains no name from the node.
func TestDenialOfANameThatTheImageDoesNotHave(t *testing.T) {
	const elsewhere = "quay.test/secret/pause:3.9"
	hex := strings.TrimPrefix(id1, "sha256:")
	p := newProxy(t, tracker.Options{}, exact())
	p.runtime.SetImages(img(id1, elsewhere))
	for name, want := range map[string]string{
		"pause:3.9":             "write the registry in the name of the image, as in REGISTRY/pause:3.9",
		"team/app":              "write the registry in the name of the image, as in REGISTRY/team/app",
		"repo.test/team/app:1":  "the image that the runtime resolved it to does not have this name",
		"sha256:" + hex[:12]:    "an image ID is not a name",
		hex[:12]:                "an image ID is not a name",
		hex:                     "an image ID is not a name",
		"docker.io/library/x:1": "does not have this name",
	} {
		_, err := p.Create(t.Context(), p.Pod("bob"), id1, name)
		text := status.Convert(err).Message()
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(text, want) {
			t.Errorf("container of %q = %v; want PermissionDenied with %q", name, err, want)
		}
		if strings.Contains(text, "quay.test") || strings.Contains(strings.ReplaceAll(text, name, ""), hex[:12]) {
			t.Errorf("container of %q = %q, which names an image of the node", name, text)
		}
	}
}
