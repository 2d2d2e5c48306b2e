package node

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// oldAgent is the user agent of kubelets 1.29 and 1.30.
const oldAgent = "grpc-go/1.58.3"

// NewOldKubelet dials an endpoint with the user agent of kubelet 1.30; its pods are to set
// PrecheckAlways. The CRI client takes no user agent, so the image service is spoken to without it.
func NewOldKubelet(ctx context.Context, endpoint string) (*Kubelet, error) {
	k, err := NewKubelet(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithUserAgent(oldAgent))
	if err != nil {
		k.Close()
		return nil, err
	}
	_ = k.Images.Close(ctx) // the connection of the CRI client, which is not used
	k.Images = oldImages{cc: cc, client: runtimeapi.NewImageServiceClient(cc)}
	return k, nil
}

// oldImages speaks to the image service over a connection of its own.
type oldImages struct {
	cc     *grpc.ClientConn
	client runtimeapi.ImageServiceClient
}

func (o oldImages) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	resp, err := o.client.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: filter})
	return resp.GetImages(), err
}

func (o oldImages) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return o.client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: image, Verbose: verbose})
}

func (o oldImages) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := o.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(resp.GetImageRef()), nil
}

func (o oldImages) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	_, err := o.client.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: image})
	return err
}

func (o oldImages) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return o.client.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}

func (o oldImages) Close(context.Context) error { return o.cc.Close() }
