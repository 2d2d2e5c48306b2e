package podviews

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Images that the runtime has, by the user that they run as: root, one with a number, and one with a name.
const (
	image         = "registry.example/root:1"
	numberedImage = "registry.example/team/numbered@sha256:0f9b1b3f7c58c1b1d7f0c0f2ab8c7a4e5d6c3b2a190817263544362718f9e0d1"
	namedImage    = "registry.example/named"
)

// A Runtime is a container runtime that keeps what a kubelet sends, and runs no process. It has the images of all generated pods. Init containers end at once
// with success; others run until they are stopped.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	endpoint string
	server   *grpc.Server

	mu         sync.Mutex // guards the following fields
	made       int        // sandboxes and containers
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*container
	pods       map[string]*sent // by UID
}

// A container is one of the runtime.
type container struct {
	sandbox string
	status  *runtimeapi.ContainerStatus
}

// sent is what a kubelet sent about a pod the first time.
type sent struct {
	sandbox    *runtimeapi.PodSandboxConfig
	containers map[string]*runtimeapi.CreateContainerRequest // by name
}

// StartRuntime serves a runtime on a socket in dir. Close ends it.
func StartRuntime(ctx context.Context, dir string) (*Runtime, error) {
	socket := filepath.Join(dir, "runtime.sock")
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		endpoint: "unix://" + socket, server: grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20)),
		sandboxes: map[string]*runtimeapi.PodSandboxStatus{}, containers: map[string]*container{}, pods: map[string]*sent{},
	}
	runtimeapi.RegisterRuntimeServiceServer(r.server, r)
	runtimeapi.RegisterImageServiceServer(r.server, r)
	go func() { _ = r.server.Serve(l) }() // ends with Close
	return r, nil
}

// Close ends every call and connection.
func (r *Runtime) Close() { r.server.Stop() }

// Endpoint is what a kubelet dials.
func (r *Runtime) Endpoint() string { return r.endpoint }

// Complete reports whether a kubelet has sent a number of containers of a pod.
func (r *Runtime) Complete(uid string, containers int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid] != nil && len(r.pods[uid].containers) == containers
}

// of returns what was sent about a pod; nil if nothing was.
func (r *Runtime) of(uid string) *sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pods[uid]
	if s == nil {
		return nil
	}
	return &sent{s.sandbox, maps.Clone(s.containers)}
}

func (r *Runtime) idLocked() string {
	r.made++
	return fmt.Sprintf("%064x", r.made)
}

// Version is that of a runtime which kubelets do not know.
func (*Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "podviews", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status says that the runtime is ready.
func (*Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

// UpdateRuntimeConfig does nothing.
func (*Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// RunPodSandbox makes a sandbox with the namespaces that the kubelet wants.
func (r *Runtime) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := req.GetConfig()
	if uid := c.GetMetadata().GetUid(); r.pods[uid] == nil {
		r.pods[uid] = &sent{c, map[string]*runtimeapi.CreateContainerRequest{}}
	}
	id := r.idLocked()
	r.sandboxes[id] = &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: c.GetMetadata(), CreatedAt: time.Now().UnixNano(), Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "192.0.2.1"},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: c.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox stops a sandbox and its containers.
func (r *Runtime) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[req.GetPodSandboxId()]; s != nil {
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	for _, c := range r.containers {
		if c.sandbox == req.GetPodSandboxId() {
			c.end(137)
		}
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox removes a sandbox and its containers.
func (r *Runtime) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, req.GetPodSandboxId())
	maps.DeleteFunc(r.containers, func(_ string, c *container) bool { return c.sandbox == req.GetPodSandboxId() })
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns the status of a sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[req.GetPodSandboxId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %s not found", req.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: proto.CloneOf(s)}, nil
}

// ListPodSandbox returns the sandboxes that the filter selects.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, resp := req.GetFilter(), &runtimeapi.ListPodSandboxResponse{}
	for id, s := range r.sandboxes {
		if (f.GetId() == "" || f.GetId() == id) && (f.GetState() == nil || f.GetState().GetState() == s.GetState()) && has(s.GetLabels(), f.GetLabelSelector()) {
			resp.Items = append(resp.Items, &runtimeapi.PodSandbox{
				Id: id, Metadata: s.GetMetadata(), State: s.GetState(), CreatedAt: s.GetCreatedAt(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
			})
		}
	}
	return resp, nil
}

// CreateContainer makes a container that was not started.
func (r *Runtime) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, s := req.GetConfig(), r.sandboxes[req.GetPodSandboxId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %s not found", req.GetPodSandboxId())
	}
	of, name := r.pods[s.GetMetadata().GetUid()].containers, c.GetMetadata().GetName()
	if of[name] == nil {
		of[name] = req
	}
	id := r.idLocked()
	r.containers[id] = &container{sandbox: s.GetId(), status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: c.GetMetadata(), CreatedAt: time.Now().UnixNano(), Image: c.GetImage(), ImageRef: c.GetImage().GetImage(), ImageId: c.GetImage().GetImage(),
		Labels: c.GetLabels(), Annotations: c.GetAnnotations(), LogPath: filepath.Join(s.GetMetadata().GetUid(), c.GetLogPath()),
	}}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer starts a container. An init container ends.
func (r *Runtime) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[req.GetContainerId()]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %s not found", req.GetContainerId())
	}
	c.status.State, c.status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	if strings.HasPrefix(c.status.GetMetadata().GetName(), initPrefix) {
		c.end(0)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// end ends the container, if it has not ended.
func (c *container) end(code int32) {
	if c.status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		c.status.State, c.status.ExitCode, c.status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	}
}

// StopContainer ends a container.
func (r *Runtime) StopContainer(_ context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[req.GetContainerId()]; c != nil {
		c.end(137)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer removes a container.
func (r *Runtime) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, req.GetContainerId())
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers returns the containers that the filter selects.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, resp := req.GetFilter(), &runtimeapi.ListContainersResponse{}
	for id, c := range r.containers {
		s := c.status
		if (f.GetId() == "" || f.GetId() == id) && (f.GetPodSandboxId() == "" || f.GetPodSandboxId() == c.sandbox) &&
			(f.GetState() == nil || f.GetState().GetState() == s.GetState()) && has(s.GetLabels(), f.GetLabelSelector()) {
			resp.Containers = append(resp.Containers, &runtimeapi.Container{
				Id: id, PodSandboxId: c.sandbox, Metadata: s.GetMetadata(), Image: s.GetImage(), ImageRef: s.GetImageRef(), ImageId: s.GetImageId(), State: s.GetState(),
				CreatedAt: s.GetCreatedAt(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
			})
		}
	}
	return resp, nil
}

// has reports whether labels have all labels of a selector.
func has(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ContainerStatus returns the status of a container.
func (r *Runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[req.GetContainerId()]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %s not found", req.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: proto.CloneOf(c.status)}, nil
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

// ListImages returns all images.
func (*Runtime) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: slices.Collect(maps.Values(images()))}, nil
}

// ImageStatus returns the image of a name.
func (*Runtime) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{Image: images()[req.GetImage().GetImage()]}, nil
}

// ImageFsInfo says that images take no space.
func (*Runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	fs := []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{}}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: fs, ContainerFilesystems: fs}, nil
}
