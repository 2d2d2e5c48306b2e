package policyclient

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// Limits of a request. They are below those of pullgate-policyd, because a tenant must not be able to cause a failure
// that admits.
const (
	maxImages  = 64
	maxRequest = 512 << 10 // bytes of all names and annotations
)

// A reviewQuestion is what backends are asked about a container. What is not known is "" or missing.
type reviewQuestion struct {
	namespace, pod string
	backends       []policyfiles.Backend // that review the namespace
	image          string
	mounted        []string // without image and duplicates; none if no backend reviews them
	annotations    map[string]string

	annotationsKnown, mountsKnown bool
}

func (v *Reviewer) question(s *admission.Subject) *reviewQuestion {
	q := &reviewQuestion{namespace: s.Pod.Namespace, pod: s.Pod.Name, mountsKnown: true}
	volumes := false
	for _, b := range v.backends {
		// A namespace that is not known can be any.
		if b.Namespaces == nil || q.namespace == "" || slices.Contains(b.Namespaces, q.namespace) {
			q.backends = append(q.backends, b)
			volumes = volumes || b.IncludeImageVolumes
		}
	}
	if len(q.backends) == 0 {
		return q
	}
	var state admission.State
	q.annotations, state = s.Pod.ReviewAnnotations.Get()
	q.annotationsKnown = state != admission.StateUnknown
	q.image, _ = s.Container.Image.Get()
	if volumes {
		q.addMounts(s.Container.Mounts)
	}
	return q
}

func (q *reviewQuestion) addMounts(mounts admission.Value[[]admission.Mount]) {
	var list []admission.Mount
	list, q.mountsKnown = mounts.Effective()
	for _, m := range list {
		name, state := m.Image.Get()
		switch {
		case state == admission.StateAbsent:
		case name == "":
			q.mountsKnown = false
		case name != q.image && !slices.Contains(q.mounted, name):
			q.mounted = append(q.mounted, name)
		}
	}
}

// incomplete reports whether something is not known that a backend would see.
func (q *reviewQuestion) incomplete() bool {
	return slices.ContainsFunc(q.backends, func(b policyfiles.Backend) bool { return len(q.unknown(&b)) > 0 })
}

// unknown returns what is not known and a backend would see.
func (q *reviewQuestion) unknown(b *policyfiles.Backend) (names []string) {
	for _, f := range []struct {
		name  string
		known bool
	}{
		{"its namespace", q.namespace != ""},
		{"the annotations of its pod", q.annotationsKnown},
		{"the name of its image", q.image != ""},
		{"the names of the images that it mounts", q.mountsKnown || !b.IncludeImageVolumes},
	} {
		if !f.known {
			names = append(names, f.name)
		}
	}
	return names
}

// favorable reports whether every backend could allow all images, by values that are not known. An annotation can make
// it allow them.
func (q *reviewQuestion) favorable() bool {
	return q.namespace == "" || !q.annotationsKnown || q.image == "" && len(q.mounted) == 0
}

func (q *reviewQuestion) same(p *reviewQuestion) bool {
	return q.namespace == p.namespace && q.image == p.image && slices.Equal(q.mounted, p.mounted) && maps.Equal(q.annotations, p.annotations)
}

func (q *reviewQuestion) request(hash string) ReviewRequest {
	r := ReviewRequest{PolicyHash: hash, Namespace: q.namespace, VolumeImages: q.mounted, Annotations: q.annotations, Backends: len(q.backends)}
	if q.image != "" {
		r.Images = []string{q.image}
	}
	return r
}

// images returns the images that a backend reviews. The first one is that of the container, if it is known.
func (q *reviewQuestion) images(b *policyfiles.Backend) (names []string) {
	if q.image != "" {
		names = append(names, q.image)
	}
	if b.IncludeImageVolumes {
		names = append(names, q.mounted...)
	}
	return names
}

func (q *reviewQuestion) tooLarge() bool {
	size := len(q.namespace) + len(q.image)
	for _, name := range q.mounted {
		size += len(name)
	}
	for k, v := range q.annotations {
		size += len(k) + len(v)
	}
	return len(q.mounted)+1 > maxImages || size > maxRequest
}

// refused denies a container about which pullgate-policyd cannot be asked.
func (q *reviewQuestion) refused() []admission.Finding {
	return q.each(func(b *policyfiles.Backend) admission.Finding {
		return admission.Finding{Answer: admission.Deny, Reason: admission.ReviewUnavailable, Message: fmt.Sprintf(
			"the image review backend %s was not asked: the container has more than %d images, or their names and the annotations for backends have more than %d KiB; denied",
			b.Name, maxImages, maxRequest>>10)}
	})
}

// notKnown denies a container of which something is not known.
func (q *reviewQuestion) notKnown() (all []admission.Finding) {
	for _, b := range q.backends {
		if names := q.unknown(&b); len(names) > 0 {
			all = append(all, admission.Finding{
				Answer: admission.Deny, Policy: b.Name, Reason: admission.FieldUnknown,
				Message: fmt.Sprintf("the image review backend %s was not asked, because this is not known of the container: %s", b.Name, strings.Join(names, ", ")),
			})
		}
	}
	return all
}

func (q *reviewQuestion) notAsked() []admission.Finding {
	return q.each(func(b *policyfiles.Backend) admission.Finding {
		return admission.Finding{Answer: admission.Deny, Reason: admission.NotAsked, Message: fmt.Sprintf("the image review backend %s was not asked", b.Name)}
	})
}

// each returns a finding for each backend.
func (q *reviewQuestion) each(about func(*policyfiles.Backend) admission.Finding) []admission.Finding {
	all := make([]admission.Finding, 0, len(q.backends))
	for _, b := range q.backends {
		f := about(&b)
		f.Policy = b.Name
		all = append(all, f)
	}
	return all
}
