package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/host"
)

type rewrite func(ctx context.Context, message []byte) ([]byte, error)

// CRIO is a program between pullgated and a containerd that makes it answer on the wire as CRI-O does: image IDs are 64
// hexadecimal digits without "sha256:", and a prefix of three finds an image; a list of containers names the image by a
// repo digest and does not repeat the name of the pod; calls need the content type application/grpc. Texts of errors
// stay those of containerd.
type CRIO struct {
	// PullAnswersID makes a pull answer with the image ID, as from 1.35.2 and 1.36.0 on, and not with a repo digest.
	PullAnswersID atomic.Bool

	endpoint string
	server   *grpc.Server
	runtime  *grpc.ClientConn
	// requests and answers have the methods whose messages are rewritten.
	requests, answers map[string]rewrite
}

// sizeLimit is the size of the largest message; kubelets and containerd have the same.
const sizeLimit = 16 << 20

const idPrefix = "sha256:"

// bareID matches what CRI-O takes for an image ID, or for the beginning of one.
var bareID = regexp.MustCompile(`^[0-9a-f]{3,64}$`)

// StartCRIO serves before a containerd, on a socket in dir. Close ends it.
func StartCRIO(ctx context.Context, dir, containerd string) (c *CRIO, err error) {
	defer host.Catch(&err)
	socket := filepath.Join(dir, "crio.sock")
	l := host.Must((&net.ListenConfig{}).Listen(ctx, "unix", socket))
	conn := host.Must(grpc.NewClient(containerd, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(sizeLimit))))
	c = &CRIO{endpoint: "unix://" + socket, runtime: conn}
	c.requests, c.answers = c.rewrites()
	c.server = grpc.NewServer(grpc.ForceServerCodecV2(criproxytest.RawCodec{}), grpc.UnknownServiceHandler(c.pass),
		grpc.MaxRecvMsgSize(sizeLimit))
	go func() { _ = c.server.Serve(l) }() // ends with Close
	return c, nil
}

// Endpoint is where it serves the CRI.
func (c *CRIO) Endpoint() string { return c.endpoint }

// Close ends every call and connection.
func (c *CRIO) Close() error {
	c.server.Stop()
	return c.runtime.Close()
}

func (c *CRIO) rewrites() (requests, answers map[string]rewrite) {
	image := func(method string) string { return "/runtime.v1.ImageService/" + method }
	container := func(method string) string { return "/runtime.v1.RuntimeService/" + method }
	requests = map[string]rewrite{
		image("ImageStatus"): plain(func(m *runtimeapi.ImageStatusRequest) { known(m.GetImage()) }),
		image("RemoveImage"): plain(func(m *runtimeapi.RemoveImageRequest) { known(m.GetImage()) }),
		image("ListImages"):  plain(func(m *runtimeapi.ListImagesRequest) { known(m.GetFilter().GetImage()) }),
		container("CreateContainer"): plain(func(m *runtimeapi.CreateContainerRequest) {
			known(m.GetConfig().GetImage())
			for _, mount := range m.GetConfig().GetMounts() {
				known(mount.GetImage())
			}
		}),
	}
	answers = map[string]rewrite{
		container("Version"): plain(func(m *runtimeapi.VersionResponse) {
			m.RuntimeName, m.RuntimeVersion = "cri-o", "1.36.3"
		}),
		image("ImageStatus"): plain(func(m *runtimeapi.ImageStatusResponse) { answered(m.GetImage()) }),
		image("ListImages"): plain(func(m *runtimeapi.ListImagesResponse) {
			for _, i := range m.GetImages() {
				answered(i)
			}
		}),
		image("PullImage"): rewriting(func(ctx context.Context, m *runtimeapi.PullImageResponse) (err error) {
			if c.PullAnswersID.Load() {
				m.ImageRef = strings.TrimPrefix(m.GetImageRef(), idPrefix)
				return nil
			}
			m.ImageRef, err = c.repoDigest(ctx, m.GetImageRef())
			return err
		}),
		container("ListContainers"): rewriting(func(ctx context.Context, m *runtimeapi.ListContainersResponse) error {
			for _, one := range m.GetContainers() {
				if one.GetImage() != nil {
					one.Image.UserSpecifiedImage = ""
				}
				one.ImageId, one.ImageRef = c.usedImage(ctx, one)
			}
			return nil
		}),
		container("ContainerStatus"): rewriting(func(ctx context.Context, m *runtimeapi.ContainerStatusResponse) error {
			if one := m.GetStatus(); one != nil {
				one.ImageId, one.ImageRef = c.usedImage(ctx, one)
			}
			return nil
		}),
	}
	return requests, answers
}

func (c *CRIO) pass(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	if err := refuseContentType(client.Context()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	codec := grpc.ForceCodecV2(criproxytest.RawCodec{})
	to, err := c.runtime.NewStream(metadata.NewOutgoingContext(ctx, md), both, method, codec)
	if err != nil {
		return err
	}
	go func() {
		if c.copy(ctx, client.RecvMsg, to.SendMsg, c.requests[method]) != nil {
			cancel()
		}
		_ = to.CloseSend() // an error is in the answer as well
	}()
	if header, err := to.Header(); err == nil {
		_ = client.SetHeader(header) // fails only after the first message
	}
	err = c.copy(ctx, to.RecvMsg, client.SendMsg, c.answers[method])
	client.SetTrailer(to.Trailer())
	return err
}

func (c *CRIO) copy(ctx context.Context, from, to func(any) error, rewrite rewrite) (err error) {
	defer host.Catch(&err)
	for {
		var message []byte
		err := from(&message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		host.Check(err)
		if rewrite != nil {
			message = host.Must(rewrite(ctx, message))
		}
		host.Check(to(&message))
	}
}

// A message is a pointer to a generated type.
type message[M any] interface {
	*M
	proto.Message
}

func rewriting[M any, P message[M]](change func(ctx context.Context, m P) error) rewrite {
	return func(ctx context.Context, message []byte) ([]byte, error) {
		m := P(new(M))
		if err := proto.Unmarshal(message, m); err != nil {
			return nil, err
		}
		// The metadata of the call are those of the client.
		if err := change(metadata.NewOutgoingContext(ctx, nil), m); err != nil {
			return nil, err
		}
		return proto.Marshal(m)
	}
}

func plain[M any, P message[M]](change func(m P)) rewrite {
	return rewriting(func(_ context.Context, m P) error {
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

func (c *CRIO) usedImage(ctx context.Context, of interface {
	GetImageId() string
	GetImageRef() string
},
) (id, ref string) {
	ref = of.GetImageRef()
	if digest, err := c.repoDigest(ctx, of.GetImageId()); err == nil { // else the image is gone
		ref = digest
	}
	return strings.TrimPrefix(of.GetImageId(), idPrefix), ref
}

func (c *CRIO) repoDigest(ctx context.Context, id string) (string, error) {
	request := &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: id}}
	i, err := runtimeapi.NewImageServiceClient(c.runtime).ImageStatus(ctx, request)
	digests := i.GetImage().GetRepoDigests()
	if err == nil && len(digests) == 0 {
		err = fmt.Errorf("image %s has no repo digest", id)
	}
	if err != nil {
		return "", err
	}
	return digests[0], nil
}

// refuseContentType is what a client sees of CRI-O, which drops a connection on which it finds another content type.
func refuseContentType(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("content-type"); len(got) != 1 || got[0] != "application/grpc" {
		return status.Errorf(codes.Unavailable, "content type %q: connection reset by peer", got)
	}
	return nil
}
