package criproxytest_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
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
		resp, err := k.Images.ImageStatus(t.Context(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
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

// A pull moves a tag, however the name is written.
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
		t.Errorf("pull of an invalid name = %v; want Unknown", err)
	}
	if got := len(r.Requests("PullImage")); got != 2 {
		t.Errorf("%d requests kept; want 2", got)
	}
}

// The fake's CRI-O answers as CRI-O 1.36.3 and 1.34.4 were seen to.
func TestRuntimeAnswersAsCRIODoes(t *testing.T) {
	const hex1, hex2, hex3, repository = "1111111111111111111111111111111111111111111111111111111111111111",
		"2222222222222222222222222222222222222222222222222222222222222222",
		"2333333333333333333333333333333333333333333333333333333333333333", "repo.test/a"
	for _, profile := range []criproxytest.Profile{criproxytest.CRIO, criproxytest.CRIODigest} {
		t.Run(profile.String(), func(t *testing.T) {
			r := criproxytest.NewRuntimeAs(t, profile)
			r.SetImages(
				criproxytest.Image{ID: id1, Names: []string{"docker.io/library/busybox:latest", repository + "@" + id3}},
				criproxytest.Image{ID: id2, Names: []string{repository + ":1"}},
				criproxytest.Image{ID: id3, Names: []string{"repo.test/pause:3"}},
			)
			r.Do(func(r *criproxytest.Runtime) {
				r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
					return criproxytest.Image{ID: id2}, nil
				}
			})
			k := criproxytest.NewKubelet(t, r.Endpoint())
			status1 := func(name string) (*runtimeapi.Image, error) {
				resp, err := k.Images.ImageStatus(t.Context(),
					&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
				return resp.GetImage(), err
			}
			for name, want := range map[string]string{
				"docker.io/library/busybox": hex1, "repo.test/a:1": hex2, "repo.test/a": "", repository + "@" + id3: hex1,
				repository + "@" + id2: "",
				hex1:                   hex1, "111": hex1, "11": "", "233": hex3, "23": "", id1: "", "sha256:111": "",
				"busybox": hex1,
			} {
				i, err := status1(name)
				if got := i.GetId(); err != nil || got != want {
					t.Errorf("image %q = %q, %v; want %q", name, got, err, want)
				}
			}
			if _, err := status1("No Name"); status.Code(err) != codes.Unknown ||
				status.Convert(err).Message() != `cannot parse input: "No Name": invalid reference format` {
				t.Errorf("invalid name = %v", err)
			}

			pulled, err := k.Images.PullImage(t.Context(),
				&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: repository + ":1"}})
			if err != nil {
				t.Fatal(err)
			}
			i, err := status1(pulled.GetImageRef())
			if err != nil || i.GetId() != hex2 || (pulled.GetImageRef() == hex2) != (profile == criproxytest.CRIO) {
				t.Errorf("pull = %q, which is %q, %v; want the image in the form of the profile", pulled.GetImageRef(), i.GetId(),
					err)
			}

			alice := k.Pod("alice")
			container, err := k.Create(t.Context(), alice, pulled.GetImageRef(), repository+":1")
			if err != nil {
				t.Fatal(err)
			}
			list, err := k.Runtime.ListContainers(t.Context(),
				&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: container}})
			if err != nil || len(list.GetContainers()) != 1 {
				t.Fatalf("ListContainers = %v, %v", list, err)
			}
			c := list.GetContainers()[0]
			if c.GetImageId() != hex2 || !strings.HasPrefix(c.GetImageRef(), repository+"@sha256:") ||
				c.GetImage().GetUserSpecifiedImage() != "" || c.GetImage().GetImage() != pulled.GetImageRef() {
				t.Errorf("container = %v; want image_id, a digest as image_ref, and no user_specified_image", c)
			}
			remove := func(name string) error {
				_, err := k.Images.RemoveImage(t.Context(),
					&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
				return err
			}
			if err := remove(hex2); status.Code(err) != codes.Unknown ||
				!strings.Contains(err.Error(), "image is in use by a container") {
				t.Errorf("removal of an image in use = %v; want a refusal", err)
			}
			if err := remove(repository + ":1"); err != nil {
				t.Errorf("removal of a name = %v", err)
			}
			if i, _ := status1(repository + ":1"); i != nil {
				t.Error("the name is still there")
			}
			if i, _ := status1(hex2); i.GetId() != hex2 {
				t.Error("the image is gone with its name")
			}

			// Any other content type ends the connection.
			other := criproxytest.NewKubelet(t, r.Endpoint())
			if _, err := other.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{},
				grpc.CallContentSubtype("proto")); status.Code(err) != codes.Unavailable {
				t.Errorf("call with application/grpc+proto = %v; want Unavailable", err)
			}
		})
	}
}
