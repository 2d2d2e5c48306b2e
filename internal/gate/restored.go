package gate

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Reasons to deny a create although its images were allowed, for [Metrics].
const (
	CreationRestored = "restored"      // for a container, or a pod, that was restored from a checkpoint
	CreationFailed   = "runtime_error" // for an error of the runtime that the answer does not contain
)

// wasRestored reports whether the runtime restored a container, by the annotations that containerd sets on it, over
// those of the checkpoint.
func wasRestored(c *runtimeapi.Container) bool {
	_, from := c.GetAnnotations()["checkpointImage"]
	return from || c.GetAnnotations()["restored"] == "true"
}

// SetAllowRestores replaces allowRestores for every call that begins after it returns.
func (g *Gate) SetAllowRestores(allow bool) { g.allowRestores.Store(allow) }

// mayUseRestored reports whether a pod may have restored containers. The image ID that the runtime reports for one can
// belong to another image than its root file system (docs/design/0022), so it proves nothing.
func (g *Gate) mayUseRestored(who tracker.Pod) bool {
	return g.c.Shadow || g.allowRestores.Load() || g.c.Tracker.Exempt(who)
}

// refusedRestore counts a container or a pod that is denied because it was, or would be, restored.
func (g *Gate) refusedRestore(u *use, imageID string) *decisionlog.Decision {
	g.c.Metrics.Refused(u.method)
	g.c.Metrics.CreationRefused(CreationRestored)
	v := overruled(tracker.Verdict{}, Restored)
	v.Pair.ImageID = imageID
	d := u.decision(v)
	return &d
}

// restorePod judges each container as createContainer does. It removes the whole sandbox if a restored one is denied.
func (g *Gate) restorePod(ctx context.Context, c *criproxy.Call, req *runtimeapi.RestorePodRequest) ([]byte, error) {
	g.ready(ctx)
	since := g.c.Tracker.Revocations()
	own, who := g.newCall(ctx, "RestorePod"), identify(req.GetConfig())
	pod := g.candidate(ctx, own, who, req.GetConfig(), nil)
	if !g.mayUseRestored(who) {
		g.note(*g.refusedRestore(pod.use, ""))
		return nil, refuse(codes.PermissionDenied, "RESTORE_NOT_ALLOWED",
			"pullgate: pod %s/%s may not be restored from a checkpoint: which images a checkpoint uses cannot be verified; "+
				"set allowRestores: true in the configuration of pullgated to allow it, or exempt the pod",
			who.Namespace, who.Name)
	}
	if err := g.run(ctx, pod, g.admit); err != nil {
		return nil, err
	}
	judged := map[string]*candidate{}
	for _, config := range req.GetContainerConfigs() {
		n := g.candidate(ctx, own, who, req.GetConfig(), config)
		if err := g.run(ctx, n, g.mayUseImage, g.mayMountImages, g.admit); err != nil {
			return nil, err
		}
		judged[config.GetMetadata().GetName()] = n
	}
	create := g.c.Tracker.BeginCreate(true)
	defer create.Lost() // for every return that reports no other end
	create.From(ctx, tracker.Image{})
	raw, err := g.changes.forward(ctx, c)
	if err != nil {
		if aborted(err) { // its containers may exist
			g.containers.forget()
		}
		return nil, g.createFailed(ctx, pod, create, err)
	}
	ctx = context.WithoutCancel(ctx)
	var resp runtimeapi.RestorePodResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		return nil, errUndecodableAnswer("RestorePod")
	}
	g.c.Pods.Add(sandbox(resp.GetPodSandboxId(), req.GetConfig()))
	create.Restored(ctx)
	for _, restored := range resp.GetRestoredContainers() {
		g.containers.add(keyOfID(restored.GetContainerId()))
		n, described := judged[restored.GetName()]
		if !described { // the call has no configuration for it
			name := &runtimeapi.ContainerMetadata{Name: restored.GetName()}
			n = g.candidate(ctx, own, who, req.GetConfig(), &runtimeapi.ContainerConfig{Metadata: name})
			n.undescribed = true
		}
		n.restored = true
		_, err := g.readBack(ctx, n, restored.GetContainerId())
		if err == nil && described && g.c.Tracker.Revocations() != since {
			err = g.run(ctx, n.again(), g.mayUseImage, g.mayMountImages) // see created
		}
		if err != nil {
			removed := g.c.Runtime.removeSandbox(ctx, resp.GetPodSandboxId())
			if removed != nil {
				g.c.Log.Error(removed, "Failed to remove a restored pod: its containers are denied at StartContainer")
			}
			if status.Code(err) == codes.PermissionDenied {
				err = g.notCreated(pod)
			}
			return nil, err
		}
	}
	return raw, nil
}

// A runtimeKind has what is known of the runtime since it was connected: nothing if name is "".
type runtimeKind struct {
	name       string
	mayRestore bool // checkpoints: all except containerd before 2.0
}

const containerd = "containerd"

// runtime returns what is known of the runtime, after it was asked.
func (g *Gate) runtime(ctx context.Context) runtimeKind {
	since := g.kind.Load()
	if since != nil && since.name != "" {
		return *since
	}
	name, version, err := g.c.Runtime.Version(ctx)
	if err != nil {
		return runtimeKind{mayRestore: true}
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(major)
	kind := runtimeKind{name, name != containerd || err != nil || n >= 2}
	g.kind.CompareAndSwap(since, &kind) // unless the connection has been lost since
	return kind
}

// mayRestore reports whether the runtime may restore checkpoints.
func (g *Gate) mayRestore(ctx context.Context) bool { return g.runtime(ctx).mayRestore }
