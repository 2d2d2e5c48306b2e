package criproxy

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy/decision"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/internal/crashpoint"
	"github.com/pullgate/pullgate/pkg/pods"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// createContainer is the second gate, with the exact pod: before the runtime creates the
// container its image and every image that it mounts are judged, and after it the image that the
// container really has.
func (g *Gate) createContainer(ctx context.Context, c *call) ([]byte, error) {
	const name = "CreateContainer"
	var req runtimeapi.CreateContainerRequest
	if err := decode(c, &req); err != nil {
		return nil, err
	}
	g.ready(ctx)
	who := g.podOf(req.GetPodSandboxId(), req.GetSandboxConfig())
	judged, err := g.judgeConfig(ctx, name, who, req.GetConfig())
	if err != nil {
		return nil, err
	}
	raw, err := c.forward(ctx)
	if err != nil {
		return nil, g.withoutCheckpoint(name, who, judged, err)
	}
	var resp runtimeapi.CreateContainerResponse
	if err := decodeAnswer(raw, &resp); err != nil {
		return nil, refuse(codes.Internal, "UNDECODABLE_ANSWER", "pullgate cannot read the runtime's answer to CreateContainer")
	}
	crashpoint.Hit(crashpoint.Created)
	// The container is there whether or not the client still waits.
	ctx = context.WithoutCancel(ctx)
	if err := g.readBack(ctx, name, who, resp.GetContainerId(), judged); err != nil {
		g.drop(ctx, resp.GetContainerId())
		return nil, err
	}
	return raw, nil
}

// withoutCheckpoint makes the runtime's answer that the base image of a checkpoint is not on the node
// the same as ours when it is and the pod may not use it: the two would tell which images are here.
func (g *Gate) withoutCheckpoint(callName string, who pods.Pod, j judgement, err error) error {
	if g.shadow || !strings.Contains(status.Convert(err).Message(), "checkpoint base image") {
		return err
	}
	g.decided.Note(decision.Decision{Call: callName, Pod: who, Image: j.name, Verdict: decision.Overruled(tracker.Verdict{}, decision.CheckpointBase), PullPolicy: pullUnknown})
	return g.deny(callName, who, j.name, tracker.Verdict{})
}

// restorePod judges each container configuration as createContainer does. Restored containers are
// in state created, and one that must not be takes the whole sandbox with it.
func (g *Gate) restorePod(ctx context.Context, c *call) ([]byte, error) {
	const name = "RestorePod"
	var req runtimeapi.RestorePodRequest
	if err := decode(c, &req); err != nil {
		return nil, err
	}
	g.ready(ctx)
	who := identify(req.GetConfig())
	judged := map[string]judgement{}
	for _, config := range req.GetContainerConfigs() {
		j, err := g.judgeConfig(ctx, name, who, config)
		if err != nil {
			return nil, err
		}
		judged[config.GetMetadata().GetName()] = j
	}
	raw, err := c.forward(ctx)
	if err != nil {
		return nil, err
	}
	var resp runtimeapi.RestorePodResponse
	if err := decodeAnswer(raw, &resp); err != nil {
		return nil, refuse(codes.Internal, "UNDECODABLE_ANSWER", "pullgate cannot read the runtime's answer to RestorePod")
	}
	g.addSandbox(resp.GetPodSandboxId(), req.GetConfig())
	ctx = context.WithoutCancel(ctx)
	for _, restored := range resp.GetRestoredContainers() {
		if err := g.readBack(ctx, name, who, restored.GetContainerId(), judged[restored.GetName()]); err != nil {
			removed := g.runtime.removeSandbox(ctx, resp.GetPodSandboxId())
			if removed != nil {
				g.log.Error(removed, "Restored pod not removed, its containers are refused at StartContainer")
			}
			return nil, err
		}
	}
	return raw, nil
}

// startContainer lets a container start whose image has been read back. One that has not been, since
// the answer to its creation was lost or pullgated restarted, is read back now.
func (g *Gate) startContainer(ctx context.Context, c *call) ([]byte, error) {
	const name = "StartContainer"
	var req runtimeapi.StartContainerRequest
	if err := decode(c, &req); err != nil {
		return nil, err
	}
	g.ready(ctx)
	id := req.GetContainerId()
	if !g.shadow && !g.cleared.has(id) {
		if err := g.lateReadBack(ctx, name, id); err != nil {
			return nil, err
		}
	}
	raw, err := c.forward(ctx)
	if err == nil {
		g.cleared.forget(id)
	}
	return raw, err
}

// A judgement is what a container was allowed to be created on.
type judgement struct {
	name    string // as the pod names the image; "" before CRI 1.28
	imageID string // "" if the image was absent when it was judged
}

// podOf tells the pod of a sandbox. What the index has comes from the runtime's own answers and
// counts; a sandbox that is not in it yet is told by the kubelet in the call.
func (g *Gate) podOf(sandboxID string, config *runtimeapi.PodSandboxConfig) pods.Pod {
	if p, ok := g.pods.BySandbox(sandboxID); ok {
		return p
	}
	return identify(config)
}

// judgeConfig judges the image of a container and every image that it mounts.
func (g *Gate) judgeConfig(ctx context.Context, callName string, who pods.Pod, config *runtimeapi.ContainerConfig) (judgement, error) {
	spec := config.GetImage()
	j := judgement{name: spec.GetUserSpecifiedImage()}
	id, err := g.judgeSpec(ctx, callName, who, spec)
	if err != nil {
		return j, err
	}
	// An image that is absent now is refused by the runtime; should it turn up in between, it
	// is judged when it is read back.
	j.imageID = id
	for _, m := range config.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		id, err := g.judgeSpec(ctx, callName, who, m.GetImage())
		if err != nil {
			return j, err
		}
		if id == "" && !g.shadow {
			// A mount is not read back, so its image must be there to be judged.
			return j, refuse(codes.NotFound, "IMAGE_NOT_FOUND",
				fmt.Sprintf("pullgate: image %q to be mounted is not on the node", m.GetImage().GetUserSpecifiedImage()))
		}
	}
	return j, nil
}

// judgeSpec judges one image and returns its ID, "" if it is absent.
func (g *Gate) judgeSpec(ctx context.Context, callName string, who pods.Pod, spec *runtimeapi.ImageSpec) (string, error) {
	img, err := g.runtime.imageOf(ctx, spec)
	if err != nil {
		if g.shadow || !aborted(err) {
			// The runtime cannot resolve it and will say so itself; what it creates in
			// spite of that is read back.
			return "", nil
		}
		return "", err
	}
	name := spec.GetUserSpecifiedImage()
	if img.ID == "" {
		return "", nil
	}
	v := g.judge(ctx, callName, who, tracker.Request{Name: name, Image: named(img, name)})
	if v.Allowed() || g.shadow {
		return img.ID, nil
	}
	g.hidden.Refuse(who.UID, name, img.ID)
	return "", g.deny(callName, who, name, v)
}

// named adds a name to an image that carries another tag or digest of the name's repository. The
// kubelet resolved the name at the pre-check, and the tag may have moved since; the pair of
// image ID and repository, which is what is judged, is the same.
func named(img tracker.Image, name string) tracker.Image {
	n, err := imageref.Parse(name)
	if err != nil {
		return img
	}
	for _, s := range img.Names {
		if known, err := imageref.Parse(s); err == nil && known.Repository() == n.Repository() {
			img.Names = append([]string{name}, img.Names...)
			return img
		}
	}
	return img
}

// readBack clears a created container for its start if it has the image it was allowed, or one that
// the pod may use anyway.
func (g *Gate) readBack(ctx context.Context, callName string, who pods.Pod, id string, j judgement) error {
	if g.shadow {
		return nil
	}
	c, err := g.runtime.container(ctx, id)
	if err != nil {
		return err
	}
	if c == nil {
		return refuse(codes.NotFound, "CONTAINER_NOT_FOUND", fmt.Sprintf("pullgate: container %s is gone before its image could be read back", id))
	}
	return g.clear(ctx, callName, who, c, j)
}

func (g *Gate) clear(ctx context.Context, callName string, who pods.Pod, c *runtimeapi.Container, j judgement) error {
	on := runsOn(c)
	if on != j.imageID || on == "" {
		img, err := g.runtime.Image(ctx, on)
		if err != nil {
			return err
		}
		if img.ID == "" {
			img.ID = on
		}
		if img.ID != j.imageID || img.ID == "" {
			if err := g.judgeOther(ctx, callName, who, img, j); err != nil {
				return err
			}
		}
	}
	g.cleared.add(c.GetId(), c.GetPodSandboxId())
	return nil
}

// judgeOther judges an image that a container has in the place of the one that was judged. The
// runtime may have given it the name that was asked for, so that name proves nothing.
func (g *Gate) judgeOther(ctx context.Context, callName string, who pods.Pod, img tracker.Image, j judgement) error {
	r := tracker.Request{Image: img, Substituted: true}
	if j.imageID == "" {
		r = tracker.Request{Name: j.name, Image: named(img, j.name)}
	} else if n, err := imageref.Parse(j.name); err == nil {
		r.Except = n.Repository()
	}
	v := g.judge(ctx, callName, who, r)
	if v.Allowed() {
		return nil
	}
	g.hidden.Refuse(who.UID, j.name, j.imageID)
	if r.Substituted {
		v.Reason = policy.NotProved // what is wrong with the other image's names is none of the pod's business
	}
	return g.deny(callName, who, j.name, v)
}

// lateReadBack judges a container from nothing but what the runtime tells of it.
func (g *Gate) lateReadBack(ctx context.Context, callName, id string) error {
	c, err := g.runtime.container(ctx, id)
	if err != nil {
		return err
	}
	if c == nil || c.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil // nothing that a start could bring to life; the runtime says so itself
	}
	who, ok := g.pods.BySandbox(c.GetPodSandboxId())
	if !ok {
		if err := g.Reconcile(ctx); err != nil {
			return err
		}
		if who, ok = g.pods.BySandbox(c.GetPodSandboxId()); !ok {
			return refuse(codes.Unavailable, "SANDBOX_NOT_KNOWN", fmt.Sprintf("pullgate: the sandbox of container %s is not known yet; try again", id))
		}
	}
	j := judgement{name: c.GetImage().GetUserSpecifiedImage()}
	j.imageID, err = g.judgeSpec(ctx, callName, who, c.GetImage())
	if err == nil {
		err = g.clear(ctx, callName, who, c, j)
	}
	if status.Code(err) == codes.PermissionDenied {
		g.drop(context.WithoutCancel(ctx), id)
	}
	return err
}

// drop removes a container that must not be started. If that fails it stays in state created,
// and StartContainer refuses it.
func (g *Gate) drop(ctx context.Context, id string) {
	if err := g.runtime.removeContainer(ctx, id); err != nil {
		g.log.Error(err, "Denied container not removed, it is refused at StartContainer")
	}
}
