package criproxytest

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
)

// An Image is one that the fake runtime has, or that its registry gives.
type Image struct {
	ID    string
	Names []string // tags and digests
	// Restores is a name or the ID of the image that a container on this checkpoint image gets instead.
	Restores string
	// Claims is the ID of the image that the runtime says such a container is on; "" is the true one.
	Claims string
	// Brings are images that the runtime pulls and names when it restores the checkpoint, before anything can fail.
	Brings []Image
	// Fails is the error after which no container is created from the checkpoint; nil is none.
	Fails error
}

// A Runtime is a fake container runtime that behaves as containerd does, or as its [Profile] says, where it matters to
// a proxy that judges: it resolves prefixes of image IDs, with an error for an ambiguous one, answers an absent image
// with an empty message, and puts a container that is created from a checkpoint image on another image. Its fields may
// be changed under Do. Its functions get the short name of a method, and may be nil.
type Runtime struct {
	// Registry answers a pull; a nil one has nothing.
	Registry func(name string, auth *cri.AuthConfig) (Image, error)
	// ImageRef returns the image_ref that answers a pull of a name; nil answers with the image's ID.
	ImageRef func(name string, img Image) string
	// Fail returns the error that a call is answered with instead of being carried out.
	Fail func(method string) error
	// Rewrite changes the bytes of an answer.
	Rewrite func(method string, answer []byte) []byte
	// Release is the name and the version that the runtime says it is; the zero value is a fake of version 1.
	Release [2]string
	// BeforeAnswer is called when a call has been carried out and not yet answered.
	BeforeAnswer func(method string)

	mu         sync.Mutex
	images     []Image
	sandboxes  map[string]*cri.PodSandbox
	containers map[string]*container
	requests   map[string][][]byte // by the short name of the method
	next       int

	profile Profile
	socket  string
	server  *grpc.Server
}

type container struct {
	*cri.Container

	mounts  []*cri.Mount
	started int64
}

// NewRuntime starts a runtime that has nothing, with the profile of containerd.
func NewRuntime(tb testing.TB) *Runtime {
	tb.Helper()
	return NewRuntimeAs(tb, Containerd)
}

// SocketDir returns a folder whose path is short enough for sockets in it. It is removed at the end of the test.
func SocketDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // a socket's path must be short
	testkit.Must(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Listen listens on a unix socket. The caller closes the listener.
func Listen(tb testing.TB, socket string) net.Listener {
	tb.Helper()
	return testkit.Value((&net.ListenConfig{}).Listen(tb.Context(), "unix", socket))(tb)
}

// NewRuntimeAs starts a runtime that has nothing.
func NewRuntimeAs(tb testing.TB, profile Profile) *Runtime {
	tb.Helper()
	r := &Runtime{
		sandboxes: map[string]*cri.PodSandbox{}, containers: map[string]*container{}, requests: map[string][][]byte{},
		profile: profile, socket: filepath.Join(SocketDir(tb), "runtime.sock"),
	}
	r.Start(tb)
	tb.Cleanup(r.Stop)
	return r
}

// Start serves again after Stop; what the runtime has is still there.
func (r *Runtime) Start(tb testing.TB) {
	tb.Helper()
	r.server = Serve(Listen(tb, r.socket), r.Handle, r.profile.serverOptions()...)
}

// Stop closes every connection and the socket.
func (r *Runtime) Stop() { r.server.Stop() }

// Endpoint is where the runtime listens.
func (r *Runtime) Endpoint() string { return "unix://" + r.socket }

// Do changes the runtime's fields while no call looks at them.
func (r *Runtime) Do(f func(r *Runtime)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

// SetImages replaces the images.
func (r *Runtime) SetImages(images ...Image) {
	r.Do(func(r *Runtime) {
		r.images = slices.Clone(images)
		for i := range r.images {
			r.images[i].Names = slices.Clone(r.images[i].Names)
		}
	})
}

// Calls returns how often a method was called, by its short name.
func (r *Runtime) Calls(method string) int { return len(r.Requests(method)) }

// Requests returns the bytes of every call of a method as they came, by its short name, oldest first.
func (r *Runtime) Requests(method string) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests[method])
}

// Containers returns the IDs of the containers, sorted.
func (r *Runtime) Containers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.containers))
}

// Handle answers a call, on a server with the [RawCodec].
func (r *Runtime) Handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	method := path.Base(full)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	r.mu.Lock()
	r.requests[method] = append(r.requests[method], request)
	fail := r.Fail
	r.mu.Unlock()
	if fail != nil {
		if err := fail(method); err != nil {
			return err
		}
	}
	answer, err := r.carryOut(full, request)
	r.mu.Lock()
	before, rewrite := r.BeforeAnswer, r.Rewrite
	r.mu.Unlock()
	if before != nil {
		before(method)
	}
	if err != nil {
		return err
	}
	if rewrite != nil {
		answer = rewrite(method, answer)
	}
	return stream.SendMsg(&answer)
}

func (r *Runtime) carryOut(method string, request []byte) (answer []byte, err error) {
	name := protoreflect.FullName(strings.ReplaceAll(method[1:], "/", "."))
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(name)
	known, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(known.Input().FullName())
	if err != nil {
		return nil, err
	}
	req := kind.New().Interface()
	if err := proto.Unmarshal(request, req); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	resp, err := Call[proto.Message](r, req)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(resp)
}

// Call carries out a call that no client makes: its request is not kept, and the functions of the runtime do not apply.
func Call[R proto.Message](r *Runtime, req proto.Message) (resp R, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer, err := r.imagesLocked(req)
	resp, _ = answer.(R)
	return resp, err
}

// imagesLocked carries out a call of the ImageService, or one of the RuntimeService by podsLocked.
func (r *Runtime) imagesLocked(req proto.Message) (any, error) {
	switch req := req.(type) {
	case *cri.ListImagesRequest:
		resp := &cri.ListImagesResponse{}
		for i := range r.images {
			resp.Images = append(resp.Images, r.message(&r.images[i]))
		}
		return resp, nil
	case *cri.ImageStatusRequest:
		i, err := r.resolveLocked(req.GetImage().GetImage())
		if err != nil {
			return nil, r.unresolved(req.GetImage().GetImage(), err)
		}
		if i == nil {
			return &cri.ImageStatusResponse{}, nil
		}
		resp := &cri.ImageStatusResponse{Image: r.message(i)}
		if req.GetVerbose() {
			resp.Info = map[string]string{"verbose": "yes"}
		}
		return resp, nil
	case *cri.PullImageRequest:
		ref, err := r.pullLocked(req.GetImage().GetImage(), req.GetAuth())
		return &cri.PullImageResponse{ImageRef: ref}, err
	case *cri.RemoveImageRequest: // with all its names
		name := req.GetImage().GetImage()
		i, err := r.resolveLocked(name)
		switch {
		case err != nil:
			return nil, r.unresolved(name, err)
		case i != nil && r.profile != Containerd:
			return &cri.RemoveImageResponse{}, r.removeCRIOLocked(name, i)
		case i != nil:
			r.images = slices.DeleteFunc(r.images, sameAs(i.ID))
		}
		return &cri.RemoveImageResponse{}, nil
	default:
		return r.podsLocked(req)
	}
}

func sameAs(id string) func(Image) bool { return func(i Image) bool { return i.ID == id } }

// pullLocked asks the registry. A tag moves to the image that it gives.
func (r *Runtime) pullLocked(name string, auth *cri.AuthConfig) (ref string, err error) {
	if _, err := reference.ParseDockerRef(name); err != nil {
		return "", status.Errorf(codes.Unknown, "failed to parse image reference %q: %v", name, err)
	}
	registry := r.Registry
	if registry == nil {
		return "", status.Errorf(codes.NotFound, "failed to pull and unpack image %q: not found", name)
	}
	var img Image
	func() { // the registry may wait
		r.mu.Unlock()
		defer r.mu.Lock()
		img, err = registry(name, auth)
	}()
	if err != nil {
		return "", r.profile.refusal(name, err)
	}
	if r.profile == Containerd {
		ref = img.ID
		r.addLocked(name, img)
	} else {
		ref = r.pulledCRIOLocked(name, img)
	}
	if r.ImageRef != nil {
		ref = r.ImageRef(name, img)
	}
	return ref, nil
}

func (r *Runtime) addLocked(name string, img Image) {
	name = normal(name)
	at := -1
	for i := range r.images {
		r.images[i].Names = slices.DeleteFunc(r.images[i].Names, func(n string) bool { return normal(n) == name })
		if r.images[i].ID == img.ID {
			at = i
		}
	}
	if at < 0 {
		img.Names = slices.Clone(img.Names)
		r.images = append(r.images, img)
		at = len(r.images) - 1
	}
	if !slices.Contains(r.images[at].Names, name) {
		r.images[at].Names = append(r.images[at].Names, name)
	}
}

func (r *Runtime) idLocked(kind string) string {
	r.next++
	return fmt.Sprintf("%s-%d", kind, r.next)
}

// podsLocked carries out a call of the RuntimeService. The filters of lists are by ID.
func (r *Runtime) podsLocked(req proto.Message) (any, error) {
	switch req := req.(type) {
	case *cri.RunPodSandboxRequest:
		return &cri.RunPodSandboxResponse{PodSandboxId: r.sandboxLocked(req.GetConfig())}, nil
	case *cri.StopPodSandboxRequest:
		return &cri.StopPodSandboxResponse{}, nil
	case *cri.RemovePodSandboxRequest:
		delete(r.sandboxes, req.GetPodSandboxId())
		maps.DeleteFunc(r.containers, func(_ string, c *container) bool {
			return c.GetPodSandboxId() == req.GetPodSandboxId()
		})
		return &cri.RemovePodSandboxResponse{}, nil
	case *cri.ListPodSandboxRequest:
		resp := &cri.ListPodSandboxResponse{}
		for id, s := range r.sandboxes {
			if want := req.GetFilter().GetId(); want == "" || want == id {
				resp.Items = append(resp.Items, s)
			}
		}
		return resp, nil
	case *cri.CreateContainerRequest:
		id, err := r.createLocked(req.GetPodSandboxId(), req.GetConfig())
		return &cri.CreateContainerResponse{ContainerId: id}, err
	case *cri.RestorePodRequest: // makes a sandbox with created containers
		resp := &cri.RestorePodResponse{PodSandboxId: r.sandboxLocked(req.GetConfig())}
		for _, c := range req.GetContainerConfigs() {
			id, err := r.createLocked(resp.GetPodSandboxId(), c)
			if err != nil {
				return nil, err
			}
			resp.RestoredContainers = append(resp.RestoredContainers,
				&cri.RestoredContainer{Name: c.GetMetadata().GetName(), ContainerId: id})
		}
		return resp, nil
	case *cri.ListContainersRequest:
		resp := &cri.ListContainersResponse{}
		for id, c := range r.containers {
			if strings.HasPrefix(id, req.GetFilter().GetId()) { // a prefix does for the whole ID
				resp.Containers = append(resp.Containers, r.asListedLocked(c.Container))
			}
		}
		return resp, nil
	default:
		return r.containersLocked(req)
	}
}

// containersLocked carries out a call about a container that exists, or about the runtime.
func (r *Runtime) containersLocked(req proto.Message) (any, error) {
	switch req := req.(type) {
	case *cri.StartContainerRequest:
		var c *container
		for id, x := range r.containers {
			if id == req.GetContainerId() || c == nil && strings.HasPrefix(id, req.GetContainerId()) {
				c = x
			}
		}
		if c == nil {
			return nil, status.Errorf(codes.NotFound, "container %q: not found", req.GetContainerId())
		}
		c.State, c.started = cri.ContainerState_CONTAINER_RUNNING, 1
		return &cri.StartContainerResponse{}, nil
	case *cri.StopContainerRequest: // started or not
		if c := r.containers[req.GetContainerId()]; c != nil {
			c.State = cri.ContainerState_CONTAINER_EXITED
		}
		return &cri.StopContainerResponse{}, nil
	case *cri.RemoveContainerRequest:
		delete(r.containers, req.GetContainerId())
		return &cri.RemoveContainerResponse{}, nil
	case *cri.ContainerStatusRequest:
		c := r.containers[req.GetContainerId()]
		if c == nil {
			return nil, status.Errorf(codes.NotFound, "container %q: not found", req.GetContainerId())
		}
		l := r.asListedLocked(c.Container)
		return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{
			Id: l.GetId(), State: l.GetState(), Image: l.GetImage(), ImageRef: l.GetImageRef(),
			CreatedAt: l.GetCreatedAt(), StartedAt: c.started, Mounts: c.mounts,
		}}, nil
	case *cri.VersionRequest:
		return &cri.VersionResponse{
			Version: "0.1.0", RuntimeName: cmp.Or(r.Release[0], "fake"), RuntimeVersion: cmp.Or(r.Release[1], "1"),
			RuntimeApiVersion: "v1",
		}, nil
	case *cri.ImageFsInfoRequest: // by which clients find out whether this is an image service
		return &cri.ImageFsInfoResponse{}, nil
	case *cri.StatusRequest:
		return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
			{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true},
		}}}, nil
	default:
		return nil, status.Errorf(codes.Unimplemented, "unknown message %T", req)
	}
}

func (r *Runtime) sandboxLocked(c *cri.PodSandboxConfig) (id string) {
	id = r.idLocked("sandbox")
	r.sandboxes[id] = &cri.PodSandbox{
		Id: id, Metadata: c.GetMetadata(), Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
		CreatedAt: time.Now().UnixNano(),
	}
	return id
}

// createLocked puts a container on an image, or on what a checkpoint image names, which gets the name asked for.
func (r *Runtime) createLocked(sandbox string, config *cri.ContainerConfig) (string, error) {
	i, err := r.resolveLocked(config.GetImage().GetImage())
	if err != nil {
		return "", status.Errorf(codes.Unknown, "failed to resolve image %q: %v", config.GetImage().GetImage(), err)
	}
	if i == nil {
		return "", status.Errorf(codes.NotFound, "image %q: not found", config.GetImage().GetImage())
	}
	on, annotations := i.ID, config.GetAnnotations()
	if i.Restores != "" {
		if on, err = r.restoreLocked(*i, config.GetImage().GetUserSpecifiedImage()); err != nil {
			return "", err
		}
		annotations = map[string]string{"restored": "true", "checkpointImage": config.GetImage().GetUserSpecifiedImage()}
	}
	id := r.idLocked("container")
	r.containers[id] = &container{Container: &cri.Container{
		Id: id, PodSandboxId: sandbox, Metadata: config.GetMetadata(), Image: config.GetImage(), ImageRef: on, ImageId: on,
		CreatedAt: time.Now().UnixNano(), Annotations: annotations, Labels: config.GetLabels(),
	}, mounts: config.GetMounts()}
	return id, nil
}

func (r *Runtime) restoreLocked(checkpoint Image, name string) (on string, err error) {
	for _, b := range checkpoint.Brings {
		for _, n := range b.Names {
			r.addLocked(n, b)
		}
	}
	base, err := r.resolveLocked(checkpoint.Restores)
	if err != nil || base == nil {
		return "", status.Errorf(codes.Unknown, "failed to pull checkpoint base image %s: not found", checkpoint.Restores)
	}
	if checkpoint.Fails != nil {
		return "", checkpoint.Fails
	}
	id := base.ID
	if name != "" {
		r.addLocked(name, Image{ID: id})
	}
	return cmp.Or(checkpoint.Claims, id), nil
}
