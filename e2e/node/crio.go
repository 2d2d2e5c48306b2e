package node

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRIO makes containerd answer on the wire as CRI-O does: image IDs are 64 hexadecimal digits without "sha256:", and a
// prefix of three finds an image; a list of containers names the image by a repo digest and does not repeat the name of
// the pod; a call with another content type than application/grpc is refused. Texts of errors stay those of containerd.
type CRIO struct {
	// PullAnswersID makes a pull answer with the image ID, as CRI-O does from 1.35.2 and 1.36.0 on; before, it is a repo
	// digest.
	PullAnswersID atomic.Bool
}

const idPrefix = "sha256:"

// bareID matches what CRI-O takes for an image ID, or for the beginning of one.
var bareID = regexp.MustCompile(`^[0-9a-f]{3,64}$`)

// Rewrites are the changes that a [Shim] makes for it.
func (c *CRIO) Rewrites() Rewrites {
	return Rewrites{
		ContentType: "application/grpc",
		Requests: map[string]Rewrite{
			runtimeapi.ImageService_ImageStatus_FullMethodName: request(func(m *runtimeapi.ImageStatusRequest) { known(m.GetImage()) }),
			runtimeapi.ImageService_RemoveImage_FullMethodName: request(func(m *runtimeapi.RemoveImageRequest) { known(m.GetImage()) }),
			runtimeapi.ImageService_ListImages_FullMethodName:  request(func(m *runtimeapi.ListImagesRequest) { known(m.GetFilter().GetImage()) }),
			runtimeapi.RuntimeService_CreateContainer_FullMethodName: request(func(m *runtimeapi.CreateContainerRequest) {
				known(m.GetConfig().GetImage())
				for _, mount := range m.GetConfig().GetMounts() {
					known(mount.GetImage())
				}
			}),
		},
		Answers: map[string]Rewrite{
			runtimeapi.RuntimeService_Version_FullMethodName: request(func(m *runtimeapi.VersionResponse) { m.RuntimeName, m.RuntimeVersion = "cri-o", "1.36.3" }),
			runtimeapi.ImageService_ImageStatus_FullMethodName: request(func(m *runtimeapi.ImageStatusResponse) {
				answered(m.GetImage())
			}),
			runtimeapi.ImageService_ListImages_FullMethodName: request(func(m *runtimeapi.ListImagesResponse) {
				for _, i := range m.GetImages() {
					answered(i)
				}
			}),
			runtimeapi.ImageService_PullImage_FullMethodName: Rewriting(func(ctx context.Context, runtime *grpc.ClientConn, m *runtimeapi.PullImageResponse) error {
				if c.PullAnswersID.Load() {
					m.ImageRef = strings.TrimPrefix(m.GetImageRef(), idPrefix)
					return nil
				}
				return answerDigest(ctx, runtime, m)
			}),
			runtimeapi.RuntimeService_ListContainers_FullMethodName: Rewriting(func(ctx context.Context, runtime *grpc.ClientConn, m *runtimeapi.ListContainersResponse) error {
				for _, one := range m.GetContainers() {
					if one.GetImage() != nil {
						one.Image.UserSpecifiedImage = ""
					}
					one.ImageId, one.ImageRef = usedImage(ctx, runtime, one)
				}
				return nil
			}),
			runtimeapi.RuntimeService_ContainerStatus_FullMethodName: Rewriting(func(ctx context.Context, runtime *grpc.ClientConn, m *runtimeapi.ContainerStatusResponse) error {
				if one := m.GetStatus(); one != nil {
					one.ImageId, one.ImageRef = usedImage(ctx, runtime, one)
				}
				return nil
			}),
		},
	}
}

func request[M any, P message[M]](change func(m P)) Rewrite {
	return Rewriting(func(_ context.Context, _ *grpc.ClientConn, m P) error {
		change(m)
		return nil
	})
}

// known rewrites an image of a request as containerd knows it. CRI-O does not know an ID with its algorithm.
func known(spec *runtimeapi.ImageSpec) {
	switch {
	case spec == nil:
	case bareID.MatchString(spec.GetImage()):
		spec.Image = idPrefix + spec.GetImage()
	case strings.HasPrefix(spec.GetImage(), idPrefix):
		spec.Image = "cri-o.invalid/no-such-image:1"
	}
}

// answered rewrites an image of an answer as CRI-O describes it.
func answered(i *runtimeapi.Image) {
	if i == nil {
		return
	}
	i.Id = strings.TrimPrefix(i.GetId(), idPrefix)
	if i.GetSpec() != nil {
		i.Spec.Image = ""
	}
}

// usedImage returns how CRI-O names the image of a container.
func usedImage(ctx context.Context, runtime *grpc.ClientConn, c interface {
	GetImageId() string
	GetImageRef() string
},
) (id, ref string) {
	ref = c.GetImageRef()
	if digest, err := repoDigest(ctx, runtime, c.GetImageId()); err == nil { // else the image is gone
		ref = digest
	}
	return strings.TrimPrefix(c.GetImageId(), idPrefix), ref
}

// answerDigest makes the answer to a pull a repo digest of the image.
func answerDigest(ctx context.Context, runtime *grpc.ClientConn, m *runtimeapi.PullImageResponse) (err error) {
	m.ImageRef, err = repoDigest(ctx, runtime, m.GetImageRef())
	return err
}

// repoDigest returns a repo digest of the image that containerd has under an ID.
func repoDigest(ctx context.Context, runtime *grpc.ClientConn, id string) (string, error) {
	i, err := runtimeapi.NewImageServiceClient(runtime).ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	if err != nil {
		return "", err
	}
	digests := i.GetImage().GetRepoDigests()
	if len(digests) == 0 {
		return "", fmt.Errorf("image %s has no repo digest", id)
	}
	return digests[0], nil
}

// refuseContentType is what a client sees of CRI-O, which drops a connection on which it finds another content type.
func refuseContentType(ctx context.Context, want string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("content-type"); want != "" && (len(got) != 1 || got[0] != want) {
		return status.Errorf(codes.Unavailable, "content type %q: connection reset by peer", got)
	}
	return nil
}
