package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

const admissionReviewKind = "AdmissionReview"

// validate answers an AdmissionReview.
func (h *Handler) validate(ctx context.Context, b received, event *Event) (any, *refusal) {
	if b.denied != "" {
		uid := uidOf(b.text)
		if uid == "" {
			return nil, refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("an AdmissionReview must not exceed %d bytes and %d values", maxAdmissionReview, maxValues))
		}
		event.Outcome = Invalid
		return reviewed(uid, denial(http.StatusRequestEntityTooLarge, "pullgate: the object "+b.denied)), nil
	}
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b.text, &review); err != nil {
		return nil, refuse(http.StatusBadRequest, "the body is not an AdmissionReview")
	}
	switch {
	case review.Kind != admissionReviewKind || review.APIVersion != admissionv1.SchemeGroupVersion.String():
		return nil, refuse(http.StatusBadRequest, "apiVersion and kind must be "+admissionv1.SchemeGroupVersion.String()+" and "+admissionReviewKind)
	case review.Request == nil || review.Request.UID == "":
		return nil, refuse(http.StatusBadRequest, "the AdmissionReview has no request with a uid")
	}
	return reviewed(review.Request.UID, h.respond(ctx, review.Request, b.done, event)), nil
}

// reviewed returns the answer to the request with a UID.
func reviewed(uid types.UID, r *admissionv1.AdmissionResponse) *admissionv1.AdmissionReview {
	r.UID = uid
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: admissionReviewKind}, Response: r,
	}
}

func denial(status int32, sentence string) *admissionv1.AdmissionResponse {
	reason := metav1.StatusReasonForbidden
	if status != http.StatusForbidden {
		reason = metav1.StatusReasonInvalid
	}
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: status, Reason: reason, Message: safetext.Valid(sentence),
	}}
}

// uidOf returns the UID of the request in the beginning of an AdmissionReview, as the API server writes it; "" if it is
// not there.
func uidOf(body []byte) types.UID {
	d := json.NewDecoder(bytes.NewReader(body))
	next := func() json.Token { token, _ := d.Token(); return token } // nil after an error
	if next() != json.Delim('{') {
		return ""
	}
	for {
		key, value := next(), next()
		if _, isText := value.(string); isText && key != "request" {
			continue
		}
		if key != "request" || value != json.Delim('{') || next() != "uid" {
			return ""
		}
		uid, _ := next().(string)
		return types.UID(uid)
	}
}

// respond judges a request.
func (h *Handler) respond(ctx context.Context, r *admissionv1.AdmissionRequest, done func(), event *Event) (response *admissionv1.AdmissionResponse) {
	q := h.question(r)
	q.done = done
	event.Operation, event.Resource = string(r.Operation), q.resource
	event.Namespace, event.Name, event.DryRun = r.Namespace, q.name, r.DryRun != nil && *r.DryRun
	defer func() {
		if response.Result != nil {
			event.Message = response.Result.Message
		}
	}()
	defer func() {
		if value := recover(); value != nil {
			h.panicked(value)
			event.Outcome = Failed
			response = denial(http.StatusInternalServerError, q.sentence("the judgement failed, which is a defect of pullgate; see the log of pullgate-policyd"))
		}
	}()
	a := h.judge(ctx, q)
	event.Outcome, event.Decision, event.AuditAnnotations = a.outcome, a.decision, a.audit
	switch a.outcome {
	case Invalid:
		response = denial(http.StatusUnprocessableEntity, q.sentence(a.text))
	case Denied:
		_, text := a.decision.Refusal()
		response = denial(http.StatusForbidden, q.sentence(a.at+cmp.Or(text, "denied without a reason, which is a defect of pullgate")))
	case Allowed, NotJudged, Unchanged, MirrorPod:
		response = &admissionv1.AdmissionResponse{Allowed: true}
	case Refused, Failed:
		panic("webhook: no answer of a judgement")
	}
	response.Warnings, response.AuditAnnotations = warnings(a.decision, a.warnings), a.audit
	return response
}

// A question is what a request asks.
type question struct {
	*admissionv1.AdmissionRequest

	resource string // for messages and events
	name     string
	template templatePath
	update   bool
	done     func() // says that the objects are not needed any more
}

func (h *Handler) question(r *admissionv1.AdmissionRequest) *question {
	group := schema.GroupResource{Group: r.Resource.Group, Resource: r.Resource.Resource}
	q := &question{
		AdmissionRequest: r, resource: group.String(), template: h.templates[group], update: r.Operation == admissionv1.Update,
		name: r.Name,
	}
	if q.name == "" { // the API server makes one
		q.name = nameOf(r.Object.Raw)
	}
	if r.SubResource != "" {
		q.resource += "/" + r.SubResource
	}
	return q
}

// nameOf returns the name of an object, or the prefix of the name that it will get.
func nameOf(object []byte) string {
	var named struct {
		Metadata struct {
			Name         string `json:"name"`
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(object, &named); err != nil {
		return ""
	}
	return cmp.Or(named.Metadata.Name, named.Metadata.GenerateName)
}

// pods are the resource of pods.
func (q *question) pods() bool { return q.Resource.Group == "" && q.Resource.Resource == "pods" }

// sentence returns the message of a denial. That of a pod is the one of the node.
func (q *question) sentence(text string) string {
	resource := q.resource
	if q.pods() {
		resource = "pod"
	}
	return fmt.Sprintf("pullgate: %s %s/%s: %s", resource, q.Namespace, q.name, text)
}

// An answer is the result of a judgement.
type answer struct {
	outcome  Outcome
	decision admission.Decision
	audit    map[string]string
	// at is the place of the pod template that is denied, if there are several; text says what is invalid.
	at, text string
	// warnings are sentences about images whose signatures are not judged here.
	warnings []string
}

// with returns an answer that admits, with more findings.
func (a answer) with(findings []admission.Finding) answer {
	d := admission.DecisionOf(findings)
	a.outcome, a.decision.Answer, a.decision.Findings = Allowed, d.Answer, append(a.decision.Findings, d.Findings...)
	if !d.Admitted() {
		a.outcome = Denied
	}
	return a
}

func (h *Handler) judge(ctx context.Context, q *question) answer {
	switch {
	case q.Operation != admissionv1.Create && !q.update:
		return answer{outcome: NotJudged}
	case q.pods() && (q.SubResource == "" || q.SubResource == "ephemeralcontainers"):
		return h.judgePod(ctx, q)
	case q.SubResource == "" && q.template.paths != nil:
		return h.judgeTemplates(ctx, q)
	default:
		return answer{outcome: NotJudged}
	}
}

func (h *Handler) judgePod(ctx context.Context, q *question) answer {
	if q.Kind.Group != "" || q.Kind.Kind != "Pod" {
		return answer{outcome: Invalid, text: "the object is not a Pod of v1"}
	}
	pod, err := decodePod(q.Object.Raw)
	if err != nil {
		return answer{outcome: Invalid, text: err.Error()}
	}
	if mirrorPod(pod) {
		return answer{outcome: MirrorPod}
	}
	var old *corev1.Pod
	if q.update {
		old, _ = decodePod(q.OldObject.Raw) // without it everything counts as changed
	}
	ephemeral := q.SubResource != ""
	var n size
	a := h.restrictions(ctx, comparison{q, admission.StageAdmission, ephemeral, pod, old}, &n)
	if a.outcome == Invalid || a.outcome == Denied {
		return a
	}
	images := h.newImages(q, ephemeral, pod, old)
	a = h.signatures(ctx, q, a, images)
	if a.outcome == Denied {
		return a
	}
	return h.review(ctx, q, a, ephemeral, pod, old)
}

// errNotAPod has no cause, which can contain values.
var errNotAPod = errors.New("the object cannot be decoded as a Pod")

func decodePod(object []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(object, pod); err != nil || string(bytes.TrimSpace(object)) == "null" {
		return nil, errNotAPod
	}
	return pod, nil
}

// mirrorPod reports whether a pod is the API server's copy of a static pod. Every user can make one, and no kubelet
// runs it: a kubelet removes those of which it has no static pod.
func mirrorPod(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// review has the backends review a pod that restrictions admit.
func (h *Handler) review(ctx context.Context, q *question, a answer, ephemeral bool, pod, old *corev1.Pod) answer {
	if h.options.Reviewer == nil {
		return a
	}
	about := reviewedPod(q.Namespace, pod, ephemeral)
	if old != nil && reflect.DeepEqual(reviewedPod(q.Namespace, old, ephemeral), about) {
		return a
	}
	if len(about.Images) == 0 && len(about.Volumes) == 0 {
		return a
	}
	q.Object.Raw, q.OldObject.Raw = nil, nil // a review can take long, and they are large
	q.done()
	findings := h.options.Reviewer.Review(ctx, about)
	a.audit = auditAnnotations(findings)
	return a.with(findings)
}

func (h *Handler) judgeTemplates(ctx context.Context, q *question) answer {
	if q.update && q.template.same(q.OldObject.Raw, q.Object.Raw) {
		return answer{outcome: Unchanged, decision: admission.Decision{Answer: admission.Admit}}
	}
	templates, err := q.template.find(q.Object.Raw)
	if err != nil {
		return answer{outcome: Invalid, text: text(err)}
	}
	var before []rawTemplate
	if q.update {
		before, _ = q.template.find(q.OldObject.Raw)
	}
	var n size
	all := answer{outcome: Allowed, decision: admission.Decision{Answer: admission.Admit}}
	if q.update {
		all.outcome = Unchanged
	}
	images := SignedImages{Namespace: q.Namespace, Template: true}
	for _, t := range templates {
		if slices.ContainsFunc(before, func(b rawTemplate) bool { return bytes.Equal(b.Data, t.Data) }) {
			continue
		}
		pod, err := t.decode(q.template.custom)
		if err != nil {
			return answer{outcome: Invalid, text: text(err)}
		}
		old := q.template.before(before, t)
		a := h.restrictions(ctx, comparison{q, admission.StageTemplate, false, pod, old}, &n)
		if a.outcome == Invalid || a.outcome == Denied {
			a.at = place(templates, t)
			return a
		}
		if a.outcome == Allowed {
			all.outcome = Allowed
		}
		all.decision.Findings = append(all.decision.Findings, a.decision.Findings...)
		all.decision.PolicyHash, all.decision.Exemption = a.decision.PolicyHash, a.decision.Exemption
		images.Images = append(images.Images, h.newImages(q, false, pod, old).Images...)
	}
	return h.signatures(ctx, q, all, images)
}

// before returns the template that was in the same place before an update; nil if there was none, or if it cannot be
// decoded.
func (p templatePath) before(all []rawTemplate, t rawTemplate) *corev1.Pod {
	i := slices.IndexFunc(all, func(b rawTemplate) bool { return b.At == t.At })
	if i < 0 {
		return nil
	}
	pod, _ := all[i].decode(p.custom)
	return pod
}

// text returns an error without the name of the package.
func text(err error) string { return strings.TrimPrefix(err.Error(), "podfile: ") }

// place returns a prefix that says which one of several templates a message is about.
func place(all []rawTemplate, t rawTemplate) string {
	if len(all) == 1 {
		return ""
	}
	return t.At + ": "
}
