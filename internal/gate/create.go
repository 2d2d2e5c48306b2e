package gate

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// createContainer judges the image and the mounted ones for the exact pod, and then the image that the container has.
func (g *Gate) createContainer(
	ctx context.Context, c *criproxy.Call, req *runtimeapi.CreateContainerRequest,
) ([]byte, error) {
	g.ready(ctx)
	create := g.c.Tracker.BeginCreate(g.mayRestore(ctx))
	lost := create.Lost
	defer func() { lost() }() // for every return, or panic, that reports no other end
	since := g.c.Tracker.Revocations()
	who, ok := g.c.Pods.BySandbox(req.GetPodSandboxId())
	if !ok {
		who = identify(req.GetSandboxConfig())
	}
	n := g.candidate(ctx, g.newCall(ctx, "CreateContainer"), who, req.GetSandboxConfig(), req.GetConfig())
	if err := g.run(ctx, n, g.mayUseImage, g.mayMountImages, g.admit); err != nil {
		return nil, err
	}
	create.From(ctx, n.image)
	bytes, forward := len(c.Request), c.Forward
	if !create.Ordinary() {
		forward = func(ctx context.Context) ([]byte, error) { return g.changes.forward(ctx, c) }
	}
	raw, err := forward(ctx)
	if err != nil {
		return nil, g.createFailed(ctx, n, create, err)
	}
	var resp runtimeapi.CreateContainerResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		return nil, errUndecodableAnswer("CreateContainer")
	}
	crashpoint.Hit(crashpoint.Created)
	readBack := func() error {
		defer create.Lost()
		// The container exists even if the client has disconnected.
		return g.created(context.WithoutCancel(ctx), n, resp.GetContainerId(), create, since)
	}
	if g.mayAnswerFirst(n, create, since) && g.readLater(n, resp.GetContainerId(), bytes, readBack) {
		lost = func() {}
	} else if err := readBack(); err != nil {
		return nil, err
	}
	g.containers.add(keyOfID(resp.GetContainerId()))
	return raw, nil
}

// created reads a created container back, and removes it if it may not be started. since is from before the judgement.
func (g *Gate) created(ctx context.Context, n *candidate, id string, create *tracker.Create, since uint64) error {
	asked, err := g.readBack(ctx, n, id)
	if err == nil && g.c.Tracker.Revocations() != since {
		// The proof may have been revoked before the runtime created the container, which a restart could not detect.
		err = g.run(ctx, n.again(), g.mayUseImage, g.mayMountImages)
	}
	if err != nil {
		_, _ = g.pods.created(id, true)
		if !n.gone {
			g.drop(ctx, id)
		}
	}
	switch {
	case n.gone && create.Ordinary():
		create.Dropped() // nothing starts, and the image is known to bring no other
	case asked:
		create.Created()
	case aborted(err):
	default:
		withheld := g.withholds(n.pod, create)
		create.Restored(ctx)
		if status.Code(err) == codes.PermissionDenied && withheld {
			err = g.notCreated(n)
		}
	}
	return err
}

// createFailed returns the answer to a call that the runtime failed. For an image that may be a checkpoint the error
// could reveal which images are on the node, so the answer is the same as for a denied container.
func (g *Gate) createFailed(ctx context.Context, n *candidate, create *tracker.Create, err error) error {
	if aborted(err) {
		return err // the runtime may complete it, so the create is lost
	}
	withheld := g.withholds(n.pod, create)
	create.Failed(context.WithoutCancel(ctx))
	if !withheld {
		return err
	}
	g.c.Log.Error(err, "Runtime failed to create a container: replaced its error in the answer, "+
		"because the image may be a checkpoint", append(n.keys(), "call", n.method)...)
	g.c.Metrics.CreationRefused(CreationFailed)
	g.note(n.decision(overruled(tracker.Verdict{}, CreateFailed)))
	return g.notCreated(n)
}

func (g *Gate) withholds(who tracker.Pod, create *tracker.Create) bool {
	return !g.c.Shadow && !create.Ordinary() && !g.c.Tracker.Exempt(who)
}

// notCreated is the answer to a create from an image that may be a checkpoint. It is the same if the runtime failed,
// perhaps because the image that the checkpoint names is absent, and if the container was denied.
func (g *Gate) notCreated(n *candidate) error {
	if g.allowRestores.Load() {
		g.pods.refuse(n.pod.UID, n.name, n.image.ID)
	}
	return refuse(codes.PermissionDenied, "CONTAINER_NOT_CREATED",
		"pullgate: no container of pod %s/%s was created from image %q: the runtime failed to create it, or restored it "+
			"from a checkpoint, which this pod may not do; see the log of pullgated on this node, and allowRestores in its "+
			"configuration", n.pod.Namespace, n.pod.Name, n.name.String())
}

// mayUseImage judges the image of a container. An image that arrives only now is judged when it is read back.
func (g *Gate) mayUseImage(ctx context.Context, n *candidate) (err error) {
	img := g.shown(n)
	if img.ID == "" {
		img, err = g.c.Runtime.imageOf(ctx, n.container.GetImage())
	}
	n.image, n.own, err = g.judgeFound(ctx, n.use, n.container.GetImage(), img, err)
	return err
}

// mayMountImages judges the images that a container mounts, which must be present: mounts are not read back.
func (g *Gate) mayMountImages(ctx context.Context, n *candidate) error {
	n.mounts = nil
	for _, m := range n.container.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		u := g.use(ctx, n.call, n.pod, imageref.New(m.GetImage().GetUserSpecifiedImage()))
		img, err := g.c.Runtime.imageOf(ctx, m.GetImage())
		img, d, err := g.judgeFound(ctx, u, m.GetImage(), img, err)
		if d != nil {
			n.mounted = append(n.mounted, *d)
		}
		if err != nil {
			return err
		}
		if img.ID == "" && !g.c.Shadow {
			return refuse(codes.NotFound, "IMAGE_NOT_FOUND", "pullgate: image %q to be mounted is not on the node",
				m.GetImage().GetUserSpecifiedImage())
		}
		n.mounts = append(n.mounts, admissionImage(img, u.name))
	}
	return nil
}

// judgeFound judges what the runtime says of an image. It returns the zero image if that is absent or denied.
func (g *Gate) judgeFound(
	ctx context.Context, u *use, spec *runtimeapi.ImageSpec, img tracker.Image, err error,
) (tracker.Image, *decisionlog.Decision, error) {
	if err != nil && !g.c.Shadow && aborted(err) {
		return tracker.Image{}, nil, err
	}
	if err != nil || img.ID == "" {
		d, err := g.judgeAbsent(ctx, u, spec)
		return tracker.Image{}, d, err
	}
	d := g.decide(ctx, u, tracker.Request{Image: named(img, u.name), Using: true}, g.c.Tracker.Check)
	g.measure(d)
	if d.Verdict.Allowed() || g.c.Shadow {
		return img, &d, nil
	}
	g.pods.refuse(u.pod.UID, u.name, img.ID)
	return tracker.Image{}, &d, g.deny(u, d.Verdict)
}

// judgeAbsent judges an image that the runtime does not have, or cannot resolve. A pod that could not use the image
// gets the same answer as for a present one. Otherwise the runtime refuses, or what it creates is read back.
func (g *Gate) judgeAbsent(ctx context.Context, u *use, spec *runtimeapi.ImageSpec) (*decisionlog.Decision, error) {
	if g.c.Shadow || g.allowRestores.Load() && g.mayRestore(ctx) {
		return nil, nil //nolint:nilnil // there is no decision
	}
	img := tracker.Image{ID: spec.GetImage()}
	if !u.name.MayBeImageID() { // an image that is found by its ID does not have that name
		img = tracker.NewImage(img.ID, u.name.String())
	}
	d := g.decide(ctx, u, tracker.Request{Image: img}, g.explain)
	if d.Verdict.Allowed() {
		return nil, nil //nolint:nilnil // there is no decision
	}
	denied := g.deny(u, d.Verdict)
	d.Verdict.Reason = policy.Absent
	return &d, denied
}

// named adds a name to an image that has another tag or digest of the name's repository: the tag may have moved since
// the pre-check, and the pair of image ID and repository is the same.
func named(img tracker.Image, name imageref.Ref) tracker.Image {
	if name.Parsed() && slices.Contains(img.Repositories(), name.Repository()) {
		img.Names = append([]imageref.Ref{name}, img.Names...)
	}
	return img
}

// drop removes a denied container. If that fails, the container stays created, and the gate denies its start.
func (g *Gate) drop(ctx context.Context, id string) {
	if err := g.c.Runtime.removeContainer(ctx, id); err != nil {
		g.c.Log.Error(err, "Failed to remove a denied container: StartContainer will be denied")
	}
}
