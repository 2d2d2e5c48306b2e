package gate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// ownCallLimit limits the duration of a call of a Runtime.
const ownCallLimit = 10 * time.Second

// A Runtime makes pullgate's own calls to the container runtime, in addition to the forwarded ones. It implements [tracker.Runtime]. Its methods
// may be called concurrently.
type Runtime struct {
	runtime, image *criproxy.Upstream
}

// NewRuntime returns a Runtime on the connections for the two services of the CRI, which may be the same connection.
func NewRuntime(runtime, image *criproxy.Upstream) *Runtime {
	return &Runtime{runtime: runtime, image: image}
}

func own(ctx context.Context, u *criproxy.Upstream, method string, req, resp proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, ownCallLimit)
	defer cancel()
	return u.Invoke(ctx, method, req, resp)
}

// Images returns every image of the runtime.
func (r *Runtime) Images(ctx context.Context) ([]tracker.Image, error) {
	var resp runtimeapi.ListImagesResponse
	if err := own(ctx, r.image, runtimeapi.ImageService_ListImages_FullMethodName, &runtimeapi.ListImagesRequest{}, &resp); err != nil {
		return nil, fmt.Errorf("list images of the runtime: %w", err)
	}
	images := make([]tracker.Image, 0, len(resp.GetImages()))
	for _, i := range resp.GetImages() {
		images = append(images, image(i))
	}
	return images, nil
}

// Image returns the image of the runtime under a name or an ID, the zero value if there is none.
func (r *Runtime) Image(ctx context.Context, name string) (tracker.Image, error) {
	return r.imageOf(ctx, &runtimeapi.ImageSpec{Image: name})
}

// imageOf is Image for the image specification of a client's call. A runtime may have several images under one name, one for each
// runtime_handler, so imageOf sends the whole specification.
func (r *Runtime) imageOf(ctx context.Context, spec *runtimeapi.ImageSpec) (tracker.Image, error) {
	i, err := r.imageStatus(ctx, spec)
	return image(i), err
}

// imageIDOf is imageOf without the names of the image; "" if there is none.
func (r *Runtime) imageIDOf(ctx context.Context, spec *runtimeapi.ImageSpec) (string, error) {
	i, err := r.imageStatus(ctx, spec)
	return i.GetId(), err
}

// imageStatus returns nil for an absent image.
func (r *Runtime) imageStatus(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	var resp runtimeapi.ImageStatusResponse
	req := &runtimeapi.ImageStatusRequest{Image: spec}
	if err := own(ctx, r.image, runtimeapi.ImageService_ImageStatus_FullMethodName, req, &resp); err != nil {
		return nil, fmt.Errorf("ask the runtime for image %q: %w", spec.GetImage(), err)
	}
	return resp.GetImage(), nil
}

// Version returns the name and the version of the runtime.
func (r *Runtime) Version(ctx context.Context) (name, version string, err error) {
	var resp runtimeapi.VersionResponse
	if err := own(ctx, r.runtime, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}, &resp); err != nil {
		return "", "", fmt.Errorf("ask the runtime for its version: %w", err)
	}
	return resp.GetRuntimeName(), resp.GetRuntimeVersion(), nil
}

// sandboxes returns every sandbox of the runtime.
func (r *Runtime) sandboxes(ctx context.Context) ([]podindex.Sandbox, error) {
	resp, err := r.listSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	return sandboxes(resp), nil
}

// latestSandbox returns the sandbox of a pod that was created last, nil if there is none.
func (r *Runtime) latestSandbox(ctx context.Context, uid string) (latest *runtimeapi.PodSandbox, err error) {
	resp, err := r.listSandboxes(ctx)
	for _, s := range resp.GetItems() {
		if s.GetMetadata().GetUid() == uid && (latest == nil || s.GetCreatedAt() > latest.GetCreatedAt()) {
			latest = s
		}
	}
	return latest, err
}

func (r *Runtime) listSandboxes(ctx context.Context) (*runtimeapi.ListPodSandboxResponse, error) {
	var resp runtimeapi.ListPodSandboxResponse
	if err := own(ctx, r.runtime, runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, &runtimeapi.ListPodSandboxRequest{}, &resp); err != nil {
		return nil, fmt.Errorf("list sandboxes of the runtime: %w", err)
	}
	return &resp, nil
}

// containers returns the containers that match the filter; nil matches all.
func (r *Runtime) containers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	var resp runtimeapi.ListContainersResponse
	req := &runtimeapi.ListContainersRequest{Filter: filter}
	if err := own(ctx, r.runtime, runtimeapi.RuntimeService_ListContainers_FullMethodName, req, &resp); err != nil {
		return nil, fmt.Errorf("list containers of the runtime: %w", err)
	}
	return resp.GetContainers(), nil
}

// container returns one container by its ID, nil if there is none. Like runtimes, it accepts a unique prefix of an ID.
func (r *Runtime) container(ctx context.Context, id string) (*runtimeapi.Container, error) {
	found, err := r.containers(ctx, &runtimeapi.ContainerFilter{Id: id})
	if err != nil {
		return nil, err
	}
	for _, c := range found {
		if c.GetId() == id || len(found) == 1 {
			return c, nil
		}
	}
	if len(found) > 0 {
		return nil, fmt.Errorf("%d containers for ID %s, none of them with it", len(found), id)
	}
	return nil, nil //nolint:nilnil // absence is an answer here
}

// containerStatus returns the status of a container.
func (r *Runtime) containerStatus(ctx context.Context, c *runtimeapi.Container) (*runtimeapi.ContainerStatus, error) {
	var resp runtimeapi.ContainerStatusResponse
	req := &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()}
	if err := own(ctx, r.runtime, runtimeapi.RuntimeService_ContainerStatus_FullMethodName, req, &resp); err != nil {
		return nil, fmt.Errorf("ask the runtime for container %s: %w", c.GetId(), err)
	}
	return resp.GetStatus(), nil
}

// removeContainer removes a container that must not be started.
func (r *Runtime) removeContainer(ctx context.Context, id string) error {
	err := own(ctx, r.runtime, runtimeapi.RuntimeService_RemoveContainer_FullMethodName,
		&runtimeapi.RemoveContainerRequest{ContainerId: id}, &runtimeapi.RemoveContainerResponse{})
	if err != nil {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

// removeSandbox stops and removes a sandbox with all its containers.
func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	err := own(ctx, r.runtime, runtimeapi.RuntimeService_StopPodSandbox_FullMethodName,
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: id}, &runtimeapi.StopPodSandboxResponse{})
	if err == nil {
		err = own(ctx, r.runtime, runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName,
			&runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}, &runtimeapi.RemovePodSandboxResponse{})
	}
	if err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// runsOn returns the image ID of a container: image_id from CRI 0.29 on, before that image_ref.
func runsOn(c *runtimeapi.Container) string {
	if id := c.GetImageId(); id != "" {
		return id
	}
	return c.GetImageRef()
}
