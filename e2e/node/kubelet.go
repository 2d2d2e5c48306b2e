package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Kubelet asks a CRI endpoint for containers, call by call what a kubelet sends for one container
// start. It has no API server and no back-off; everything else that reaches the socket is the same.
type Kubelet struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	logs    string // below the directory of the endpoint, which goes with the node
	cgroup  string // that its pods are put under
}

// Pull policies.
const (
	Always       = "Always"
	IfNotPresent = "IfNotPresent"
	Never        = "Never"
)

// A Pod is one pod with one container.
type Pod struct {
	Namespace, Name string
	UID             string // made up if empty
	Image           string
	Policy          string // IfNotPresent if empty
	Secrets         []Login
	Source          string // of the pod; "api" if empty

	seen    string
	sandbox string
	config  *runtimeapi.PodSandboxConfig
	attempt uint32
}

// The states of a container, with the names that a kubelet shows.
const (
	Running          = "Running"
	NeverPulled      = "ErrImageNeverPull"
	PullFailed       = "ErrImagePull"
	InspectFailed    = "ErrImageInspect"
	CreateFailed     = "CreateContainerError"
	StartFailed      = "RunContainerError"
	RegistryNotThere = "RegistryUnavailable"
)

// An Outcome is the result of a container start.
type Outcome struct {
	State     string
	Text      string // of the error
	Container string // its ID
	ImageID   string
	Pulls     int // PullImage calls that were sent
}

func (o Outcome) String() string {
	if o.Text == "" {
		return o.State
	}
	return o.State + ": " + o.Text
}

// NewKubelet dials an endpoint.
func NewKubelet(ctx context.Context, endpoint string) (_ *Kubelet, err error) {
	defer host.Catch(&err)
	// The client logs each failure as an error, and failures are what is tested here.
	ctx = klog.NewContext(ctx, klog.Logger{})
	const limit = 2 * time.Minute
	r := host.Must(cri.NewRemoteRuntimeServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(limit).Build(ctx))
	i, err := cri.NewRemoteImageServiceBuilder().WithEndpoint(endpoint).WithConnectionTimeout(limit).Build(ctx)
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	logs := host.Must(os.MkdirTemp(filepath.Dir(strings.TrimPrefix(endpoint, "unix://")), "pods-"))
	return &Kubelet{Runtime: r, Images: i, logs: logs, cgroup: cgroupOf(filepath.Dir(filepath.Dir(logs)))}, nil
}

// Close ends the connections.
func (k *Kubelet) Close() {
	_ = k.Runtime.Close(context.Background())
	_ = k.Images.Close(context.Background())
	_ = os.RemoveAll(k.logs)
}

func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// RuntimeReady asks whether the runtime takes containers.
func (k *Kubelet) RuntimeReady(ctx context.Context) error {
	status, err := k.Runtime.Status(quiet(ctx), false)
	if err != nil {
		return err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			return fmt.Errorf("%s: %s", c.GetReason(), c.GetMessage())
		}
	}
	return nil
}

// Annotations are what a kubelet adds to those of the pod.
func (p *Pod) Annotations() map[string]string {
	return map[string]string{
		"kubernetes.io/config.seen":   p.seen,
		"kubernetes.io/config.source": cmp.Or(p.Source, "api"),
		"example.test/owner":          p.Namespace,
	}
}

func (p *Pod) spec() *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: p.Image, Annotations: p.Annotations()}
}

// Sandbox runs the pod's sandbox, on the host's network, so that no network plugin is needed.
func (k *Kubelet) Sandbox(ctx context.Context, p *Pod) error {
	p.UID = cmp.Or(p.UID, strings.ToLower(rand.Text()))
	p.seen = time.Now().Format(time.RFC3339Nano)
	p.config = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID},
		Annotations:  p.Annotations(),
		LogDirectory: filepath.Join(k.logs, p.UID),
		Labels:       map[string]string{"io.kubernetes.pod.uid": p.UID},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: k.cgroup, SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
			},
		},
	}
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return err
	}
	id, err := k.Runtime.RunPodSandbox(quiet(ctx), p.config, "")
	p.sandbox = id
	return err
}

// SandboxConfig is what the kubelet sends with a pull of the pod; annotations are the present ones.
func (p *Pod) SandboxConfig() *runtimeapi.PodSandboxConfig {
	p.config.Annotations = p.Annotations()
	return p.config
}

// SandboxID is the pod's sandbox.
func (p *Pod) SandboxID() string { return p.sandbox }

// Precheck is the ImageStatus that decides whether to pull; it returns the image ID, "" if absent.
func (k *Kubelet) Precheck(ctx context.Context, p *Pod) (string, error) {
	return k.status(ctx, p.spec())
}

func (k *Kubelet) status(ctx context.Context, spec *runtimeapi.ImageSpec) (string, error) {
	resp, err := k.Images.ImageStatus(quiet(ctx), spec, false)
	return resp.GetImage().GetId(), err
}

// Run runs the sandbox, if there is none, and one container of the pod.
func (k *Kubelet) Run(ctx context.Context, p *Pod) Outcome {
	if p.sandbox == "" {
		if err := k.Sandbox(ctx, p); err != nil {
			return Outcome{State: "RunPodSandboxError", Text: err.Error()}
		}
	}
	return k.Start(ctx, p)
}

// Start starts a container of the pod in its sandbox, as at a restart of the container too.
func (k *Kubelet) Start(ctx context.Context, p *Pod) Outcome {
	o := k.EnsureImage(ctx, p)
	if o.State != Running {
		return o
	}
	return k.Create(ctx, p, o)
}

// EnsureImage decides on and makes the pull. State is Running if the container can be created.
func (k *Kubelet) EnsureImage(ctx context.Context, p *Pod) Outcome {
	ctx = quiet(ctx)
	var o Outcome
	p.Policy = cmp.Or(p.Policy, IfNotPresent)
	present := ""
	if p.Policy != Always {
		id, err := k.Precheck(ctx, p)
		if err != nil {
			return Outcome{State: InspectFailed, Text: err.Error()}
		}
		present = id
	}
	if present == "" && p.Policy == Never {
		text := fmt.Sprintf("Container image %q is not present with pull policy of Never", p.Image)
		return Outcome{State: NeverPulled, Text: text}
	}
	if o.ImageID = present; present == "" || p.Policy == Always {
		o = k.Pull(ctx, p)
		if o.State != Running {
			return o
		}
	}
	// The size, since 1.30.
	if id, err := k.status(ctx, p.spec()); err != nil || id == "" {
		return Outcome{State: InspectFailed, Text: fmt.Sprintf("size of image: %q, %v", id, err), Pulls: o.Pulls}
	}
	o.State = Running
	return o
}

// Pull sends one PullImage for each credential until one succeeds.
func (k *Kubelet) Pull(ctx context.Context, p *Pod) Outcome {
	o := Outcome{State: PullFailed}
	auths := []*runtimeapi.AuthConfig{nil}
	if len(p.Secrets) > 0 {
		auths = nil
		for _, s := range p.Secrets {
			auths = append(auths, &runtimeapi.AuthConfig{Username: s.Username, Password: s.Password})
		}
	}
	var texts []string
	for _, a := range auths {
		o.Pulls++
		id, err := k.Images.PullImage(quiet(ctx), p.spec(), a, p.SandboxConfig())
		if err == nil {
			o.State, o.ImageID = Running, id
			return o
		}
		texts = append(texts, err.Error())
	}
	o.Text = strings.Join(texts, ", ")
	if strings.HasPrefix(o.Text, RegistryNotThere) {
		o.State = RegistryNotThere
	}
	return o
}

// Create creates and starts the container on the image that was ensured.
func (k *Kubelet) Create(ctx context.Context, p *Pod, o Outcome) Outcome {
	ctx = quiet(ctx)
	// The image's user: the raw name, without annotations.
	status, err := k.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: p.Image}, false)
	if err != nil {
		return Outcome{State: InspectFailed, Text: err.Error(), Pulls: o.Pulls}
	}
	user := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: p.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
	}
	switch name, uid := status.GetImage().GetUsername(), status.GetImage().GetUid(); {
	case uid != nil:
		user.RunAsUser = uid
	case name != "":
		user.RunAsUsername = name
	default: // what a kubelet takes for root, an image that is absent as well
		user.RunAsUser = &runtimeapi.Int64Value{}
	}
	p.attempt++
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: p.attempt},
		Image:    &runtimeapi.ImageSpec{Image: o.ImageID, UserSpecifiedImage: p.Image},
		LogPath:  "main_" + strconv.Itoa(int(p.attempt)) + ".log",
		Linux:    &runtimeapi.LinuxContainerConfig{SecurityContext: user},
	}
	o.Container, err = k.Runtime.CreateContainer(ctx, p.sandbox, config, p.SandboxConfig())
	if err != nil {
		o.State, o.Text = CreateFailed, err.Error()
		return o
	}
	if err := k.Runtime.StartContainer(ctx, o.Container); err != nil {
		o.State, o.Text = StartFailed, err.Error()
		return o
	}
	o.State = Running
	return o
}

// Output returns what the pod's last container has printed, once it has printed n lines.
func (k *Kubelet) Output(ctx context.Context, p *Pod, n int) (string, error) {
	path := filepath.Join(p.config.GetLogDirectory(), "main_"+strconv.Itoa(int(p.attempt))+".log")
	text := ""
	printed := func() bool {
		text, _ = host.ContainerLog(path) // it is not there at first
		return strings.Count(text, "\n") >= n || ctx.Err() != nil
	}
	if !host.Within(time.Minute, printed) || ctx.Err() != nil {
		return "", errors.Join(fmt.Errorf("container printed %q; want %d lines", text, n), ctx.Err())
	}
	return text, nil
}

// Remove removes the pod with all its containers.
func (k *Kubelet) Remove(ctx context.Context, p *Pod) error {
	if p.sandbox == "" {
		return nil
	}
	ctx = quiet(ctx)
	err := errors.Join(k.Runtime.StopPodSandbox(ctx, p.sandbox), k.Runtime.RemovePodSandbox(ctx, p.sandbox))
	p.sandbox = ""
	return err
}

// RemoveImage removes an image, as the kubelet's image garbage collection does.
func (k *Kubelet) RemoveImage(ctx context.Context, name string) error {
	return k.Images.RemoveImage(quiet(ctx), &runtimeapi.ImageSpec{Image: name})
}

// ReadySandboxes returns the IDs of the sandboxes of a namespace that are not stopped.
func (k *Kubelet) ReadySandboxes(ctx context.Context, namespace string) ([]string, error) {
	all, err := k.Runtime.ListPodSandbox(quiet(ctx), nil)
	var ids []string
	for _, s := range all {
		if s.GetMetadata().GetNamespace() == namespace && s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ids = append(ids, s.GetId())
		}
	}
	return ids, err
}

// RemoveAllPods removes every pod that the runtime has, as removePods does.
func (k *Kubelet) RemoveAllPods(ctx context.Context) error { return k.removePods(ctx, nil) }

// RemoveStopped removes the pods whose sandbox has stopped, as removePods does.
func (k *Kubelet) RemoveStopped(ctx context.Context) error {
	return k.removePods(ctx, &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
	})
}

// removePods retries for a minute, as a kubelet does for ever: containerd refuses to remove a container whose start or
// end is still under way.
func (k *Kubelet) removePods(ctx context.Context, which *runtimeapi.PodSandboxFilter) error {
	var err error
	host.Within(time.Minute, func() bool {
		var all []*runtimeapi.PodSandbox
		all, err = k.Runtime.ListPodSandbox(quiet(ctx), which)
		for _, s := range all {
			stopErr := k.Runtime.StopPodSandbox(quiet(ctx), s.GetId())
			err = errors.Join(err, stopErr, k.Runtime.RemovePodSandbox(quiet(ctx), s.GetId()))
		}
		return err == nil || ctx.Err() != nil
	})
	return err
}

// RunningIn returns how many containers of a pod run.
func (k *Kubelet) RunningIn(ctx context.Context, pod string) (int, error) {
	all, err := k.running(ctx, "io.kubernetes.pod.name", pod)
	return len(all), err
}

func (k *Kubelet) running(ctx context.Context, label, value string) ([]*runtimeapi.Container, error) {
	return k.Runtime.ListContainers(quiet(ctx), &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{label: value},
	})
}

// KillContainers kills the running containers of a pod.
func (k *Kubelet) KillContainers(ctx context.Context, podUID string) error {
	all, err := k.running(ctx, "io.kubernetes.pod.uid", podUID)
	if err == nil && len(all) == 0 {
		return fmt.Errorf("no container of pod %s runs", podUID)
	}
	for _, c := range all {
		err = errors.Join(err, k.Runtime.StopContainer(quiet(ctx), c.GetId(), 0))
	}
	return err
}

// HasImage asks whether the runtime has an image under a name.
func (k *Kubelet) HasImage(ctx context.Context, name string) (bool, error) {
	id, err := k.status(ctx, &runtimeapi.ImageSpec{Image: name})
	return id != "", err
}
