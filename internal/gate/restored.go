package gate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Reasons to deny a create although its images were allowed, for [Metrics].
const (
	// CreationRestored is for a container, or a pod, that was restored from a checkpoint.
	CreationRestored = "restored"
	// CreationFailed is for an error of the runtime that the answer does not contain.
	CreationFailed = "runtime_error"
)

// The annotations that containerd sets on a restored container, over those of the checkpoint.
const (
	restoredAnnotation        = "restored"
	checkpointImageAnnotation = "checkpointImage"
)

// wasRestored reports whether the runtime restored a container from a checkpoint.
func wasRestored(c *runtimeapi.Container) bool {
	_, from := c.GetAnnotations()[checkpointImageAnnotation]
	return from || c.GetAnnotations()[restoredAnnotation] == "true"
}

// SetAllowRestores replaces allowRestores for every call that begins after it returns.
func (g *Gate) SetAllowRestores(allow bool) { g.allowRestores.Store(allow) }

// mayUseRestored reports whether a pod may have restored containers. The image ID that the runtime reports for such a container can belong to
// another image than its root file system (docs/design/0022), so it proves nothing.
func (g *Gate) mayUseRestored(who tracker.Pod) bool {
	return g.c.Shadow || g.allowRestores.Load() || g.c.Tracker.Exempt(who)
}

// denyRestored returns the error for a restored container that may not be created or started.
func (g *Gate) denyRestored(callName string, who tracker.Pod, c *runtimeapi.Container, name imageref.Ref) error {
	g.refusedRestore(callName, who, name, runsOn(c))
	return criproxy.Refuse(codes.PermissionDenied, "RESTORE_NOT_ALLOWED", fmt.Sprintf(
		"pullgate: container %s of pod %s/%s was restored from a checkpoint and may not start: which image it uses cannot be verified; "+
			"use an image that is not a checkpoint, or set allowRestores: true in the configuration of pullgated", c.GetId(), who.Namespace, who.Name))
}

// refusedRestore counts and notes a container or a pod that is denied because it was, or would be, restored.
func (g *Gate) refusedRestore(callName string, who tracker.Pod, name imageref.Ref, imageID string) {
	g.c.Metrics.Refused(callName)
	g.c.Metrics.CreationRefused(CreationRestored)
	v := overruled(tracker.Verdict{}, Restored)
	v.Pair.ImageID = imageID
	g.note(name, decisionlog.Decision{Call: callName, Pod: who, Verdict: v, PullPolicy: tracker.PullUnknown})
}

// restoring says whether the runtime may restore checkpoints, as far as it is known since the connection to it was made.
type restoring struct{ known, may bool }

// mayRestore reports whether the runtime may restore a container from a checkpoint: every runtime except containerd before 2.0, and every runtime
// with an unknown version.
func (g *Gate) mayRestore(ctx context.Context) bool {
	since := g.restoring.Load()
	if since != nil && since.known {
		return since.may
	}
	name, version, err := g.c.Runtime.Version(ctx)
	if err != nil {
		return true
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(major)
	may := name != "containerd" || err != nil || n >= 2
	g.restoring.CompareAndSwap(since, &restoring{known: true, may: may}) // unless the connection has been lost since
	return may
}
