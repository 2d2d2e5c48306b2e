package gate

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// createContainer judges again, for the exact pod. Before the runtime creates the container, it judges the image and every image that the
// container mounts. Afterwards it judges the image that the container really has.
func (g *Gate) createContainer(ctx context.Context, c *criproxy.Call, req *runtimeapi.CreateContainerRequest) ([]byte, error) {
	const name = "CreateContainer"
	g.ready(ctx)
	who := g.podOf(req.GetPodSandboxId(), req.GetSandboxConfig())
	create := g.c.Tracker.BeginCreate(g.mayRestore(ctx))
	defer create.Lost() // for every return, or panic, that reports no other end
	since := g.c.Tracker.Revocations()
	judged, err := g.judgeConfig(ctx, name, who, req.GetConfig(), g.candidate(name, who, req.GetSandboxConfig(), req.GetConfig()))
	if err != nil {
		return nil, err
	}
	create.From(ctx, judged.image)
	raw, err := c.Forward(ctx)
	if err != nil {
		return nil, g.createFailed(ctx, name, who, judged, create, err)
	}
	// The container exists even if the client has disconnected.
	ctx = context.WithoutCancel(ctx)
	var resp runtimeapi.CreateContainerResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		return nil, criproxy.Refuse(codes.Internal, "UNDECODABLE_ANSWER", "pullgate cannot read the runtime's answer to CreateContainer")
	}
	crashpoint.Hit(crashpoint.Created)
	asked, err := g.readBack(ctx, name, who, resp.GetContainerId(), judged)
	if err == nil && g.c.Tracker.Revocations() != since {
		// The proof may have been revoked before the runtime created the container, which a restart could not detect.
		_, err = g.judgeConfig(ctx, name, who, req.GetConfig(), nil)
	}
	if err != nil {
		g.cleared.forget(resp.GetContainerId())
		g.drop(ctx, resp.GetContainerId())
	}
	switch {
	case asked:
		create.Created()
	case aborted(err):
		return nil, err
	default:
		withheld := g.withholds(who, create)
		create.Restored(ctx)
		if status.Code(err) == codes.PermissionDenied && withheld {
			err = g.notCreated(who, judged)
		}
	}
	if err != nil {
		return nil, err
	}
	return raw, nil
}

// createFailed returns the answer to a call for which the runtime returned an error. If the image may be a checkpoint, the error could reveal
// which other images are on the node, so the answer is the same as for a denied container.
func (g *Gate) createFailed(ctx context.Context, callName string, who tracker.Pod, j judgement, create *tracker.Create, err error) error {
	if aborted(err) {
		return err // the runtime may complete it, so the create is lost
	}
	withheld := g.withholds(who, create)
	create.Failed(context.WithoutCancel(ctx))
	if !withheld {
		return err
	}
	g.c.Log.Error(err, "Runtime failed to create a container; its error is not in the answer, because the image may be a checkpoint",
		"call", callName, "image", j.name.String(), "pod", klog.KRef(who.Namespace, who.Name))
	g.c.Metrics.CreationRefused(CreationFailed)
	g.note(j.name, decisionlog.Decision{Call: callName, Pod: who, Verdict: overruled(tracker.Verdict{}, CreateFailed), PullPolicy: tracker.PullUnknown})
	return g.notCreated(who, j)
}

// withholds reports whether the gate must not show the runtime's result of a create to the pod.
func (g *Gate) withholds(who tracker.Pod, create *tracker.Create) bool {
	return !g.c.Shadow && !create.Ordinary() && !g.c.Tracker.Exempt(who)
}

// notCreated is the answer to a create from an image that may be a checkpoint. It is the same if the runtime failed, as it does if the image that
// the checkpoint names is absent, and if it created a container that was denied.
func (g *Gate) notCreated(who tracker.Pod, j judgement) error {
	if g.allowRestores.Load() {
		g.refusals.Refuse(who.UID, j.name, j.image.ID)
	}
	return criproxy.Refuse(codes.PermissionDenied, "CONTAINER_NOT_CREATED", fmt.Sprintf(
		"pullgate: no container of pod %s/%s was created from image %q: the runtime failed to create it, or restored it from a checkpoint, "+
			"which this pod may not do; see the log of pullgated on this node, and allowRestores in its configuration", who.Namespace, who.Name, j.name.String()))
}

// restorePod judges each container configuration as createContainer does. Restored containers are in state created; if one of them is denied, the
// gate removes the whole sandbox.
func (g *Gate) restorePod(ctx context.Context, c *criproxy.Call, req *runtimeapi.RestorePodRequest) ([]byte, error) {
	const name = "RestorePod"
	g.ready(ctx)
	who := identify(req.GetConfig())
	if !g.mayUseRestored(who) {
		g.refusedRestore(name, who, imageref.Ref{}, "")
		return nil, criproxy.Refuse(codes.PermissionDenied, "RESTORE_NOT_ALLOWED", fmt.Sprintf(
			"pullgate: pod %s/%s may not be restored from a checkpoint: which images a checkpoint uses cannot be verified; "+
				"set allowRestores: true in the configuration of pullgated to allow it, or exempt the pod", who.Namespace, who.Name))
	}
	if err := g.admit(ctx, g.candidate(name, who, req.GetConfig(), nil)); err != nil {
		return nil, err
	}
	judged := map[string]judgement{}
	for _, config := range req.GetContainerConfigs() {
		j, err := g.judgeConfig(ctx, name, who, config, g.candidate(name, who, req.GetConfig(), config))
		if err != nil {
			return nil, err
		}
		judged[config.GetMetadata().GetName()] = j
	}
	create := g.c.Tracker.BeginCreate(true)
	defer create.Lost() // for every return that reports no other end
	create.From(ctx, tracker.Image{})
	raw, err := c.Forward(ctx)
	if err != nil {
		return nil, g.createFailed(ctx, name, who, judgement{}, create, err)
	}
	ctx = context.WithoutCancel(ctx)
	var resp runtimeapi.RestorePodResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		return nil, criproxy.Refuse(codes.Internal, "UNDECODABLE_ANSWER", "pullgate cannot read the runtime's answer to RestorePod")
	}
	g.c.Pods.Add(sandbox(resp.GetPodSandboxId(), req.GetConfig()))
	create.Restored(ctx)
	for _, restored := range resp.GetRestoredContainers() {
		j, described := judged[restored.GetName()]
		if !described {
			j.candidate = g.ofRestored(name, who, req.GetConfig(), restored.GetName())
		}
		j.restored = true
		if _, err := g.readBack(ctx, name, who, restored.GetContainerId(), j); err != nil {
			removed := g.c.Runtime.removeSandbox(ctx, resp.GetPodSandboxId())
			if removed != nil {
				g.c.Log.Error(removed, "Restored pod not removed, its containers are denied at StartContainer")
			}
			if status.Code(err) == codes.PermissionDenied {
				err = g.notCreated(who, judgement{})
			}
			return nil, err
		}
	}
	return raw, nil
}

// startContainer forwards the start of a container with an image that has been read back. If it has not been read back, because the answer to the
// creation was lost or pullgated restarted, startContainer reads it back now. In shadow mode it does so for policies about signatures alone.
func (g *Gate) startContainer(ctx context.Context, c *criproxy.Call, req *runtimeapi.StartContainerRequest) ([]byte, error) {
	const name = "StartContainer"
	g.ready(ctx)
	id := req.GetContainerId()
	if (!g.c.Shadow || g.signing() != nil) && !g.cleared.has(id) {
		if err := g.lateReadBack(ctx, name, id); err != nil {
			return nil, err
		}
	}
	raw, err := c.Forward(ctx)
	if err == nil {
		if started, ok := g.cleared.take(id); ok {
			g.markStarted(started)
		}
	}
	return raw, err
}

// A judgement holds the image with which a container was allowed to be created.
type judgement struct {
	name  imageref.Ref  // the pod's name for the image; empty if the call does not have it
	image tracker.Image // the zero value if the image was absent when it was judged
	late  bool          // the container is judged when it starts, and without its configuration
	// restored means that the runtime was asked to restore the container, whatever it says of it.
	restored bool
	// mounted are the images that the container mounts.
	mounted []admission.Image
	// candidate is what the chain was asked about; nil if there were no policies.
	candidate *candidate
}

// podOf returns the pod of a sandbox: the one in the index, which comes from answers of the runtime; for a sandbox that is not in the index yet,
// the one that the kubelet sends in the call.
func (g *Gate) podOf(sandboxID string, config *runtimeapi.PodSandboxConfig) tracker.Pod {
	if p, ok := g.c.Pods.BySandbox(sandboxID); ok {
		return p
	}
	return identify(config)
}

// judgeConfig judges the image of a container and every image that it mounts, and then asks the chain about the candidate, nil if it is not asked.
func (g *Gate) judgeConfig(ctx context.Context, callName string, who tracker.Pod, config *runtimeapi.ContainerConfig, asking *candidate) (judgement, error) {
	spec := config.GetImage()
	j := judgement{name: imageref.New(spec.GetUserSpecifiedImage()), candidate: asking}
	img, err := g.judgeSpec(ctx, callName, who, spec, j.name, asking.holdOwn())
	if err != nil {
		return j, err
	}
	// The runtime refuses an absent image. If the image arrives before the call, it is judged when it is read back.
	j.image = img
	j.mounted, err = g.judgeMounts(ctx, callName, who, config.GetMounts(), asking.holdMounted())
	if asking != nil {
		asking.image, asking.mounts = admissionImage(img, j.name), j.mounted
	}
	if err != nil {
		g.release(asking) // the chain will not be asked
		return j, err
	}
	return j, g.admit(ctx, asking)
}

// judgeMounts judges every image that a container mounts, and returns them if there are policies.
func (g *Gate) judgeMounts(ctx context.Context, callName string, who tracker.Pod, mounts []*runtimeapi.Mount, held *[]heldNote) (all []admission.Image, err error) {
	for _, m := range mounts {
		if m.GetImage() == nil {
			continue
		}
		name := imageref.New(m.GetImage().GetUserSpecifiedImage())
		img, err := g.judgeSpec(ctx, callName, who, m.GetImage(), name, held)
		if err != nil {
			return nil, err
		}
		if img.ID == "" && !g.c.Shadow {
			// A mount is not read back, so its image must be present to be judged.
			return nil, criproxy.Refuse(codes.NotFound, "IMAGE_NOT_FOUND",
				fmt.Sprintf("pullgate: image %q to be mounted is not on the node", m.GetImage().GetUserSpecifiedImage()))
		}
		if g.admitting.Load() != nil {
			all = append(all, admissionImage(img, name))
		}
	}
	return all, nil
}

// judgeSpec judges one image under the pod's name for it, and returns the image, the zero value if it is absent. A nil held holds no note back.
func (g *Gate) judgeSpec(ctx context.Context, callName string, who tracker.Pod, spec *runtimeapi.ImageSpec, name imageref.Ref, held *[]heldNote) (tracker.Image, error) {
	img, err := g.c.Runtime.imageOf(ctx, spec)
	if err != nil && !g.c.Shadow && aborted(err) {
		return tracker.Image{}, err
	}
	if err != nil || img.ID == "" {
		return tracker.Image{}, g.judgeAbsent(ctx, callName, who, spec, name)
	}
	v := g.judgeHolding(ctx, callName, who, tracker.Request{Name: name, Image: named(img, name), Using: true}, held)
	if v.Allowed() || g.c.Shadow {
		return img, nil
	}
	g.refusals.Refuse(who.UID, name, img.ID)
	return tracker.Image{}, g.deny(callName, who, name, v)
}

// judgeAbsent judges an image that the runtime does not have, or cannot resolve. A pod that could not use the image gets the same answer as for a
// present one. Otherwise the runtime returns an error itself; if it creates a container nevertheless, for example from the file of a checkpoint,
// that is read back.
func (g *Gate) judgeAbsent(ctx context.Context, callName string, who tracker.Pod, spec *runtimeapi.ImageSpec, name imageref.Ref) error {
	if g.c.Shadow || g.allowRestores.Load() && g.mayRestore(ctx) {
		return nil
	}
	img := tracker.Image{ID: spec.GetImage()}
	if !name.MayBeImageID() { // an image that is found by its ID does not have that name
		img = tracker.NewImage(img.ID, name.String())
	}
	d := g.decide(ctx, callName, who, tracker.Request{Name: name, Image: img}, func(ctx context.Context, r tracker.Request) tracker.Verdict {
		return g.c.Tracker.Explain(ctx, r).Verdict // without an effect
	})
	if d.Verdict.Allowed() {
		return nil
	}
	denied := g.deny(callName, who, name, d.Verdict)
	d.Verdict.Reason = policy.Absent
	g.note(name, d)
	return denied
}

// named adds a name to an image that has another tag or digest of the name's repository. The kubelet resolved the name at the pre-check, and the
// tag may have moved since; the pair of image ID and repository is the same.
func named(img tracker.Image, name imageref.Ref) tracker.Image {
	if name.Parsed() && slices.Contains(img.Repositories(), name.Repository()) {
		img.Names = append([]imageref.Ref{name}, img.Names...)
	}
	return img
}

// readBack clears a created container for its start if it is on the judged image, or on another one that the pod may use. It reports whether the
// container is on the judged image and was not restored.
func (g *Gate) readBack(ctx context.Context, callName string, who tracker.Pod, id string, j judgement) (asked bool, err error) {
	c, err := g.c.Runtime.container(ctx, id)
	switch {
	case g.c.Shadow && c == nil:
		// In shadow mode images that came with the container need proof, and a missing proof denies nothing. Policies are enforced: the image is unknown.
		return false, g.admit(ctx, j.candidate.on(tracker.Image{}, true))
	case err != nil:
		return false, err
	case c == nil:
		return false, criproxy.Refuse(codes.NotFound, "CONTAINER_NOT_FOUND", fmt.Sprintf("pullgate: container %s is gone before its image could be read back", id))
	}
	return g.clear(ctx, callName, who, c, j)
}

func (g *Gate) clear(ctx context.Context, callName string, who tracker.Pod, c *runtimeapi.Container, j judgement) (asked bool, err error) {
	on := tracker.Image{ID: runsOn(c)}
	if on.ID != j.image.ID || on.ID == "" {
		img, err := g.c.Runtime.Image(ctx, on.ID)
		switch {
		case err != nil && !g.c.Shadow:
			return false, err
		case img.ID != "":
			on = img
		}
	}
	same, restored := on.ID == j.image.ID && on.ID != "", j.restored || wasRestored(c)
	var asking *candidate // the chain has been asked about the judged image
	if !same || restored {
		asking = j.candidate.on(on, restored)
	}
	switch {
	case g.c.Shadow:
	case restored && !g.mayUseRestored(who):
		return false, g.denyRestored(callName, who, c, j.name)
	case !same:
		if err := g.judgeOther(ctx, callName, who, on, j, asking.holdOwn()); err != nil {
			return false, err
		}
	}
	if err := g.admit(ctx, asking); err != nil {
		return false, err
	}
	if j.late {
		if err := g.lateEndorsed(ctx, callName, who, c, on, restored, j); err != nil {
			return false, err
		}
	}
	started := clearedContainer{sandbox: c.GetPodSandboxId(), name: c.GetMetadata().GetName(), imageID: on.ID}
	for i := range j.mounted {
		started.mounted = append(started.mounted, j.mounted[i].ID)
	}
	if restored {
		started.imageID = ""
	}
	g.cleared.add(c.GetId(), started)
	return same && !restored, nil
}

// judgeOther judges an image that a container has instead of the judged one. The runtime may have given it the requested name, so that name
// proves nothing.
func (g *Gate) judgeOther(ctx context.Context, callName string, who tracker.Pod, img tracker.Image, j judgement, held *[]heldNote) error {
	r := tracker.Request{Image: img, Substituted: true, Using: true}
	if j.image.ID == "" {
		r = tracker.Request{Name: j.name, Image: named(img, j.name), Using: true}
	} else {
		r.Except = j.name.Repository()
	}
	v := g.judgeHolding(ctx, callName, who, r, held)
	if v.Allowed() {
		return nil
	}
	g.refusals.Refuse(who.UID, j.name, j.image.ID)
	if r.Substituted {
		v.Reason = policy.NotProved // otherwise the reason could reveal names of the other image
	}
	return g.deny(callName, who, j.name, v)
}

// lateReadBack judges a container by the runtime's report about it.
func (g *Gate) lateReadBack(ctx context.Context, callName, id string) error {
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
			return criproxy.Refuse(codes.Unavailable, "SANDBOX_NOT_KNOWN", fmt.Sprintf("pullgate: the sandbox of container %s is not known yet; try again", id))
		}
	}
	spec := c.GetImage()
	if spec.GetUserSpecifiedImage() == "" && g.c.PodSource != nil {
		img := g.imageOrID(ctx, runsOn(c))
		img.Names = g.usedNames(who, img.Names)
		if len(img.Repositories()) == 1 {
			spec = &runtimeapi.ImageSpec{Image: spec.GetImage(), UserSpecifiedImage: img.Names[0].String(), RuntimeHandler: spec.GetRuntimeHandler()}
		}
	}
	j := judgement{name: imageref.New(spec.GetUserSpecifiedImage())}
	if !g.c.Shadow && wasRestored(c) && !g.mayUseRestored(who) { // the checkpoint determines its reported image
		err = g.denyRestored(callName, who, c, j.name)
	} else if j.image, err = g.judgeSpec(ctx, callName, who, spec, j.name, nil); err == nil {
		var shown *runtimeapi.ContainerStatus
		if shown, err = g.c.Runtime.containerStatus(ctx, c); err == nil {
			j.mounted, err = g.judgeMounts(ctx, callName, who, shown.GetMounts(), nil)
		}
		if err == nil {
			j.late = true
			j.restored = g.allowRestores.Load() // perhaps by a RestorePod whose answer was lost; not every runtime says so
			_, err = g.clear(ctx, callName, who, c, j)
		}
	}
	if status.Code(err) == codes.PermissionDenied {
		g.drop(context.WithoutCancel(ctx), id)
	}
	return err
}

// drop removes a container that must not be started. If that fails, the container stays in state created, and the gate denies its start.
func (g *Gate) drop(ctx context.Context, id string) {
	if err := g.c.Runtime.removeContainer(ctx, id); err != nil {
		g.c.Log.Error(err, "Denied container not removed, its start will be denied")
	}
}
