package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// DigestsAnnotation is the annotation of pods that says which digests were added. Everybody can write it, so nothing
// reads it as evidence.
const DigestsAnnotation = "policy.pullgate.dev/image-digests"

// The keys of audit annotations that say which digests a request added. An API server can call a webhook twice, and
// does not replace the annotation of the first time.
const digestsKey, digestsAgainKey = "image-digests", "image-digests-reinvoked"

// maxNote bounds the value of the annotation. All annotations of an object have at most 256 KiB.
const maxNote = 128 << 10

// notes are a value of the annotation, by the keys of places.
type notes map[string]note

// A note says which digest was added to an image.
type note struct {
	Image  string `json:"image"` // as it was written
	Digest string `json:"digest"`
}

func (n note) pinned() string { return n.Image + "@" + n.Digest }

// readNotes returns no notes for a value that is not one of the annotation.
func readNotes(p *corev1.Pod) (all notes) {
	if p == nil || len(p.Annotations[DigestsAnnotation]) > maxNote ||
		json.Unmarshal([]byte(p.Annotations[DigestsAnnotation]), &all) != nil {
		return nil
	}
	return all
}

// A place is where a pod names an image.
type place struct {
	key, path string // as in notes, and as a JSON pointer
	image     string
	ephemeral bool
}

func placesOf(p *corev1.Pod) (all []place) {
	if p == nil {
		return nil
	}
	add := func(list, name string, i int, field, image string) {
		all = append(all, place{
			key: list + "/" + name, path: fmt.Sprintf("/spec/%s/%d/%s", list, i, field), image: image,
			ephemeral: list == "ephemeralContainers",
		})
	}
	for i := range p.Spec.Containers {
		add("containers", p.Spec.Containers[i].Name, i, "image", p.Spec.Containers[i].Image)
	}
	for i := range p.Spec.InitContainers {
		add("initContainers", p.Spec.InitContainers[i].Name, i, "image", p.Spec.InitContainers[i].Image)
	}
	for i := range p.Spec.EphemeralContainers {
		add("ephemeralContainers", p.Spec.EphemeralContainers[i].Name, i, "image", p.Spec.EphemeralContainers[i].Image)
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Image; v != nil {
			add("volumes", p.Spec.Volumes[i].Name, i, "image/reference", v.Reference)
		}
	}
	return all
}

func (h *Handler) mutate(ctx context.Context, b received, event *Event) (any, *refusal) {
	if h.options.Begin != nil {
		ctx = h.options.Begin(ctx)
	}
	return h.admit(b, event, func(q *question) answer { return h.change(ctx, q) })
}

// change completes a new pod, adds digests to the images of a pod, and then patches a new one. A pod template is not
// changed: its pods are, and programs that compare templates with files would see a difference.
func (h *Handler) change(ctx context.Context, q *question) answer {
	allowed := answer{outcome: NotJudged, decision: admission.Decision{Answer: admission.Admit}}
	if !q.pods || q.SubResource != "" && q.SubResource != "ephemeralcontainers" ||
		q.Operation != admissionv1.Create && !q.update {
		return allowed
	}
	pod, old, known := q.podOf()
	if pod == nil {
		return known
	}
	allowed, d, first := h.completed(ctx, q, pod, allowed)
	if allowed.denies() {
		return allowed
	}
	raw, pod := d.raw, d.pod
	if q.update || len(raw) > maxPatched {
		raw = nil
	}
	q.release()
	places, before := placesOf(pod), map[string]string{}
	for _, p := range placesOf(old) {
		before[p.key] = p.image
	}
	var open []int // of places
	var images []verify.Tagged
	for i, p := range places {
		// A container whose image an update does not change must not be restarted.
		if p.image == "" || q.ephemeral && !p.ephemeral || before[p.key] == p.image {
			continue
		}
		open, images = append(open, i), append(images, verify.Tagged{Image: p.image, Stored: stored(before[p.key], p.image)})
	}
	if len(images) > 0 && q.size.add(&pod.Spec) { // otherwise an update leaves what is there
		return invalidAnswer(tooManyParts)
	}
	var digests []string
	if h.options.Digests != nil && len(images) > 0 {
		var findings []admission.Finding
		var unresolved []string
		digests, findings, unresolved = h.options.Digests(ctx, q.Namespace, images)
		allowed.warnings = append(allowed.warnings, unresolved...)
		if len(findings) > 0 {
			return allowed.with(findings)
		}
	}
	added := notes{}
	var ops patch
	for i, digest := range digests {
		if p := &places[open[i]]; digest != "" {
			n := note{p.image, digest}
			added[p.key], p.image = n, n.pinned()
			ops.set("replace", p.path, p.image)
		}
	}
	now, stored := readNotes(pod), readNotes(old)
	all := noted(places, added, now, stored)
	if !ops.annotate(pod, all) && len(added) > 0 {
		return invalidAnswer("it names too many images for the annotation " + DigestsAnnotation)
	}
	if len(added) > 0 {
		allowed.digests = added.String()
		as := digestsKey
		for key, n := range all {
			if _, add := added[key]; !add && now[key] == n && stored[key] != n {
				as = digestsAgainKey
			}
		}
		allowed = allowed.noted(as, allowed.digests)
	}
	if h.options.Changes != nil && !q.update {
		if ops = h.patchPod(ctx, q, &allowed, places, raw, ops); allowed.denies() {
			return allowed
		}
	}
	allowed.outcome = Unchanged
	if ops = append(first, ops...); len(ops) > 0 {
		allowed.outcome, allowed.patch = Changed, ops.json()
	}
	return allowed
}

// stored returns the digest that a pod has for an image, if its name and tag are those of an image without a digest.
func stored(old, image string) string {
	name, digest, ok := strings.Cut(old, "@")
	if !ok || !imageref.New(old).Name().IsDigest() {
		return ""
	}
	if now := imageref.New(image); !now.Parsed() || now.Name().IsDigest() || imageref.New(name).Name() != now.Name() {
		return ""
	}
	return digest
}

// noted returns the value of the annotation: what was added, and of what it said before the notes that agree with the
// pod. A note by a user that agrees is kept: a second pass could not tell it from one of the first.
func noted(places []place, added notes, earlier ...notes) notes {
	all := notes{}
	for _, p := range places {
		for _, n := range append([]notes{added}, earlier...) {
			if one, ok := n[p.key]; ok && one.pinned() == p.image && !imageref.New(one.Image).Name().IsDigest() {
				all[p.key] = one
				break
			}
		}
	}
	return all
}

func (n notes) String() string {
	text, err := json.Marshal(n)
	if err != nil { // not of strings
		panic(err)
	}
	return string(text)
}

// A patch is one of RFC 6902.
type patch []requirement.PatchOperation

func (p *patch) set(op, path string, value any) {
	*p = append(*p, requirement.PatchOperation{Op: op, Path: path, Value: value})
}

// annotate sets the annotation, or removes it if there is nothing to note, or too much. Then it returns false.
func (p *patch) annotate(pod *corev1.Pod, all notes) bool {
	const annotations = "/metadata/annotations"
	path := annotations + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(DigestsAnnotation)
	now, exists := pod.Annotations[DigestsAnnotation]
	text := all.String()
	fits := len(text) <= maxNote
	switch none := len(all) == 0 || !fits; {
	case none && exists:
		p.set("remove", path, nil)
	case none || text == now:
	case len(pod.Annotations) == 0:
		p.set("add", annotations, map[string]any{DigestsAnnotation: text})
	default:
		p.set("add", path, text)
	}
	return fits
}

func (p *patch) json() []byte {
	text, err := json.Marshal(p)
	if err != nil { // not of strings
		panic(err)
	}
	return text
}
