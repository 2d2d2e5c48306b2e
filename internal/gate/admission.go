package gate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/criview"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Admission is the admission chain, with what its views need. It does not change after it was passed to a gate.
type Admission struct {
	// Chain must not be nil. It remembers the started containers, so it is the same one as long as there are policies.
	Chain *admission.Chain
	// NamespaceLabels are the labels by namespace. Those of a namespace that is not a key are not known.
	NamespaceLabels map[string]map[string]string
	KubeletRoot     string // the folder below which the kubelet keeps the volumes of pods
	// Views adds what the CRI does not carry; nil if there is no pod source.
	Views ViewSource
	// Endorser judges and verifies signatures; nil if no policy is about them. It is one of the validators of Chain too.
	Endorser admission.Puller
}

// A ViewSource has views of pods as the API server has them. Its methods may be called concurrently.
type ViewSource interface {
	// View returns the view of a pod and of all its containers, with the fields that policies use. It may wait a second
	// for a pod that a kubelet received earlier. The caller does not modify the result.
	View(ctx context.Context, uid string) (pod admission.Pod, containers []admission.Container, ok bool)
}

// SetAdmission replaces Config.Admission for every call that begins after it returns; nil means no policies. With
// another chain than before, the next judged call rebuilds its list of started containers.
func (g *Gate) SetAdmission(a *Admission) { g.admitting.Store(a) }

// chain returns the chain; nil, of which all methods may be called, if there are no policies.
func (g *Gate) chain() *admission.Chain {
	if a := g.admitting.Load(); a != nil {
		return a.Chain
	}
	return nil
}

// mark notes a started container in a chain, which may be nil, so that its restart is admitted.
func (g *Gate) mark(chain *admission.Chain, c createdContainer) {
	chain.MarkAdmitted(c.uid, c.name, c.imageID)
	for _, id := range c.mounted {
		chain.MarkMounted(c.uid, id)
	}
	if chain != nil && !g.c.Pods.Has(c.uid) { // it ended meanwhile
		chain.ForgetPod(c.uid)
	}
}

// A candidate is a sandbox or a container that a call would create or start, with all that is judged about it.
type candidate struct {
	*use // of the image of the container; the name is empty for a sandbox

	sandbox   *runtimeapi.PodSandboxConfig
	container *runtimeapi.ContainerConfig // nil for a sandbox
	image     tracker.Image               // of the container; the zero value if it was absent when it was judged
	mounts    []admission.Image           // that the container mounts

	reported *runtimeapi.Container // what the runtime says of the created container; nil before it was created
	// restored means that the runtime has, or may have, restored the container from a checkpoint, whatever it reports.
	restored bool
	gone     bool // the container was removed before it was read back
	late     bool // the container is judged when it starts, and without its configuration
	// instead is the image with which the candidate was judged, if the container has another one. That one is image.
	instead *tracker.Image
	// undescribed means that the call has no configuration of the container, so nothing is known about it except its name.
	undescribed bool

	// The decisions about the candidate, see conclude.
	own      *decisionlog.Decision // about its image; nil if it was not judged
	mounted  []decisionlog.Decision
	asked    bool // the chain was asked
	admitted admission.Decision
}

func (g *Gate) candidate(
	ctx context.Context, c *call, who tracker.Pod, sandbox *runtimeapi.PodSandboxConfig,
	container *runtimeapi.ContainerConfig,
) *candidate {
	name := imageref.New(container.GetImage().GetUserSpecifiedImage())
	return &candidate{use: g.use(ctx, c, who, name), sandbox: sandbox, container: container}
}

// A check adds its decision to a candidate, and returns the error for the client if it is denied.
type check func(context.Context, *candidate) error

// run runs checks in order until one fails, and then notes what they have decided.
func (g *Gate) run(ctx context.Context, c *candidate, checks ...check) (err error) {
	for _, check := range checks {
		if err = check(ctx, c); err != nil {
			break
		}
	}
	g.conclude(c)
	return err
}

// conclude notes the decision about a candidate, and those about the images that it mounts. A container that a policy
// denies has one decision: the log must not say that its images were allowed. An admitted container is noted once for
// each pod, container, image ID and policy hash, and whenever a validator failed open; a sandbox only if a policy would
// deny it.
func (g *Gate) conclude(c *candidate) {
	switch {
	case c.asked:
		if !g.noteAdmission(c) {
			return
		}
	case c.own != nil:
		g.noteVerdict(*c.own)
	}
	for _, d := range c.mounted {
		g.noteVerdict(d)
	}
}

// noteAdmission notes the decision of the chain about a candidate, and reports whether the chain admits it.
func (g *Gate) noteAdmission(c *candidate) bool {
	d := c.decision(tracker.Verdict{})
	if c.own != nil {
		d = *c.own
	}
	d.Container, d.Admission = c.container.GetMetadata().GetName(), c.admitted
	switch {
	case !c.admitted.Admitted():
		d.Verdict = overruled(d.Verdict, AdmissionDenied)
		if img := c.subjectImage(); d.Verdict.Pair.ImageID == "" {
			c.judged = tracker.Image{ID: img.ID, Names: img.Names}
			d.Verdict.Pair.ImageID, d.Digest = img.ID, c.digestOf(img.ID)
		}
		g.note(d)
		return false
	case c.container == nil:
		if slices.ContainsFunc(c.admitted.Findings, func(f admission.Finding) bool { return f.Answer != admission.Admit }) {
			d.Verdict.Verdict = policy.Allow
			g.note(d)
		}
	case c.own == nil: // the image is absent, and the runtime will say so
	case g.pods.once(c.pod.UID, "admitted", joined(d.Container, c.image.ID, c.admitted.PolicyHash)),
		len(failedOpen(c.admitted)) > 0:
		g.note(d)
	default:
		g.noteRepeatedAllow(d)
	}
	return true
}

// admit asks the chain about a candidate. A new sandbox of a pod that has run is exempt as far as it was not edited.
func (g *Gate) admit(ctx context.Context, c *candidate) error {
	if c.policies == nil || c.late {
		return nil
	}
	s := c.subject()
	var started *admission.Pod
	if e := c.policies.Chain.Exempts(s); e != "" {
		if e == admission.StartedBefore && c.container == nil {
			var err error
			if started, err = g.editedSince(ctx, c); err != nil {
				return err
			}
		}
		if started == nil {
			return nil
		}
	}
	s.Pod, s.Container, s.Containers = g.view(ctx, c)
	c.asked = true
	if started == nil {
		c.admitted = c.policies.Chain.Evaluate(ctx, s)
	} else {
		before := s
		before.Pod.Labels, before.Pod.Annotations = started.Labels, started.Annotations
		c.admitted = c.policies.Chain.EvaluateEdited(ctx, before, s)
	}
	g.c.Metrics.Admission(c.method, c.admitted)
	if c.admitted.Admitted() {
		return nil
	}
	if c.admitted.Answer == admission.Unverified {
		g.leadToPull(c)
	}
	remark := ""
	if root := criview.OtherRoot(c.container, c.pod.UID, c.policies.KubeletRoot); root != "" {
		remark = fmt.Sprintf("%s looks like the root directory of the kubelet, and admission.kubeletRoot is %s; ",
			root, c.policies.KubeletRoot)
	}
	return refusal(c.pod, c.admitted, remark)
}

func refusal(who tracker.Pod, d admission.Decision, remark string) error {
	reason, text := d.Refusal()
	return refuse(codes.PermissionDenied, string(reason),
		"pullgate: pod %s/%s: %s%s", who.Namespace, who.Name, remark, text)
}

// editedSince returns the view of a pod's latest sandbox if a new one has other labels or annotations, else nil. Little
// else of a pod can be edited, and a tenant can end a sandbox.
func (g *Gate) editedSince(ctx context.Context, c *candidate) (*admission.Pod, error) {
	latest, err := g.c.Runtime.latestSandbox(ctx, c.pod.UID)
	if err != nil {
		return nil, err
	}
	if latest == nil {
		return nil, refuse(codes.Unavailable, "SANDBOX_NOT_KNOWN",
			"pullgate: pod %s/%s has run, and the runtime has no sandbox of it any more; try again",
			c.pod.Namespace, c.pod.Name)
	}
	then := &runtimeapi.PodSandboxConfig{Labels: latest.GetLabels(), Annotations: latest.GetAnnotations()}
	before, now := criview.Sandbox(then), criview.Sandbox(c.sandbox)
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
	s := admission.Subject{Pod: identityOf(admission.Pod{}, c.pod), Image: c.subjectImage(), Mounted: c.mounts}
	s.Stage = admission.StageSandbox
	if c.container != nil {
		s.Stage = admission.StageContainer
		s.Container = &admission.Container{Name: c.container.GetMetadata().GetName()}
	}
	return s
}

// subjectImage returns the image of the container for the chain. That of a restored container is unknown, whatever the
// runtime reports, and another image may have been given the name of the judged one.
func (c *candidate) subjectImage() admission.Image {
	img := admissionImage(c.image, c.name)
	if c.instead != nil {
		img.Names = nil
		if c.restored {
			img.ID = ""
		}
	}
	return img
}

// substituted reports whether the container has another image than the one that its configuration names.
func (c *candidate) substituted() bool { return c.instead != nil && (c.restored || c.instead.ID != "") }

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

func (g *Gate) view(
	ctx context.Context, c *candidate,
) (pod admission.Pod, container *admission.Container, others []admission.Container) {
	pod, container = c.criView()
	pod = c.policies.identified(pod, c.pod)
	// The API server has only copies of static pods, and does not describe what a checkpoint has.
	source := c.policies.Views != nil && !c.pod.Static
	if source && !c.undescribed {
		pod, container, others = g.merge(ctx, c, pod, container)
	}
	// A kubelet always sends the pod's name for the image.
	if container != nil && (c.substituted() || c.container.GetImage().GetUserSpecifiedImage() == "") {
		container.Image = admission.Value[string]{}
		if source {
			pod.Object = errOtherImage
		}
	}
	return pod, container, others
}

func (c *candidate) criView() (admission.Pod, *admission.Container) {
	if c.container == nil {
		return criview.Sandbox(c.sandbox), nil
	}
	if c.undescribed {
		return admission.Pod{}, &admission.Container{Name: c.container.GetMetadata().GetName()}
	}
	if uid := c.sandbox.GetMetadata().GetUid(); uid != "" && uid == c.pod.UID {
		pod, container := criview.Container(c.sandbox, c.container, c.policies.KubeletRoot)
		return pod, &container
	}
	// The sandbox configuration is missing or another pod's: all about the pod is unknown, except its own volumes.
	own := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: c.pod.UID}}
	_, container := criview.Container(own, c.container, c.policies.KubeletRoot)
	return admission.Pod{}, &container
}

// merge adds the view of the pod source. A field in which the two differ is counted, and logged once for each pod.
func (g *Gate) merge(
	ctx context.Context, c *candidate, pod admission.Pod, container *admission.Container,
) (admission.Pod, *admission.Container, []admission.Container) {
	api, containers, ok := c.policies.apiView(ctx, c.pod.UID)
	if !ok {
		pod.Object = api.Object
		return pod, container, nil
	}
	same, others := split(containers, container)
	pod, container, conflicts := admission.Merge(pod, api, container, same)
	for _, field := range conflicts {
		g.c.Metrics.ViewConflict(field)
		if g.pods.once(c.pod.UID, "conflict", field) {
			g.c.Log.Info("The kubelet and the API server differ about a pod: evaluating policies against what the kubelet sent",
				"field", field, "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
		}
	}
	return pod, container, others
}

// Why there is no Pod for hooks, although there is a pod source.
var (
	errNoObject   = errors.New("the Pod of the API server is not known yet")
	errOtherImage = errors.New("the Pod of the API server does not say which image the container has")
)

// apiView returns the view of the pod source, which a must have.
func (a *Admission) apiView(ctx context.Context, uid string) (
	pod admission.Pod, containers []admission.Container, ok bool,
) {
	if pod, containers, ok = a.Views.View(ctx, uid); pod.Object == nil {
		pod.Object = errNoObject
	}
	return pod, containers, ok
}

func split(
	containers []admission.Container, container *admission.Container,
) (same *admission.Container, others []admission.Container) {
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

// ExplainPolicies returns what the policies say about the sandbox of a pod, and about containers with an image that its
// spec names so; nothing without policies. A container named "" is not known. Without a pod source almost everything is
// unknown. A denial is not certain before the gate is synced, nor what validators ask over the network unless ask is
// set. Nothing is noted or counted.
func (g *Gate) ExplainPolicies(
	ctx context.Context, who tracker.Pod, containers []string, image admission.Image, name string, ask bool,
) []admission.Explanation {
	a := g.admitting.Load()
	if a == nil {
		return nil
	}
	complete := who.UID == "" || g.rebuilt()
	var (
		api   admission.Pod
		known []admission.Container
	)
	if a.Views != nil && who.UID != "" && !who.Static { // as in view
		api, known, _ = a.apiView(ctx, who.UID)
	}
	explain := func(container *admission.Container) admission.Explanation {
		s := admission.Subject{Stage: admission.StageSandbox, Offline: !ask, DryRun: true}
		_, s.Containers = split(known, container)
		if container != nil {
			s.Stage, s.Image = admission.StageContainer, image
		}
		s.Pod, s.Container = admission.Expected(api, container)
		s.Pod, s.Container, _ = admission.Merge(s.Pod, api, s.Container, container)
		s.Pod = a.identified(s.Pod, who)
		e := a.Chain.Explain(ctx, s)
		e.Certain = e.Certain && (complete || e.Admitted())
		return e
	}
	all := []admission.Explanation{explain(nil)}
	for _, c := range containers {
		view := admission.Container{Name: c}
		if i := slices.IndexFunc(known, func(k admission.Container) bool { return k.Name == c }); i >= 0 {
			view = known[i]
		}
		view.Image = admission.Set(name)
		all = append(all, explain(&view))
	}
	return all
}
