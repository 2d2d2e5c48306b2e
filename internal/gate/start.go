package gate

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// startContainer forwards the start of a container that has been read back. Otherwise, because the answer to the
// creation was lost or pullgated restarted, it reads it back now; in shadow mode for policies about signatures alone.
func (g *Gate) startContainer(
	ctx context.Context, c *criproxy.Call, req *runtimeapi.StartContainerRequest,
) ([]byte, error) {
	g.ready(ctx)
	id, own := req.GetContainerId(), g.newCall(ctx, "StartContainer")
	cleared, err := g.maybeReading(ctx, id)
	if err != nil {
		return nil, err
	}
	if !cleared && (!g.c.Shadow || own.signing() != nil) {
		if err := g.lateReadBack(ctx, own, id); err != nil {
			return nil, err
		}
	}
	raw, err := c.Forward(ctx)
	if err == nil {
		if started, ok := g.pods.created(id, true); ok {
			g.mark(g.chain(), started)
		}
	}
	return raw, err
}

// readBack clears a created container if its pod may use its image. It reports whether that is the judged image.
func (g *Gate) readBack(ctx context.Context, n *candidate, id string) (asked bool, err error) {
	c, err := g.c.Runtime.container(ctx, id)
	switch {
	case g.c.Shadow && c == nil:
		// Shadow mode denies nothing for a missing proof. Policies are enforced: the image is unknown.
		n.restored = true
		return false, g.run(ctx, n.on(nil, tracker.Image{}), g.admit)
	case err != nil:
		return false, err
	case c == nil:
		n.gone = true
		return false, refuse(codes.NotFound, "CONTAINER_NOT_FOUND",
			"pullgate: container %s is gone before its image could be read back", id)
	}
	return g.clear(ctx, n, c)
}

func (g *Gate) clear(ctx context.Context, n *candidate, c *runtimeapi.Container) (asked bool, err error) {
	img := tracker.Image{ID: runsOn(c)}
	if img.ID != n.image.ID || img.ID == "" {
		found, err := g.c.Runtime.Image(ctx, img.ID)
		switch {
		case err != nil && !g.c.Shadow:
			return false, err
		case found.ID != "":
			img = found
		}
	}
	n.restored = n.restored || wasRestored(c)
	asked = img.ID == n.image.ID && img.ID != "" && !n.restored
	if asked {
		err = g.run(ctx, n.on(c, n.image), g.endorsedLate)
	} else {
		n = n.on(c, img)
		err = g.run(ctx, n, g.notRestored, g.mayUseInstead, g.admit, g.endorsedLate)
	}
	if err != nil {
		return false, err
	}
	cleared := createdContainer{uid: n.pod.UID, name: c.GetMetadata().GetName(), imageID: img.ID}
	for i := range n.mounts {
		cleared.mounted = append(cleared.mounted, n.mounts[i].ID)
	}
	if n.restored {
		cleared.imageID = ""
	}
	g.pods.clear(c.GetId(), cleared)
	return asked, nil
}

func (c *candidate) on(reported *runtimeapi.Container, img tracker.Image) *candidate {
	of := c.again()
	of.reported = reported
	if img.ID != c.image.ID || img.ID == "" || c.restored {
		judged := c.image
		of.image, of.instead = img, &judged
	}
	return of
}

func (c *candidate) again() *candidate {
	of := *c
	of.own, of.mounted, of.asked, of.admitted = nil, nil, false, admission.Decision{}
	return &of
}

// notRestored denies a container that the runtime has restored, unless the pod may have such containers.
func (g *Gate) notRestored(_ context.Context, n *candidate) error {
	if !n.restored || g.mayUseRestored(n.pod) {
		return nil
	}
	n.own = g.refusedRestore(n.use, runsOn(n.reported))
	return refuse(codes.PermissionDenied, "RESTORE_NOT_ALLOWED",
		"pullgate: container %s of pod %s/%s was restored from a checkpoint and may not start: which image it uses cannot "+
			"be verified; use an image that is not a checkpoint, or set allowRestores: true in the configuration of pullgated",
		n.reported.GetId(), n.pod.Namespace, n.pod.Name)
}

// mayUseInstead judges another image than the judged one; the requested name, which it may have, proves nothing.
func (g *Gate) mayUseInstead(ctx context.Context, n *candidate) error {
	if g.c.Shadow || n.image.ID == n.instead.ID && n.image.ID != "" {
		return nil
	}
	u, r := n.use, tracker.Request{Image: named(n.image, n.name), Using: true}
	if n.instead.ID != "" {
		u = g.use(ctx, n.call, n.pod, imageref.Ref{})
		r = tracker.Request{Image: n.image, Substituted: true, Using: true, Except: n.name.Repository()}
	}
	d := g.decide(ctx, u, r, g.c.Tracker.Check)
	g.measure(d)
	n.own = &d
	if d.Verdict.Allowed() {
		return nil
	}
	g.pods.refuse(n.pod.UID, n.name, n.instead.ID)
	shown := d.Verdict
	if r.Substituted {
		shown.Reason = policy.NotProved // otherwise the reason could reveal names of the other image
	}
	return g.deny(n.use, shown)
}

func (g *Gate) lateReadBack(ctx context.Context, own *call, id string) error {
	c, err := g.c.Runtime.container(ctx, id)
	if err != nil {
		return err
	}
	if c == nil || c.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil // it cannot be started; the runtime returns the error
	}
	who, ok := g.c.Pods.BySandbox(c.GetPodSandboxId())
	if !ok {
		if err := g.Reconcile(ctx); err != nil {
			return err
		}
		if who, ok = g.c.Pods.BySandbox(c.GetPodSandboxId()); !ok {
			return refuse(codes.Unavailable, "SANDBOX_NOT_KNOWN",
				"pullgate: the sandbox of container %s is not known yet; try again", id)
		}
	}
	reported := &runtimeapi.ContainerConfig{Metadata: c.GetMetadata(), Image: g.usedSpec(ctx, who, c)}
	n := g.candidate(ctx, own, who, nil, reported)
	n.late, n.reported, n.restored = true, c, wasRestored(c) && !g.c.Shadow
	if err = g.run(ctx, n, g.notRestored, g.mayUseImage, g.readMounts, g.mayMountImages); err == nil {
		n.restored = g.allowRestores.Load() // perhaps by a RestorePod whose answer was lost; not every runtime says so
		_, err = g.clear(ctx, n.again(), c)
	}
	if status.Code(err) == codes.PermissionDenied {
		g.drop(context.WithoutCancel(ctx), id)
	}
	return err
}

// usedSpec returns the image of a container, with the pod's name for it if that uses one alone.
func (g *Gate) usedSpec(ctx context.Context, who tracker.Pod, c *runtimeapi.Container) *runtimeapi.ImageSpec {
	spec := c.GetImage()
	if spec.GetUserSpecifiedImage() != "" || g.c.PodSource == nil {
		return spec
	}
	img := g.imageOrID(ctx, runsOn(c))
	img.Names = g.usedNames(who, img.Names)
	if len(img.Repositories()) != 1 {
		return spec
	}
	return &runtimeapi.ImageSpec{
		Image: spec.GetImage(), UserSpecifiedImage: img.Names[0].String(), RuntimeHandler: spec.GetRuntimeHandler(),
	}
}

func (g *Gate) readMounts(ctx context.Context, n *candidate) error {
	shown, err := g.c.Runtime.containerStatus(ctx, n.reported)
	n.container.Mounts = shown.GetMounts()
	return err
}
