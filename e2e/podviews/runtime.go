package podviews

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// Images that the runtime has, by the user that they run as: root, one with a number, and one with a name.
const (
	image         = "registry.example/root:1"
	numberedImage = "registry.example/numbered@sha256:0f9b1b3f7c58c1b1d7f0c0f2ab8c7a4e5d6c3b2a190817263544362718f9e0d1"
	namedImage    = "registry.example/named"
)

// A Runtime is the fake runtime of the CRI's client that keeps what a kubelet sends. It has the images of all generated
// pods. Init containers end at once with success; others run until they are stopped.
type Runtime struct {
	*fake.RemoteRuntime
	Endpoint string // what a kubelet dials

	mu   sync.Mutex       // guards pods
	pods map[string]*sent // by UID
}

// sent is what a kubelet sent about a pod the first time.
type sent struct {
	sandbox    *runtimeapi.PodSandboxConfig
	containers map[string]*runtimeapi.CreateContainerRequest // by name
}

// StartRuntime serves a runtime on a socket in dir until the test ends.
func StartRuntime(tb testing.TB, dir string) *Runtime {
	tb.Helper()
	socket := filepath.Join(dir, "runtime.sock")
	l := testkit.Value((&net.ListenConfig{}).Listen(tb.Context(), "unix", socket))(tb)
	r := &Runtime{RemoteRuntime: fake.NewFakeRemoteRuntime(), Endpoint: "unix://" + socket, pods: map[string]*sent{}}
	r.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}
	r.ImageService.Images = images()
	fs := []*runtimeapi.FilesystemUsage{{
		FsId:      &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{},
	}}
	r.ImageService.SetFakeFilesystemUsage(fs)
	r.ImageService.SetFakeContainerFilesystemUsage(fs)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	go func() { _ = server.Serve(l) }() // ends with Stop
	tb.Cleanup(server.Stop)
	return r
}

// Complete reports whether a kubelet has sent a number of containers of a pod.
func (r *Runtime) Complete(uid string, containers int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid] != nil && len(r.pods[uid].containers) == containers
}

func (r *Runtime) of(uid string) *sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pods[uid]
	if s == nil {
		return nil
	}
	return &sent{s.sandbox, maps.Clone(s.containers)}
}

// RunPodSandbox notes the first sandbox of each pod.
func (r *Runtime) RunPodSandbox(
	ctx context.Context, req *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid := req.GetConfig().GetMetadata().GetUid(); r.pods[uid] == nil {
		r.pods[uid] = &sent{req.GetConfig(), map[string]*runtimeapi.CreateContainerRequest{}}
	}
	return r.RemoteRuntime.RunPodSandbox(ctx, req)
}

// CreateContainer notes the first request for each container.
func (r *Runtime) CreateContainer(
	ctx context.Context, req *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, name := r.pods[req.GetSandboxConfig().GetMetadata().GetUid()].containers, req.GetConfig().GetMetadata().GetName()
	if of[name] == nil {
		of[name] = req
	}
	return r.RemoteRuntime.CreateContainer(ctx, req)
}

// StartContainer starts a container. An init container ends.
func (r *Runtime) StartContainer(
	ctx context.Context, req *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	resp, err := r.RemoteRuntime.StartContainer(ctx, req)
	status, _ := r.RuntimeService.ContainerStatus(ctx, req.GetContainerId(), false) // nil if it is not there
	if strings.HasPrefix(status.GetStatus().GetMetadata().GetName(), initPrefix) {
		err = errors.Join(err, r.RuntimeService.StopContainer(ctx, req.GetContainerId(), 0))
	}
	return resp, err
}

// images returns the images of the runtime, by the names by which kubelets ask for them.
func images() map[string]*runtimeapi.Image {
	all := map[string]*runtimeapi.Image{
		image:                  {RepoTags: []string{image}, Uid: &runtimeapi.Int64Value{}},
		numberedImage:          {RepoDigests: []string{numberedImage}, Uid: &runtimeapi.Int64Value{Value: 1000}},
		namedImage:             {RepoTags: []string{namedImage + ":latest"}, Username: "app"},
		namedImage + ":latest": {RepoTags: []string{namedImage + ":latest"}, Username: "app"},
	}
	for _, i := range all {
		name := slices.Concat(i.GetRepoTags(), i.GetRepoDigests())[0]
		i.Id, i.Size = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))), 1
	}
	return all
}
