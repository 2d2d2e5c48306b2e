package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

const admissionReviewKind = "AdmissionReview"

// uidOf finds the UID of the request in the beginning of an AdmissionReview, as the API server writes it.
var uidOf = regexp.MustCompile(`^\s*\{\s*(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)*"request"\s*:\s*\{\s*"uid"\s*:\s*"([^"\\]+)"`)

func (h *Handler) validate(ctx context.Context, b received, event *Event) (any, *refusal) {
	return h.admit(b, event, func(q *question) answer { return h.judge(ctx, q) })
}

// admit answers an AdmissionReview.
func (h *Handler) admit(b received, event *Event, judge func(*question) answer) (any, *refusal) {
	if b.denied != "" {
		uid := uidOf.FindSubmatch(b.text)
		if uid == nil {
			return nil, refuse(http.StatusRequestEntityTooLarge,
				fmt.Sprintf("an AdmissionReview must not exceed %d bytes and %d values", maxAdmissionReview, maxValues))
		}
		event.Outcome = Invalid
		return reviewed(types.UID(uid[1]), denial(http.StatusRequestEntityTooLarge, "pullgate: the object "+b.denied)), nil
	}
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b.text, &review); err != nil {
		return nil, refuse(http.StatusBadRequest, "the body is not an AdmissionReview")
	}
	version := admissionv1.SchemeGroupVersion.String()
	switch {
	case review.Kind != admissionReviewKind || review.APIVersion != version:
		return nil, refuse(http.StatusBadRequest, "apiVersion and kind must be "+version+" and "+admissionReviewKind)
	case review.Request == nil || review.Request.UID == "":
		return nil, refuse(http.StatusBadRequest, "the AdmissionReview has no request with a uid")
	}
	return reviewed(review.Request.UID, h.respond(review.Request, b, event, judge)), nil
}

func reviewed(uid types.UID, r *admissionv1.AdmissionResponse) *admissionv1.AdmissionReview {
	r.UID = uid
	header := metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: admissionReviewKind}
	return &admissionv1.AdmissionReview{TypeMeta: header, Response: r}
}

func denial(status int32, sentence string) *admissionv1.AdmissionResponse {
	reason := metav1.StatusReasonForbidden
	switch status {
	case http.StatusForbidden:
	case http.StatusInternalServerError:
		reason = metav1.StatusReasonInternalError
	default:
		reason = metav1.StatusReasonInvalid
	}
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: status, Reason: reason, Message: safetext.Valid(sentence),
	}}
}

func (h *Handler) respond(
	r *admissionv1.AdmissionRequest, b received, event *Event, judge func(*question) answer,
) (response *admissionv1.AdmissionResponse) {
	q := h.question(r)
	q.done, q.began = b.done, b.began
	event.Operation, event.Resource = string(r.Operation), q.resource
	event.Namespace, event.Name, event.DryRun = r.Namespace, q.name, r.DryRun != nil && *r.DryRun
	defer func() {
		if h.panicked(recover()) {
			event.Outcome = Failed
			response = denial(http.StatusInternalServerError,
				q.sentence("the judgement failed, which is a defect of pullgate; see the log of pullgate-policyd"))
		}
		if response.Result != nil {
			event.Message = response.Result.Message
		}
	}()
	a := judge(q)
	if a.audit == nil && len(a.decision.Findings) > 0 {
		a.audit = auditAnnotations(a.decision.Findings)
	}
	if a.outcome == Changed && len(a.patched) > 0 {
		event.Patched = safetext.Shorten(strings.Join(a.patched, "; "), maxPatchedNote)
		a = a.noted(patchedKey, event.Patched)
	}
	event.Outcome, event.Decision, event.AuditAnnotations, event.Digests = a.outcome, a.decision, a.audit, a.digests
	switch a.outcome {
	case Invalid:
		response = denial(http.StatusUnprocessableEntity, q.sentence(a.text))
	case Denied:
		_, text := a.decision.Refusal()
		text = cmp.Or(text, "denied without a reason, which is a defect of pullgate")
		response = denial(cmp.Or(a.status, http.StatusForbidden), q.sentence(a.text+text))
	case Allowed, NotJudged, Unchanged, MirrorPod:
		response = &admissionv1.AdmissionResponse{Allowed: true}
	case Changed:
		response = &admissionv1.AdmissionResponse{
			Allowed: true, Patch: a.patch, PatchType: new(admissionv1.PatchTypeJSONPatch),
		}
	case Refused, Failed:
		panic("webhook: no answer of a judgement")
	}
	response.Warnings, response.AuditAnnotations = warnings(a.decision, a.warnings), a.audit
	return response
}

type question struct {
	*admissionv1.AdmissionRequest

	resource  string // for messages and events
	name      string // or the prefix of the name that the object will get
	template  templatePath
	pods      bool // the resource is pods
	update    bool
	stage     admission.Stage
	ephemeral bool // only the ephemeral containers are judged
	size      size
	done      func() // says that the objects are not needed any more
	began     time.Time
}

func (h *Handler) question(r *admissionv1.AdmissionRequest) *question {
	group := schema.GroupResource{Group: r.Resource.Group, Resource: r.Resource.Resource}
	q := &question{
		AdmissionRequest: r, resource: group.String(), name: r.Name, template: h.templates[group],
		pods: group == schema.GroupResource{Resource: "pods"}, update: r.Operation == admissionv1.Update,
		stage: admission.StageTemplate, ephemeral: r.SubResource != "",
	}
	if q.pods {
		q.stage = admission.StageAdmission
	}
	if r.SubResource != "" {
		q.resource += "/" + r.SubResource
	}
	if q.name == "" { // the API server makes one
		var object metav1.PartialObjectMetadata
		if kjson.UnmarshalCaseSensitivePreserveInts(r.Object.Raw, &object) == nil {
			q.name = cmp.Or(object.Name, object.GenerateName)
		}
	}
	return q
}

// sentence returns the message of a denial. That of a pod is the one of the node.
func (q *question) sentence(text string) string {
	resource := q.resource
	if q.pods {
		resource = "pod"
	}
	name := q.name
	if q.Namespace != "" { // an object of a custom resource need not have one
		name = q.Namespace + "/" + name
	}
	return fmt.Sprintf("pullgate: %s %s: %s", resource, name, text)
}

// release says that the objects, which are large, are not needed any more: registries and backends can take long.
func (q *question) release() {
	q.Object.Raw, q.OldObject.Raw = nil, nil
	q.done()
}

type answer struct {
	outcome  Outcome
	decision admission.Decision
	audit    map[string]string
	// text says what is invalid. Of a denial it begins with the place of the pod template, if there are several.
	text     string
	warnings []string // sentences about images whose signatures are not judged here, and changes that are not made
	patch    []byte   // of an object that is changed, in JSON
	digests  string   // notes of what was added
	patched  []string // the initialisers and rules that have changed the pod
	status   int32    // of a denial; 0 means 403
	// unselected are the rules that are not for the pod.
	unselected verify.Unselected
}

func invalidAnswer(text string) answer { return answer{outcome: Invalid, text: text} }

// noted adds an audit annotation.
func (a answer) noted(key, value string) answer {
	if a.audit = maps.Clone(a.audit); a.audit == nil {
		a.audit = map[string]string{}
	}
	a.audit[key] = value
	return a
}

func (a answer) denies() bool { return a.outcome == Invalid || a.outcome == Denied }

func (a answer) with(findings []admission.Finding) answer {
	d := admission.DecisionOf(findings)
	a.decision.Answer, a.decision.Findings = d.Answer, append(a.decision.Findings, d.Findings...)
	return a.judged()
}

func (h *Handler) judge(ctx context.Context, q *question) answer {
	switch {
	case q.Operation != admissionv1.Create && !q.update:
		return answer{outcome: NotJudged}
	case q.pods && (q.SubResource == "" || q.SubResource == "ephemeralcontainers"):
		return h.judgePod(ctx, q)
	case q.SubResource == "":
		return h.judgeOther(ctx, q)
	default:
		return answer{outcome: NotJudged}
	}
}

// judgeOther judges an object that is not a pod: by its pod templates, and by the images of a custom resource.
func (h *Handler) judgeOther(ctx context.Context, q *question) answer {
	var custom *verify.Custom
	if h.options.Custom != nil {
		custom = h.options.Custom(ctx, verify.CustomObject{
			Kind:      requirement.Kind{Group: q.Kind.Group, Version: q.Kind.Version, Kind: q.Kind.Kind},
			Namespace: q.Namespace, Operation: string(q.Operation), JSON: q.Object.Raw, Old: q.OldObject.Raw,
		})
	}
	a := answer{outcome: NotJudged}
	if q.template.paths != nil {
		a = h.judgeTemplates(ctx, q)
	}
	switch {
	case a.denies() || custom == nil:
		return a
	case custom.Unchanged:
		if a.outcome == NotJudged {
			a.outcome = Unchanged
		}
		return a
	}
	if a = a.admittedUnless(custom.Findings); a.denies() || custom.Judge == nil {
		return a
	}
	q.release()
	return a.admittedUnless(custom.Judge(ctx))
}

func (a answer) admittedUnless(findings []admission.Finding) answer {
	if len(findings) == 0 {
		a.outcome, a.decision.Answer = Allowed, admission.Admit
		return a
	}
	return a.with(findings)
}

// podOf returns the pod of a request and the one before an update, which is nil if everything counts as changed. If pod
// is nil, the answer is known.
func (q *question) podOf() (pod, old *corev1.Pod, known answer) {
	if q.Kind.Group != "" || q.Kind.Kind != "Pod" {
		return nil, nil, invalidAnswer("the object is not a Pod of v1")
	}
	if pod = decodePod(q.Object.Raw); pod == nil {
		return nil, nil, invalidAnswer("the object cannot be decoded as a Pod")
	}
	// The API server's copy of a static pod. Every user can make one, and no kubelet runs it.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil, nil, answer{outcome: MirrorPod}
	}
	if q.update {
		old = decodePod(q.OldObject.Raw)
	}
	return pod, old, answer{}
}

func (h *Handler) judgePod(ctx context.Context, q *question) answer {
	pod, old, a := q.podOf()
	if pod == nil {
		return a
	}
	if a = h.restrictions(ctx, q, pod, old); a.denies() {
		return a
	}
	images := q.newImages(pod, old)
	if a = h.object(ctx, q, a, images, q.Object.Raw); a.denies() {
		return a
	}
	ctx, cancel := context.WithCancel(ctx)
	hooks := h.askHooks(ctx, q, pod, old)
	defer func() { cancel(); hooks() }()
	if a = h.signatures(ctx, q, a, images); a.denies() {
		return a
	}
	if a = h.review(ctx, q, a, pod, old); a.denies() {
		return a
	}
	q.release()
	return a.hooked(hooks())
}

// AskHooks prepares a request to hooks about a pod, and returns what sends it; nil if no hook selects the pod or old,
// which can be nil. Afterwards r is not needed any more.
type AskHooks func(ctx context.Context, r *admissionv1.AdmissionRequest, pod, old *admission.Pod) func() HookAnswers

const (
	// The warnings of initialisers leave room for those of rules and of pullgate.
	maxInitialiserWarnings, maxInitialiserWarning = 2, 256
	maxAudit                                      = 32 << 10 // bounds the audit annotations of backends and hooks
)

// HookAnswers are what hooks say about a pod.
type HookAnswers struct {
	Findings []admission.Finding // none if no hook is asked
	Warnings []string
	Status   int32 // of the answer, if it denies
}

// Add adds the answer of a hook.
func (all *HookAnswers) Add(h *policyfiles.Hook, a policyfiles.HookAnswer) {
	all.Findings = append(all.Findings, h.Finding(a))
	for i, w := range a.Warnings {
		if h.Mutating {
			if i == maxInitialiserWarnings {
				break
			}
			w = safetext.Line(w, maxInitialiserWarning)
		}
		all.Warnings = append(all.Warnings, "hook "+h.Name+": "+w)
	}
	if !a.Allowed && !h.Audit && all.Status == 0 {
		if all.Status = http.StatusInternalServerError; a.Failure == "" {
			all.Status = a.Status()
		}
	}
}

// askHooks asks hooks while others judge. The function that it returns waits for the answers.
func (h *Handler) askHooks(ctx context.Context, q *question, pod, old *corev1.Pod) func() HookAnswers {
	var ask AskHooks
	if h.options.Hooks != nil {
		ask = h.options.Hooks(string(q.Operation), q.SubResource)
	}
	if ask == nil {
		return func() HookAnswers { return HookAnswers{} }
	}
	r, view := *q.AdmissionRequest, q.subject(pod).Pod
	view.NamespaceLabels = h.labels(ctx, q.Namespace)
	var before *admission.Pod
	if old != nil {
		s := q.subject(old)
		before, s.Pod.NamespaceLabels = &s.Pod, view.NamespaceLabels
	}
	send := ask(ctx, &r, &view, before)
	if send == nil {
		return func() HookAnswers { return HookAnswers{} }
	}
	answered := make(chan HookAnswers, 1)
	go func() {
		failed := HookAnswers{Findings: []admission.Finding{{
			Validator: admission.HookValidator, Answer: admission.Deny, Reason: admission.ValidatorFailed,
			Message: "hooks failed, which is a defect of pullgate; see the log of pullgate-policyd",
		}}}
		defer func() {
			if h.panicked(recover()) {
				answered <- failed
			}
		}()
		answered <- send()
	}()
	return sync.OnceValue(func() HookAnswers { return <-answered })
}

func (a answer) hooked(by HookAnswers) answer {
	a.warnings = append(a.warnings, by.Warnings...)
	if len(by.Findings) == 0 {
		return a
	}
	a.audit = auditAnnotations(append(slices.Clip(a.decision.Findings), by.Findings...))
	if a = a.with(by.Findings); a.denies() {
		a.status = by.Status
	} else if a.outcome == Unchanged {
		a.outcome = Allowed
	}
	return a
}

// decodePod returns nil for what is not a pod; an error could contain values.
func decodePod(object []byte) (pod *corev1.Pod) {
	if kjson.UnmarshalCaseSensitivePreserveInts(object, &pod) != nil {
		return nil
	}
	return pod
}

// restrictions asks the chain about a pod or pod template, unless an update changes nothing that the chain judges.
func (h *Handler) restrictions(ctx context.Context, q *question, pod, old *corev1.Pod) answer {
	chain, s := h.options.Chain, q.subject(pod)
	if chain.Exempts(s) == "" {
		s.Pod.NamespaceLabels = h.labels(ctx, q.Namespace)
	}
	var before admission.Subject
	if old != nil {
		before = q.subject(old)
		before.Pod.NamespaceLabels = s.Pod.NamespaceLabels
		if chain.Same(before, s) {
			return answer{outcome: Unchanged, decision: admission.Decision{Answer: admission.Admit}}
		}
	}
	if q.size.add(&pod.Spec) {
		return invalidAnswer(tooManyParts)
	}
	onlyMetadata := before
	onlyMetadata.Pod.Labels, onlyMetadata.Pod.Annotations = s.Pod.Labels, s.Pod.Annotations
	var a answer
	if old != nil && q.stage == admission.StageAdmission && chain.Same(onlyMetadata, s) {
		// A pod that violates a newer policy in another field keeps running, and its labels can be changed.
		a.decision = chain.EvaluateEdited(ctx, before, s)
	} else {
		a.decision = chain.Evaluate(ctx, s)
	}
	return a.judged()
}

func (a answer) judged() answer {
	if a.outcome = Allowed; !a.decision.Admitted() {
		a.outcome = Denied
	}
	return a
}

func (h *Handler) labels(ctx context.Context, namespace string) (unknown admission.Value[map[string]string]) {
	if h.options.Labels != nil && namespace != "" {
		if labels, ok := h.options.Labels(ctx, namespace); ok {
			return admission.Set(labels)
		}
	}
	return unknown
}

// subject returns what the chain judges about a pod. Namespace and origin are not those of the object: every user here
// can set the annotations that make a pod static for a kubelet.
func (q *question) subject(pod *corev1.Pod) admission.Subject {
	view, containers := podfile.ViewOf(pod)
	view.Namespace, view.Static = q.Namespace, false
	if q.ephemeral {
		containers = slices.DeleteFunc(containers, func(c admission.Container) bool {
			kind, _ := c.Kind.Get()
			return kind != admission.KindEphemeral
		})
	}
	return admission.Subject{Stage: q.stage, Pod: view, Containers: containers}
}

// A size counts what the time of a judgement depends on, besides the policies.
type size struct{ containers, volumes, mounts int }

// The limits of an object. Its size in the API server alone allows some ten thousand.
const maxContainers, maxVolumes, maxMounts = 1000, 1000, 10000

func (n *size) add(s *corev1.PodSpec) bool {
	n.containers += len(s.Containers) + len(s.InitContainers) + len(s.EphemeralContainers)
	n.volumes += len(s.Volumes)
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range list {
			n.mounts += len(list[i].VolumeMounts) + len(list[i].VolumeDevices)
		}
	}
	for i := range s.EphemeralContainers {
		n.mounts += len(s.EphemeralContainers[i].VolumeMounts)
	}
	return n.containers > maxContainers || n.volumes > maxVolumes || n.mounts > maxMounts
}

const tooManyParts = "the object has more than 1000 containers, 1000 volumes or 10000 mounts"

func (q *question) newImages(pod, old *corev1.Pod) []string {
	imagesOf := func(p *corev1.Pod) []string {
		if p == nil {
			return nil
		}
		r := q.reviewed(p)
		return append(r.Images, r.Volumes...)
	}
	return slices.DeleteFunc(imagesOf(pod), sets.New(imagesOf(old)...).Has)
}

// object judges the conditions of rules on a pod or the template of one.
func (h *Handler) object(ctx context.Context, q *question, a answer, images []string, data []byte) answer {
	switch {
	case h.options.Object == nil || len(images) == 0:
		return a
	case len(images) > maxContainers+maxVolumes:
		return invalidAnswer(tooManyParts)
	}
	var findings []admission.Finding
	findings, a.unselected = h.options.Object(ctx, verify.Object{
		Namespace: q.Namespace, Operation: string(q.Operation), Images: images, JSON: data, Template: !q.pods,
	})
	if len(findings) == 0 {
		return a
	}
	return a.with(findings)
}

func (h *Handler) signatures(ctx context.Context, q *question, a answer, images []string) answer {
	switch {
	case h.options.Signatures == nil || len(images) == 0:
		return a
	case len(images) > maxContainers+maxVolumes:
		return invalidAnswer(tooManyParts)
	}
	// A registry can take all of the time, and backends need some.
	if deadline, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
		ctx = half
	}
	q.release()
	findings, undetermined := h.options.Signatures(ctx, q.Namespace, images, !q.pods, a.unselected)
	a.warnings = undetermined
	if len(findings) == 0 {
		return a
	}
	return a.with(findings)
}

func (q *question) reviewed(p *corev1.Pod) review.Subject {
	out := review.Subject{Namespace: q.Namespace, Annotations: admission.ForReview(p.Annotations)}
	if q.ephemeral {
		for i := range p.Spec.EphemeralContainers {
			out.Images = append(out.Images, p.Spec.EphemeralContainers[i].Image)
		}
		return out
	}
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			out.Images = append(out.Images, list[i].Image)
		}
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Image; v != nil && v.Reference != "" {
			out.Volumes = append(out.Volumes, v.Reference)
		}
	}
	return out
}

func (h *Handler) review(ctx context.Context, q *question, a answer, pod, old *corev1.Pod) answer {
	if h.options.Review == nil {
		return a
	}
	about := q.reviewed(pod)
	unchanged := old != nil && reflect.DeepEqual(q.reviewed(old), about)
	if unchanged || len(about.Images) == 0 && len(about.Volumes) == 0 {
		return a
	}
	q.release()
	return a.with(h.options.Review(ctx, about))
}

// auditAnnotations joins the values of a key that several backends, or the templates of an object, use. The keys have
// no prefix: the API server adds the name of the webhook, and would log an error for each key that is not valid after
// it.
func auditAnnotations(findings []admission.Finding) map[string]string {
	all, size := map[string]string{}, 0
	for _, f := range findings {
		for _, key := range slices.Sorted(maps.Keys(f.AuditAnnotations)) {
			value := f.AuditAnnotations[key]
			if strings.Contains(key, "/") || len(validation.IsQualifiedName(key)) > 0 {
				continue
			}
			if size+len(key)+len(value) > maxAudit {
				continue
			}
			size += len(key) + len(value)
			if before, several := all[key]; several {
				value = before + "; " + value
			}
			all[key] = value
		}
		if f.FailedOpen {
			all["failed-open"] = "true" // as the API server's own plugin
		}
	}
	return all
}

type templatePath struct {
	paths  [][]string
	custom bool
}

func (h *Handler) judgeTemplates(ctx context.Context, q *question) answer {
	all := answer{outcome: Allowed, decision: admission.Decision{Answer: admission.Admit}}
	if q.update {
		all.outcome = Unchanged
		if q.template.same(q.OldObject.Raw, q.Object.Raw) {
			return all
		}
	}
	templates, err := podfile.Templates(q.Object.Raw, q.template.paths)
	if err != nil {
		return invalidAnswer(text(err))
	}
	var before []podfile.Template
	if q.update {
		before, _ = podfile.Templates(q.OldObject.Raw, q.template.paths)
	}
	var images []string
	for _, t := range templates {
		if slices.ContainsFunc(before, func(b podfile.Template) bool { return bytes.Equal(b.Data, t.Data) }) {
			continue
		}
		pod, err := q.template.decode(t)
		if err != nil {
			return invalidAnswer(text(err))
		}
		var old *corev1.Pod // nil also if it cannot be decoded
		if i := slices.IndexFunc(before, func(b podfile.Template) bool { return b.At == t.At }); i >= 0 {
			old, _ = q.template.decode(before[i])
		}
		a := h.restrictions(ctx, q, pod, old)
		if a.denies() {
			if len(templates) > 1 {
				a.text = t.At + ": " + a.text
			}
			return a
		}
		if a.outcome == Allowed {
			all.outcome = Allowed
		}
		all.decision.Findings = append(all.decision.Findings, a.decision.Findings...)
		all.decision.PolicyHash, all.decision.Exemption = a.decision.PolicyHash, a.decision.Exemption
		added := q.newImages(pod, old)
		o := h.object(ctx, q, a, added, t.Data)
		switch {
		case len(added) == 0:
		case len(images) == 0:
			all.unselected = o.unselected
		default:
			all.unselected = all.unselected.Both(o.unselected)
		}
		if o.denies() {
			if len(templates) > 1 {
				o.text = t.At + ": "
			}
			return o
		} else if len(o.decision.Findings) > len(a.decision.Findings) { // by rules that only report
			all.decision.Findings = append(all.decision.Findings, o.decision.Findings[len(a.decision.Findings):]...)
		}
		images = append(images, added...)
	}
	return h.signatures(ctx, q, all, images)
}

// same reports whether an update changes no field with pod templates in it, whether they can be decoded or not.
func (p templatePath) same(before, object []byte) bool {
	var of, now map[string]json.RawMessage
	decode := kjson.UnmarshalCaseSensitivePreserveInts
	changed := func(path []string) bool { return !bytes.Equal(of[path[0]], now[path[0]]) }
	return decode(before, &of) == nil && decode(object, &now) == nil && !slices.ContainsFunc(p.paths, changed)
}

// decode returns a template as a pod. The decoder distinguishes upper and lower case, as that of the API server does.
func (p templatePath) decode(t podfile.Template) (*corev1.Pod, error) {
	var template corev1.PodTemplateSpec
	if err := kjson.UnmarshalCaseSensitivePreserveInts(t.Data, &template); err != nil {
		return nil, podfile.NotDecoded(t.At, "a pod template")
	}
	if p.custom { // the API server has set the defaults in all others
		podfile.SetDefaults(&template.Spec)
	}
	pod := &corev1.Pod{Spec: template.Spec}
	pod.Labels, pod.Annotations = template.Labels, template.Annotations
	return pod, nil
}

func text(err error) string { return strings.TrimPrefix(err.Error(), "podfile: ") }

// maxWarnings bounds the warnings of an answer. The API server cuts them at 4,096 bytes in all.
const maxWarnings = 10

func warnings(d admission.Decision, undetermined []string) (all []string) {
	for _, f := range d.Findings {
		switch {
		case !f.Reported():
		case f.Audit:
			all = append(all, "audit: "+f.Message)
		default:
			all = append(all, f.Message)
		}
	}
	all = append(all, undetermined...)
	if more := len(all) - maxWarnings; more > 0 {
		all = append(all[:maxWarnings], fmt.Sprintf("and %d more", more))
	}
	for i, text := range all {
		all[i] = "pullgate: " + safetext.Valid(text)
	}
	return all
}
