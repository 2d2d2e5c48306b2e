package criproxytest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
)

// A Kubelet sends the calls of a kubelet that matter to a proxy which judges.
type Kubelet struct {
	Conn    *grpc.ClientConn
	Images  runtimeapi.ImageServiceClient
	Runtime runtimeapi.RuntimeServiceClient
	t       testing.TB
	pods    int
}

// NewKubelet returns a kubelet before an endpoint; it ends with the test.
func NewKubelet(tb testing.TB, endpoint string) *Kubelet {
	tb.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)))
	testkit.Must(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return &Kubelet{
		Conn: conn, Images: runtimeapi.NewImageServiceClient(conn),
		Runtime: runtimeapi.NewRuntimeServiceClient(conn), t: tb,
	}
}

// A Pod is one pod as its kubelet knows it.
type Pod struct {
	UID, Sandbox string
	Config       *runtimeapi.PodSandboxConfig
}

// Pod runs the sandbox of a new pod in a namespace.
func (k *Kubelet) Pod(namespace string) *Pod {
	k.t.Helper()
	p := k.PodFrom(namespace, "api")
	testkit.Must(k.t, k.Sandbox(k.t.Context(), p))
	return p
}

// PodFrom returns a pod of a source, without a sandbox yet.
func (k *Kubelet) PodFrom(namespace, source string) *Pod {
	k.pods++
	uid := fmt.Sprintf("%s-%d", namespace, k.pods)
	return &Pod{UID: uid, Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid, Namespace: namespace, Name: uid},
		Annotations: map[string]string{
			"kubernetes.io/config.seen": "2026-11-21T05:00:00." + uid, "kubernetes.io/config.source": source,
		},
	}}
}

// Sandbox runs the sandbox of a pod.
func (k *Kubelet) Sandbox(ctx context.Context, p *Pod) error {
	resp, err := k.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.Config})
	p.Sandbox = resp.GetPodSandboxId()
	return err
}

// Precheck returns the image ID of the answer, "" for the empty one.
func (k *Kubelet) Precheck(p *Pod, name string) string {
	k.t.Helper()
	return testkit.Value(k.TryPrecheck(k.t.Context(), p, name))(k.t)
}

// TryPrecheck is Precheck for a call that may fail.
func (k *Kubelet) TryPrecheck(ctx context.Context, p *Pod, name string) (string, error) {
	resp, err := k.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: name, Annotations: p.Config.GetAnnotations()},
	})
	return resp.GetImage().GetId(), err
}

// Pull pulls with the password of the user "tenant", "" for no credential at all, and returns the image's ID, also if
// the runtime answers with a digest. A nil pod stands for a client that pulls without a pod.
func (k *Kubelet) Pull(ctx context.Context, p *Pod, name, password string) (string, error) {
	req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}}
	if p != nil {
		req.SandboxConfig = p.Config
	}
	if password != "" {
		req.Auth = &runtimeapi.AuthConfig{Username: "tenant", Password: password}
	}
	resp, err := k.Images.PullImage(ctx, req)
	if ref := resp.GetImageRef(); err == nil && strings.Contains(ref, "@") {
		status, err := k.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		return status.GetImage().GetId(), err
	}
	return resp.GetImageRef(), err
}

// MustPull is Pull for a call that must not fail.
func (k *Kubelet) MustPull(p *Pod, name, password string) (id string) {
	k.t.Helper()
	return testkit.Value(k.Pull(k.t.Context(), p, name, password))(k.t)
}

// Create creates a container on an image ID that the pod names so.
func (k *Kubelet) Create(ctx context.Context, p *Pod, id, name string, mounts ...*runtimeapi.Mount) (string, error) {
	resp, err := k.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.Sandbox, SandboxConfig: p.Config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name},
			Mounts:   mounts,
		},
	})
	return resp.GetContainerId(), err
}

// Start starts a container.
func (k *Kubelet) Start(ctx context.Context, id string) error {
	_, err := k.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}
