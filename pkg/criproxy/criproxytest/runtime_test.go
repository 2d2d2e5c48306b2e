package criproxytest_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	id1 = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2 = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	id3 = "sha256:2333333333333333333333333333333333333333333333333333333333333333"
)

// The fake finds images as containerd does; the end-to-end suite holds the same of the real one.
func TestRuntimeResolvesAsContainerdDoes(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(
		criproxytest.Image{ID: id1, Names: []string{"docker.io/library/busybox:latest", "repo.test/a@" + id3}},
		criproxytest.Image{ID: id2, Names: []string{"repo.test/a:1"}},
		criproxytest.Image{ID: id3},
	)
	k := criproxytest.NewKubelet(t, r.Endpoint())
	for name, want := range map[string]string{
		"busybox": id1, "library/busybox:latest": id1, "docker.io/busybox": id1, "busybox:2": "",
		"repo.test/a:1": id2, "repo.test/a": "", "repo.test/a:1@" + id3: id1, "repo.test/a@" + id2: "",
		id1: id1, id2: id2, "sha256:1": id1, "sha256:23": id3, "1": id1, "23": id3, id1[7:]: id1,
		"sha256:4": "", "4": "", "sha256:": "", "sha256": "", "sha": "", "No Name": "",
	} {
		resp, err := k.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if got := resp.GetImage().GetId(); err != nil || got != want {
			t.Errorf("image %q = %q, %v; want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"sha256:2", "2", ""} {
		_, err := k.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		want := `can not resolve "` + name + `" locally: ambiguous digest string`
		if s := status.Convert(err); s.Code() != codes.Unknown || s.Message() != want {
			t.Errorf("image %q = %v; want Unknown, %s", name, err, want)
		}
	}
}

// A tag moves with a pull, however it is spelt.
func TestRuntimeMovesATag(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id1, Names: []string{"docker.io/library/busybox:latest"}})
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{ID: id2}, nil
		}
	})
	k := criproxytest.NewKubelet(t, r.Endpoint())
	if id, err := k.Pull(t.Context(), nil, "busybox", ""); id != id2 || err != nil {
		t.Fatalf("pull = %q, %v; want %s", id, err, id2)
	}
	resp, err := k.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range resp.GetImages() {
		if tags := i.GetRepoTags(); (len(tags) == 1) != (i.GetId() == id2) {
			t.Errorf("image %s has the tags %v", i.GetId(), tags)
		}
	}
	if _, err := k.Pull(t.Context(), nil, "No Name", ""); status.Code(err) != codes.Unknown {
		t.Errorf("pull of what is no name = %v; want Unknown", err)
	}
	if got := len(r.Requests("PullImage")); got != 2 {
		t.Errorf("%d requests kept; want 2", got)
	}
}
