package gate_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A content identifies an image, independent of its names. The last ones are checkpoints.
type content int

const (
	contents         = 6 // contents that can be pulled and run
	checkpoints      = 3
	firstCheckpoint  = content(contents + 1)
	allContents      = contents + checkpoints
	unknown          = content(0)
	digestOfManifest = "@sha256:"
)

// id is the image ID of the content.
func (c content) id() string { return "sha256:" + strings.Repeat(strconv.Itoa(int(c)), 64) }

// manifest is the digest of the content's manifest, with its repository.
func (c content) manifest(repository string) string {
	return repository + digestOfManifest + strings.Repeat(strconv.Itoa(int(c))+"0", 32)
}

func (c content) String() string {
	if c >= firstCheckpoint {
		return fmt.Sprintf("checkpoint %d", int(c))
	}
	return fmt.Sprintf("image %d", int(c))
}

// contentOf returns the content of an image ID or a digest of a manifest.
func contentOf(ref string) content {
	if at := strings.Index(ref, digestOfManifest); at >= 0 {
		ref = ref[at+1:]
	}
	hex, _ := strings.CutPrefix(ref, "sha256:")
	if hex == "" {
		return unknown
	}
	return content(hex[0] - '0')
}

// repositoryOf returns a name without its tag or digest. Names of the model are in normal form.
func repositoryOf(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		return name[:at]
	}
	return name
}

// A checkpoint says what a runtime does with a container that is created from a checkpoint image.
type checkpoint struct {
	base       string // the name of the image that the container is restored on
	given      string // the name that the runtime gives to the base image; "" for none
	reportedAs string // the name of the image that the runtime reports instead; "" for the real one
	failing    bool   // the creation fails after all these steps
}

// A runtimeKind holds the differences between runtimes.
type runtimeKind struct {
	pullsBase   bool // the runtime pulls a checkpoint's base image even if it is on the node (containerd 2.1.0 to 2.1.8)
	givesNames  bool // the runtime gives a checkpoint's base image a name (containerd 2.1.0 to 2.2.4, 2.3.0 and 2.3.1)
	digests     bool // the answer to a pull is a digest, and imported images have digests among their names too
	noEcho      bool // the runtime does not report user_specified_image of containers
	noImageID   bool // the runtime does not report image_id of containers (before CRI 0.29)
	noUserImage bool // the client does not send user_specified_image, as a kubelet does
}

// A registryPull is one pull that the registry has allowed or may allow.
type registryPull struct {
	uid        string // of the pod; "" if the pull is for no pod
	password   string
	secrets    []secretRef // of the pod, which hold the password
	begun      int         // number of revocations at the start
	departures int         // number of images that had left the node
	served     bool        // the registry returned the image
	proof      *modelProof // what that proved, if it did
	lent       bool        // the gate has put a credential into it
	lost       bool        // the store that contained the pull was lost
}

// A modelContainer is one container, with its real contents.
type modelContainer struct {
	*runtimeapi.Container
	real    []content // of its image and of its mounts
	mounts  []*runtimeapi.Mount
	asked   []string // the names that the pod gave to them; "" if the runtime did not get one
	pod     string   // the UID
	created time.Time
	started bool
	may     uses // what the pod was allowed to use when the container was judged
	key     int  // by which images had to be signed then
}

// A modelRuntime is a container runtime in process, with its registries.
type modelRuntime struct {
	kind  runtimeKind
	truth *truth

	mu          sync.Mutex
	serves      map[string]content // by name, in the registry
	down        bool               // no registry is reachable
	passwords   map[string]bool    // good passwords, which begin with their tenant's first letter
	images      map[content]map[string]bool
	checkpoints map[content]checkpoint
	sandboxes   map[string]*runtimeapi.PodSandbox
	containers  map[string]*modelContainer
	order       []string   // of containers
	late        []lateCall // calls that the runtime continues without a waiting client
	next        int
}

// A lateCall is executed later, and not answered.
type lateCall struct {
	method  string
	request []byte
	by      *interruption
}

func newModelRuntime(kind runtimeKind, t *truth) *modelRuntime {
	r := &modelRuntime{
		kind: kind, truth: t, serves: map[string]content{}, passwords: map[string]bool{"a0": true, "b0": true, "op": true},
		images: map[content]map[string]bool{}, checkpoints: map[content]checkpoint{},
		sandboxes: map[string]*runtimeapi.PodSandbox{}, containers: map[string]*modelContainer{},
	}
	for i, name := range []string{aliceApp1, aliceApp2, bobApp, openApp, baseImage, sharedApp, systemImage} {
		r.serves[name] = []content{1, 2, 3, 4, 5, 1, 6}[i]
	}
	for i, name := range checkpointNames {
		r.serves[name] = firstCheckpoint + content(i)
		r.checkpoints[firstCheckpoint+content(i)] = checkpoint{base: aliceApp1}
	}
	return r
}

// An interruption is what happens to one call in progress.
type interruption struct {
	method  string // the first call of this method is interrupted
	how     how
	met     bool
	waiting atomic.Bool
	release chan struct{}
	pull    *registryPull
	may     uses
	key     int
}

// A how says when a call is interrupted.
type how uint8

const (
	uninterrupted how = iota
	waitBefore        // the runtime is slow, and has done nothing yet
	waitAfter         // the runtime is slow, and has done everything except the answer
	loseAnswer        // the runtime has done everything, and the connection breaks
	loseCall          // the connection breaks, and the runtime does everything later
	hows
)

type interruptionKey struct{}

// A modelConn is the connection of one process to the runtime.
type modelConn struct {
	runtime *modelRuntime
	broken  chan struct{} // closed with the connection
}

var errBroken = status.Error(codes.Unavailable, "error reading from server: EOF")

// intercept answers a call in this process: the model makes a million.
func (c *modelConn) intercept(
	ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, o ...grpc.CallOption,
) error {
	var codec encoding.CodecV2
	for _, option := range o {
		if forced, ok := option.(grpc.ForceCodecV2CallOption); ok {
			codec = forced.CodecV2
		}
	}
	request, err := codec.Marshal(req)
	if err != nil {
		return err
	}
	response, err := c.call(ctx, method, request.Materialize())
	if err != nil {
		return err
	}
	return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(response)}, reply)
}

func (c *modelConn) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	response, err := c.carry(ctx, method, request)
	if x, _ := ctx.Value(interruptionKey{}).(*interruption); err == nil && x != nil && x.pull != nil &&
		strings.HasSuffix(method, "/PullImage") {
		x.pull.answered()
	}
	return response, err
}

func (c *modelConn) carry(ctx context.Context, method string, request []byte) ([]byte, error) {
	select {
	case <-c.broken:
		return nil, errBroken
	default:
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	time.Sleep(time.Microsecond) // no two calls are made at the same time
	method = method[strings.LastIndexByte(method, '/')+1:]
	x, _ := ctx.Value(interruptionKey{}).(*interruption)
	if x == nil || x.met || x.method != method {
		return c.runtime.do(method, request, x)
	}
	x.met = true
	switch x.how {
	case waitBefore:
		if err := c.wait(ctx, x); err != nil {
			c.runtime.later(method, request, x)
			return nil, err
		}
		return c.runtime.do(method, request, x)
	case waitAfter, loseAnswer:
		response, err := c.runtime.do(method, request, x)
		if x.how == loseAnswer {
			return nil, errBroken
		}
		if broken := c.wait(ctx, x); broken != nil {
			return nil, broken
		}
		return response, err
	case loseCall:
		c.runtime.later(method, request, x)
		return nil, errBroken
	case uninterrupted, hows:
	}
	return c.runtime.do(method, request, x)
}

// wait waits until the call is released or cancelled.
func (c *modelConn) wait(ctx context.Context, x *interruption) error {
	x.waiting.Store(true)
	defer x.waiting.Store(false)
	select {
	case <-x.release:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-c.broken:
		return errBroken
	}
	return nil
}

func (r *modelRuntime) later(method string, request []byte, x *interruption) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if method == "PullImage" || method == "CreateContainer" || method == "RemoveImage" {
		r.late = append(r.late, lateCall{method: method, request: request, by: x})
	}
}

// finishLate executes one of the calls without a waiting client.
func (r *modelRuntime) finishLate(i int) {
	l := r.late[i]
	r.late = slices.Delete(r.late, i, i+1)
	_, _ = r.do(l.method, l.request, l.by)
}

// do decodes a request, carries it out and encodes the answer.
func (r *modelRuntime) do(method string, request []byte, x *interruption) ([]byte, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("runtime.v1." + method + "Request"))
	if err != nil {
		return nil, status.Error(codes.Unimplemented, method)
	}
	q := kind.New().Interface()
	if err := proto.Unmarshal(request, q); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a, err := r.answer(q, x)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(a)
}

//nolint:ireturn // one of the answers of the CRI
func (r *modelRuntime) answer(request proto.Message, x *interruption) (proto.Message, error) {
	switch q := request.(type) {
	case *runtimeapi.ImageStatusRequest:
		return r.imageStatus(q), nil
	case *runtimeapi.ListImagesRequest:
		return r.listImages(), nil
	case *runtimeapi.PullImageRequest:
		password := q.GetAuth().GetPassword()
		if x != nil && x.pull != nil && password != "" && password != x.pull.password &&
			(x.pull.password == "" || x.pull.password == operatorPassword) {
			x.pull.password, x.pull.lent = password, true
		}
		return r.pullImage(q.GetImage().GetImage(), password, x)
	case *runtimeapi.RemoveImageRequest:
		if c, ok := r.resolve(q.GetImage().GetImage()); ok {
			r.remove(c)
		}
		return &runtimeapi.RemoveImageResponse{}, nil
	case *runtimeapi.CreateContainerRequest:
		id, err := r.create(q.GetPodSandboxId(), q.GetConfig(), x)
		return &runtimeapi.CreateContainerResponse{ContainerId: id}, err
	case *runtimeapi.RestorePodRequest:
		return r.restorePod(q, x)
	case *runtimeapi.StartContainerRequest:
		return r.startContainer(q)
	case *runtimeapi.RemoveContainerRequest:
		r.forget(func(c *modelContainer) bool { return c.GetId() == q.GetContainerId() })
		return &runtimeapi.RemoveContainerResponse{}, nil
	case *runtimeapi.StopContainerRequest:
		return &runtimeapi.StopContainerResponse{}, nil
	case *runtimeapi.ListContainersRequest:
		return r.listContainers(q), nil
	case *runtimeapi.ContainerStatusRequest:
		return r.containerStatus(q.GetContainerId())
	case *runtimeapi.RunPodSandboxRequest:
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: r.sandbox(q.GetConfig())}, nil
	case *runtimeapi.StopPodSandboxRequest:
		return &runtimeapi.StopPodSandboxResponse{}, nil
	case *runtimeapi.RemovePodSandboxRequest:
		delete(r.sandboxes, q.GetPodSandboxId())
		r.forget(func(c *modelContainer) bool { return c.GetPodSandboxId() == q.GetPodSandboxId() })
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	case *runtimeapi.ListPodSandboxRequest:
		return r.listPodSandbox(), nil
	case *runtimeapi.VersionRequest:
		return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.1.0", RuntimeApiVersion: "v1"}, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "%T", request)
}

func (r *modelRuntime) id(kind string) string {
	r.next++
	return fmt.Sprintf("%s-%03d", kind, r.next)
}

func (r *modelRuntime) sandbox(config *runtimeapi.PodSandboxConfig) string {
	id := r.id("sandbox")
	r.sandboxes[id] = &runtimeapi.PodSandbox{Id: id, Metadata: config.GetMetadata(), Annotations: config.GetAnnotations()}
	return id
}

func (r *modelRuntime) create(sandbox string, config *runtimeapi.ContainerConfig, x *interruption) (string, error) {
	if r.sandboxes[sandbox] == nil {
		return "", status.Errorf(codes.NotFound, "sandbox %q: not found", sandbox)
	}
	asked, ok := r.resolve(config.GetImage().GetImage())
	if !ok {
		return "", status.Errorf(codes.NotFound, "image %q: not found", config.GetImage().GetImage())
	}
	on, reported := asked, asked
	var annotations map[string]string
	if ck, ok := r.checkpoints[asked]; ok {
		if on, ok = r.resolve(ck.base); !ok || r.kind.pullsBase {
			var err error
			if on, err = r.fetch(ck.base, ""); err != nil {
				return "", status.Errorf(codes.Unknown, "failed to pull checkpoint base image %s: %v", ck.base, err)
			}
			r.pulled(on, ck.base)
			r.truth.brought(pair{on, repositoryOf(ck.base)}, false)
		}
		if r.kind.givesNames && ck.given != "" {
			r.name(on, ck.given)
			r.truth.returned(pair{on, repositoryOf(ck.given)})
		}
		if reported, ok = r.resolve(ck.reportedAs); !ok || ck.reportedAs == "" {
			reported = on
		}
		if ck.failing {
			return "", status.Error(codes.Unknown, "failed to read the checkpoint's configuration")
		}
		annotations = map[string]string{"restored": "true", "checkpointImage": config.GetImage().GetImage()}
	}
	c := &modelContainer{
		real: []content{on}, mounts: config.GetMounts(), asked: []string{config.GetImage().GetUserSpecifiedImage()},
		pod: r.sandboxes[sandbox].GetMetadata().GetUid(), created: time.Now(),
	}
	if x != nil {
		c.may, c.key = x.may, x.key
	}
	for _, m := range config.GetMounts() {
		mounted, ok := r.resolve(m.GetImage().GetImage())
		if !ok {
			return "", status.Errorf(codes.NotFound, "image %q: not found", m.GetImage().GetImage())
		}
		c.real, c.asked = append(c.real, mounted), append(c.asked, m.GetImage().GetUserSpecifiedImage())
	}
	c.Container = &runtimeapi.Container{
		Id: r.id("container"), PodSandboxId: sandbox, Metadata: config.GetMetadata(), ImageRef: reported.id(),
		CreatedAt: c.created.UnixNano(),
		Image:     &runtimeapi.ImageSpec{Image: config.GetImage().GetImage()}, Annotations: annotations,
	}
	if !r.kind.noEcho {
		c.Image.UserSpecifiedImage = config.GetImage().GetUserSpecifiedImage()
	}
	if !r.kind.noImageID {
		c.ImageId = reported.id()
	}
	r.containers[c.GetId()] = c
	r.order = append(r.order, c.GetId())
	return c.GetId(), nil
}

func (r *modelRuntime) restorePod(q *runtimeapi.RestorePodRequest, x *interruption) (*runtimeapi.RestorePodResponse,
	error,
) {
	resp := &runtimeapi.RestorePodResponse{PodSandboxId: r.sandbox(q.GetConfig())}
	for _, config := range q.GetContainerConfigs() {
		id, err := r.create(resp.GetPodSandboxId(), config, x)
		if err != nil {
			delete(r.sandboxes, resp.GetPodSandboxId())
			return nil, err
		}
		resp.RestoredContainers = append(resp.RestoredContainers,
			&runtimeapi.RestoredContainer{Name: config.GetMetadata().GetName(), ContainerId: id})
	}
	return resp, nil
}

func (r *modelRuntime) startContainer(q *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c := r.containers[q.GetContainerId()]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %q: not found", q.GetContainerId())
	}
	c.State, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, true
	return &runtimeapi.StartContainerResponse{}, nil
}

// forget removes containers.
func (r *modelRuntime) forget(which func(*modelContainer) bool) {
	r.order = slices.DeleteFunc(r.order, func(id string) bool {
		if !which(r.containers[id]) {
			return false
		}
		delete(r.containers, id)
		return true
	})
}

func (r *modelRuntime) listContainers(q *runtimeapi.ListContainersRequest) *runtimeapi.ListContainersResponse {
	resp := &runtimeapi.ListContainersResponse{}
	for _, id := range r.order {
		if f := q.GetFilter(); strings.HasPrefix(id, f.GetId()) &&
			(f.GetPodSandboxId() == "" || f.GetPodSandboxId() == r.containers[id].GetPodSandboxId()) {
			resp.Containers = append(resp.Containers, r.containers[id].Container)
		}
	}
	return resp
}

func (r *modelRuntime) containerStatus(id string) (*runtimeapi.ContainerStatusResponse, error) {
	c := r.containers[id]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %q: not found", id)
	}
	s := &runtimeapi.ContainerStatus{
		Id: c.GetId(), State: c.GetState(), Image: c.GetImage(), ImageRef: c.GetImageRef(), ImageId: c.GetImageId(),
		CreatedAt: c.GetCreatedAt(), Annotations: c.GetAnnotations(), Mounts: c.mounts,
	}
	if c.started {
		s.StartedAt = c.created.UnixNano() + 1
	}
	return &runtimeapi.ContainerStatusResponse{Status: s}, nil
}

func (r *modelRuntime) listPodSandbox() *runtimeapi.ListPodSandboxResponse {
	resp := &runtimeapi.ListPodSandboxResponse{}
	for _, id := range slices.Sorted(maps.Keys(r.sandboxes)) {
		resp.Items = append(resp.Items, r.sandboxes[id])
	}
	return resp
}
