package gate

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// ownCallLimit limits the duration of a call of a Runtime.
const ownCallLimit = 10 * time.Second

// A Runtime makes pullgate's own calls to the container runtime, as [tracker.Runtime] and for the gate.
type Runtime struct {
	runtime, image *criproxy.Upstream
}

// NewRuntime returns a Runtime on the connections for the two services of the CRI, which may be the same connection.
func NewRuntime(runtime, image *criproxy.Upstream) *Runtime {
	return &Runtime{runtime: runtime, image: image}
}

// own makes a call, and returns the answer, or an error that begins with what was to be done.
func own[M any, P interface {
	*M
	proto.Message
}](ctx context.Context, u *criproxy.Upstream, method string, req proto.Message, doing string) (P, error) {
	ctx, cancel := context.WithTimeout(ctx, ownCallLimit)
	defer cancel()
	resp := P(new(M))
	if err := u.Invoke(ctx, method, req, resp); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return resp, nil
}

// Images returns every image of the runtime.
func (r *Runtime) Images(ctx context.Context) ([]tracker.Image, error) {
	resp, err := own[runtimeapi.ListImagesResponse](ctx, r.image, runtimeapi.ImageService_ListImages_FullMethodName,
		&runtimeapi.ListImagesRequest{}, "list images of the runtime")
	if err != nil {
		return nil, err
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

// imageOf is Image for a client's whole specification: a runtime may have one image under a name per runtime_handler.
func (r *Runtime) imageOf(ctx context.Context, spec *runtimeapi.ImageSpec) (tracker.Image, error) {
	resp, err := own[runtimeapi.ImageStatusResponse](ctx, r.image, runtimeapi.ImageService_ImageStatus_FullMethodName,
		&runtimeapi.ImageStatusRequest{Image: spec}, fmt.Sprintf("ask the runtime for image %q", spec.GetImage()))
	return image(resp.GetImage()), err
}

// Version returns the name and the version of the runtime.
func (r *Runtime) Version(ctx context.Context) (name, version string, err error) {
	resp, err := own[runtimeapi.VersionResponse](ctx, r.runtime, runtimeapi.RuntimeService_Version_FullMethodName,
		&runtimeapi.VersionRequest{}, "ask the runtime for its version")
	return resp.GetRuntimeName(), resp.GetRuntimeVersion(), err
}

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
	const method = runtimeapi.RuntimeService_ListPodSandbox_FullMethodName
	return own[runtimeapi.ListPodSandboxResponse](ctx, r.runtime, method,
		&runtimeapi.ListPodSandboxRequest{}, "list sandboxes of the runtime")
}

func (r *Runtime) containers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	const method = runtimeapi.RuntimeService_ListContainers_FullMethodName
	resp, err := own[runtimeapi.ListContainersResponse](ctx, r.runtime, method,
		&runtimeapi.ListContainersRequest{Filter: filter}, "list containers of the runtime")
	return resp.GetContainers(), err
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

func (r *Runtime) containerStatus(ctx context.Context, c *runtimeapi.Container) (*runtimeapi.ContainerStatus, error) {
	const method = runtimeapi.RuntimeService_ContainerStatus_FullMethodName
	resp, err := own[runtimeapi.ContainerStatusResponse](ctx, r.runtime, method,
		&runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()}, "ask the runtime for container "+c.GetId())
	return resp.GetStatus(), err
}

func (r *Runtime) removeContainer(ctx context.Context, id string) error {
	const method = runtimeapi.RuntimeService_RemoveContainer_FullMethodName
	_, err := own[runtimeapi.RemoveContainerResponse](ctx, r.runtime, method,
		&runtimeapi.RemoveContainerRequest{ContainerId: id}, "remove container "+id)
	return err
}

func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	const stop = runtimeapi.RuntimeService_StopPodSandbox_FullMethodName
	const remove = runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName
	_, err := own[runtimeapi.StopPodSandboxResponse](ctx, r.runtime, stop,
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: id}, "remove sandbox "+id)
	if err == nil {
		_, err = own[runtimeapi.RemovePodSandboxResponse](ctx, r.runtime, remove,
			&runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}, "remove sandbox "+id)
	}
	return err
}

// runsOn returns the image ID of a container: image_id from CRI 0.29 on, before that image_ref.
func runsOn(c *runtimeapi.Container) string { return cmp.Or(c.GetImageId(), c.GetImageRef()) }
