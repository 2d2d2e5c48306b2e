package gate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/criview"
	"github.com/pullgate/pullgate/internal/gate/hidden"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Admission is the admission chain, with what the views need that it judges. It does not change after it was passed to a gate.
type Admission struct {
	// Chain must not be nil. It remembers the containers that pods have started, so it is the same one as long as there are policies.
	Chain *admission.Chain
	// NamespaceLabels are the labels by namespace. Those of a namespace that is not a key are not known.
	NamespaceLabels map[string]map[string]string
	// KubeletRoot is the folder below which the kubelet keeps the volumes of pods.
	KubeletRoot string
	// Views adds what the CRI does not carry; nil if there is no pod source.
	Views ViewSource
	// Endorser judges and verifies signatures; nil if no policy is about them. It is one of the validators of Chain too.
	Endorser admission.Puller
}

// A ViewSource has views of pods as the API server has them. Its methods may be called concurrently.
type ViewSource interface {
	// View returns the view of a pod and of all its containers; ok is false for a pod that the source does not have. It may have only the
	// fields that policies use, and may wait a second for a pod that a kubelet received earlier. The caller does not modify the result.
	View(ctx context.Context, uid string) (pod admission.Pod, containers []admission.Container, ok bool)
}

// SetAdmission replaces Config.Admission for every call that begins after it returns; nil means that there are no policies. With another
// chain than before, the next judged call rebuilds its list of started containers.
func (g *Gate) SetAdmission(a *Admission) { g.admitting.Store(a) }

// chain returns the chain; nil, of which all methods may be called, if there are no policies.
func (g *Gate) chain() *admission.Chain {
	if a := g.admitting.Load(); a != nil {
		return a.Chain
	}
	return nil
}

// markStarted notes in the chain that a container was started. Its restart is admitted then, whatever the policies say by that time.
func (g *Gate) markStarted(c clearedContainer) {
	if chain := g.chain(); chain != nil {
		if who, ok := g.c.Pods.BySandbox(c.sandbox); ok {
			g.mark(chain, who.UID, c.name, c.imageID, c.mounted)
		}
	}
}

// mark notes a started container in a chain, which may be nil.
func (g *Gate) mark(chain *admission.Chain, uid, name, imageID string, mounted []string) {
	chain.MarkAdmitted(uid, name, imageID)
	for _, id := range mounted {
		chain.MarkMounted(uid, id)
	}
	if !g.c.Pods.Has(uid) { // it ended meanwhile
		chain.ForgetPod(uid)
	}
}

// A candidate is a sandbox or a container that a call would create, and about which the chain is asked.
type candidate struct {
	*Admission

	call      string
	who       tracker.Pod
	sandbox   *runtimeapi.PodSandboxConfig
	container *runtimeapi.ContainerConfig // nil for a sandbox
	image     admission.Image             // of the container
	mounts    []admission.Image           // that the container mounts
	// substituted means that the container has another image than the one that its configuration names.
	substituted bool
	// undescribed means that the call has no configuration of the container, so nothing is known about it except its name.
	undescribed bool

	// own and mounted are the decisions by which the pod may use the image of the container, and those that it mounts. They are noted when
	// the chain has admitted the container: the log must not say of a denied container that it was allowed.
	own, mounted []heldNote
}

// A heldNote is a decision that has not been noted yet.
type heldNote struct {
	name     imageref.Ref
	decision decisionlog.Decision
}

// candidate returns the candidate for a sandbox or a container that a call would create, nil if there are no policies. The configurations
// must be those that are forwarded; container is nil for a sandbox.
func (g *Gate) candidate(callName string, who tracker.Pod, sandbox *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) *candidate {
	a := g.admitting.Load()
	if a == nil {
		return nil
	}
	return &candidate{Admission: a, call: callName, who: who, sandbox: sandbox, container: container}
}

// on returns the candidate for the same container on an image that it has instead of the judged one. A restored container can be on any image,
// whatever the runtime reports, so its image is unknown, and no earlier start of the container counts. A nil candidate stays nil.
func (c *candidate) on(img tracker.Image, restored bool) *candidate {
	if c == nil {
		return nil
	}
	of := *c
	of.substituted, of.own, of.mounted = restored || c.image.ID != "", nil, nil
	of.image.ID, of.image.Names = img.ID, nil // the runtime may have given it the name of the judged image
	if restored {
		of.image.ID = ""
	}
	return &of
}

// ofRestored returns the candidate for a container that the runtime has restored although the call has no configuration for it; nil if there are
// no policies.
func (g *Gate) ofRestored(callName string, who tracker.Pod, sandbox *runtimeapi.PodSandboxConfig, name string) *candidate {
	c := g.candidate(callName, who, sandbox, &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name}})
	if c != nil {
		c.undescribed = true
	}
	return c
}

// holdOwn and holdMounted return where decisions about images are held back; nil, which means nowhere, for a nil candidate.
func (c *candidate) holdOwn() *[]heldNote {
	if c == nil {
		return nil
	}
	return &c.own
}

func (c *candidate) holdMounted() *[]heldNote {
	if c == nil {
		return nil
	}
	return &c.mounted
}

// admit asks the chain about a candidate, and notes the decision and those that were held back. A denial is the error for the client, with
// the code PermissionDenied. A nil candidate is admitted. A new sandbox of a pod that has run is exempt only as far as the pod was not edited.
func (g *Gate) admit(ctx context.Context, c *candidate) error {
	if c == nil {
		return nil
	}
	s := c.subject()
	var started *admission.Pod
	if e := c.Chain.Exempts(s); e != "" {
		if e == admission.StartedBefore && c.container == nil {
			var err error
			if started, err = g.editedSince(ctx, c); err != nil {
				return err
			}
		}
		if started == nil {
			g.release(c)
			return nil
		}
	}
	s.Pod, s.Container, s.Containers = g.view(ctx, c)
	var d admission.Decision
	if started == nil {
		d = c.Chain.Evaluate(ctx, s)
	} else {
		before := s
		before.Pod.Labels, before.Pod.Annotations = started.Labels, started.Annotations
		d = c.Chain.EvaluateEdited(ctx, before, s)
	}
	g.c.Metrics.Admission(c.call, d)
	g.noteAdmission(c, d)
	if d.Admitted() {
		return nil
	}
	if d.Answer == admission.Unverified {
		g.leadToPull(ctx, c)
	}
	return refusal(c.who, d, c.otherRoot())
}

// otherRoot returns the start of an error text if a mount shows that the kubelet keeps its files elsewhere than in
// KubeletRoot; "" otherwise.
func (c *candidate) otherRoot() string {
	root := criview.OtherRoot(c.container, c.who.UID, c.KubeletRoot)
	if root == "" {
		return ""
	}
	return fmt.Sprintf("%s looks like the root directory of the kubelet, and admission.kubeletRoot is %s; ", root, c.KubeletRoot)
}

// refusal returns the error for a call that the chain denies. remark is put before the reasons of the chain.
func refusal(who tracker.Pod, d admission.Decision, remark string) error {
	reason, text := d.Refusal()
	return criproxy.Refuse(codes.PermissionDenied, string(reason), fmt.Sprintf("pullgate: pod %s/%s: %s%s", who.Namespace, who.Name, remark, text))
}

// editedSince returns the view of the latest sandbox of a pod if a new one has other labels or annotations; nil if they are the same. Almost nothing
// else of a pod can be edited, and a tenant can end a sandbox.
func (g *Gate) editedSince(ctx context.Context, c *candidate) (*admission.Pod, error) {
	latest, err := g.c.Runtime.latestSandbox(ctx, c.who.UID)
	if err != nil {
		return nil, err
	}
	if latest == nil {
		return nil, criproxy.Refuse(codes.Unavailable, "SANDBOX_NOT_KNOWN", fmt.Sprintf(
			"pullgate: pod %s/%s has run, and the runtime has no sandbox of it any more; try again", c.who.Namespace, c.who.Name))
	}
	before := criview.Sandbox(&runtimeapi.PodSandboxConfig{Labels: latest.GetLabels(), Annotations: latest.GetAnnotations()})
	now := criview.Sandbox(c.sandbox)
	if sameMap(before.Labels, now.Labels) && sameMap(before.Annotations, now.Annotations) {
		return nil, nil //nolint:nilnil // nothing was edited
	}
	return &before, nil
}

func sameMap(a, b admission.Value[map[string]string]) bool {
	before, _ := a.Get()
	now, _ := b.Get()
	return maps.Equal(before, now)
}

// subject returns the candidate without the view, which is enough to find out whether it is exempt.
func (c *candidate) subject() admission.Subject {
	s := admission.Subject{Stage: admission.StageSandbox, Pod: identityOf(admission.Pod{}, c.who), Image: c.image, Mounted: c.mounts}
	if c.container != nil {
		s.Stage = admission.StageContainer
		s.Container = &admission.Container{Name: c.container.GetMetadata().GetName()}
	}
	return s
}

// identityOf returns a view with the identity that the gate has for the pod, which comes from answers of the runtime.
func identityOf(view admission.Pod, who tracker.Pod) admission.Pod {
	view.UID, view.Namespace, view.Name, view.Static = who.UID, who.Namespace, who.Name, who.Static
	return view
}

// identified returns a view with the identity of the pod and with the labels of its namespace, if they are known.
func (a *Admission) identified(view admission.Pod, who tracker.Pod) admission.Pod {
	view = identityOf(view, who)
	if labels, known := a.NamespaceLabels[who.Namespace]; known {
		view.NamespaceLabels = admission.Set(labels)
	}
	return view
}

// view returns what the CRI and the pod source say about a candidate, and what the pod source says about the pod's other containers.
func (g *Gate) view(ctx context.Context, c *candidate) (pod admission.Pod, container *admission.Container, others []admission.Container) {
	pod, container = c.criView()
	pod = c.identified(pod, c.who)
	// The API server has only copies of static pods, and does not describe what a checkpoint has.
	if c.Views != nil && !c.who.Static && !c.undescribed {
		pod, container, others = g.merge(ctx, c, pod, container)
	}
	if container != nil && (c.substituted || !c.namedInCall()) {
		container.Image = admission.Value[string]{}
	}
	return pod, container, others
}

// namedInCall reports whether the call has the pod's name for the image. A kubelet always sends it.
func (c *candidate) namedInCall() bool { return c.container.GetImage().GetUserSpecifiedImage() != "" }

// criView returns what the messages of the call say.
func (c *candidate) criView() (admission.Pod, *admission.Container) {
	if c.container == nil {
		return criview.Sandbox(c.sandbox), nil
	}
	if c.undescribed {
		return admission.Pod{}, &admission.Container{Name: c.container.GetMetadata().GetName()}
	}
	if uid := c.sandbox.GetMetadata().GetUid(); uid != "" && uid == c.who.UID {
		pod, container := criview.Container(c.sandbox, c.container, c.KubeletRoot)
		return pod, &container
	}
	// The configuration of the sandbox is missing, or is that of another pod: all about the pod is unknown, except its own volumes.
	own := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: c.who.UID}}
	_, container := criview.Container(own, c.container, c.KubeletRoot)
	return admission.Pod{}, &container
}

// merge adds the view of the pod source, and returns the pod's other containers. Each field in which the two differ is counted, and logged once for
// each pod.
func (g *Gate) merge(ctx context.Context, c *candidate, pod admission.Pod, container *admission.Container) (admission.Pod, *admission.Container, []admission.Container) {
	api, containers, ok := c.Views.View(ctx, c.who.UID)
	if !ok {
		return pod, container, nil
	}
	same, others := split(containers, container)
	pod, container, conflicts := admission.Merge(pod, api, container, same)
	for _, field := range conflicts {
		g.c.Metrics.ViewConflict(field)
		if g.conflicts.Add(hidden.Key{Pod: c.who.UID, Name: field}) {
			g.c.Log.Info("The kubelet and the API server differ about a pod, policies are compared with what the kubelet sent",
				"field", field, "pod", klog.KRef(c.who.Namespace, c.who.Name))
		}
	}
	return pod, container, others
}

// split returns the container with the name of a container, and the others; nothing for nil.
func split(containers []admission.Container, container *admission.Container) (same *admission.Container, others []admission.Container) {
	if container == nil {
		return nil, nil
	}
	for i := range containers {
		if containers[i].Name == container.Name {
			same = &containers[i]
		} else {
			others = append(others, containers[i])
		}
	}
	return same, others
}

// AdmissionDenied denies a call because of a policy: the credentials allow it, or there is nothing that needs one.
const AdmissionDenied policy.Reason = "admission_denied"

// noteAdmission notes a decision of the chain. A container that is admitted is noted once for each pod, container, image ID and content of the
// policies, and each time that a validator admits it without an answer; a sandbox only if a policy would deny it.
func (g *Gate) noteAdmission(c *candidate, d admission.Decision) {
	note := heldNote{name: c.image.Requested, decision: decisionlog.Decision{Call: c.call, Pod: c.who, PullPolicy: tracker.PullUnknown}}
	judged := len(c.own) > 0
	if judged {
		note = c.own[0]
	}
	note.decision.Container, note.decision.Admission = c.container.GetMetadata().GetName(), d
	switch {
	case !d.Admitted():
		note.decision.Verdict = overruled(note.decision.Verdict, AdmissionDenied)
		if note.decision.Verdict.Pair.ImageID == "" {
			note.decision.Verdict.Pair.ImageID = c.image.ID
		}
		g.note(note.name, note.decision)
		return
	case c.container == nil:
		if slices.ContainsFunc(d.Findings, func(f admission.Finding) bool { return f.Answer != admission.Admit }) {
			note.decision.Verdict.Verdict = policy.Allow
			g.note(note.name, note.decision)
		}
	case !judged: // the image is absent, and the runtime will say so
	case g.noted.Add(hidden.Key{Pod: c.who.UID, Name: strings.Join([]string{note.decision.Container, c.image.ID, d.PolicyHash}, "\x00")}), len(failedOpen(d)) > 0:
		g.note(note.name, note.decision)
	default:
		g.noteRepeatedAllow(note.name, note.decision)
	}
	c.own = nil
	g.release(c)
}

// release notes what was held back. A nil candidate has nothing.
func (g *Gate) release(c *candidate) {
	if c == nil {
		return
	}
	for _, n := range slices.Concat(c.own, c.mounted) {
		g.noteVerdict(n.name, n.decision)
	}
	c.own, c.mounted = nil, nil
}
