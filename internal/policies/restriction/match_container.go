package restriction

import (
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// checkContainer compares one container and its mounts.
func (r *podRule) checkContainer(j *judgement, s *subject) bool {
	j.subject = s
	ok := j.once(r.containersPart, func() bool { return r.checkLists(j, s.container) })
	ok = j.once(r.volumesPart, func() bool { return r.checkMounts(j, s.container, s.mounts) }) && ok
	j.subject = nil
	return ok
}

// checkLists compares a container with the list of its kind, or with both if the kind is not known.
func (r *podRule) checkLists(j *judgement, c *admission.Container) bool {
	kind, known := c.Kind.Effective()
	// to match one list can be enough
	if !known && (j.AssumeUnknown || j.Scope == ImagesOnly) && j.From != Node && j.report == nil {
		return anyContainer(j, r.containers, c) || anyContainer(j, r.initContainers, c)
	}
	ok := true
	if !known || kind != admission.KindInit {
		ok = anyContainer(j, r.containers, c)
	}
	if known && kind == admission.KindInit || !known && !r.sameLists() { // once is enough for an unknown kind
		ok = anyContainer(j, r.initContainers, c) && ok
	}
	return ok
}

// sameLists reports whether initContainers default to containers.
func (r *podRule) sameLists() bool {
	return len(r.initContainers) > 0 && len(r.containers) > 0 && &r.initContainers[0] == &r.containers[0]
}

func anyContainer(j *judgement, rules []containerRule, c *admission.Container) bool {
	return len(rules) == 0 || anyOf(j, len(rules), func(i int) bool { return rules[i].check(j, c) })
}

// A containerRule is a compiled ContainerRestriction.
type containerRule struct {
	image           []imageRule
	imageUnknown    leaf
	imagePullPolicy *stringRule

	securityPart int // the number of all that follows, as podRule.podPart

	privileged, runAsNonRoot, readOnlyRoot, allowEscalation *boolRule
	runAsUser, runAsGroup                                   *numberRule

	capabilities *leaf
	add, drop    *listRule

	seLinux                                             *leaf
	seLinuxUser, seLinuxRole, seLinuxType, seLinuxLevel *stringRule
}

func (r *containerRule) check(j *judgement, c *admission.Container) bool {
	ok := r.checkImage(j)
	ok = r.imagePullPolicy.check(j, c.ImagePullPolicy) && ok
	return j.once(r.securityPart, func() bool { return r.checkSecurity(j, c) }) && ok
}

func (r *containerRule) checkSecurity(j *judgement, c *admission.Container) bool {
	ok := r.privileged.check(j, c.Privileged)
	ok = r.allowEscalation.check(j, c.AllowPrivilegeEscalation) && ok
	ok = r.runAsNonRoot.check(j, c.RunAsNonRoot) && ok
	ok = r.runAsUser.check(j, c.RunAsUser) && ok
	ok = r.runAsGroup.check(j, c.RunAsGroup) && ok
	ok = r.readOnlyRoot.check(j, c.ReadOnlyRootFilesystem) && ok
	ok = r.checkCapabilities(j, c) && ok
	return r.checkSELinux(j, c.SELinux) && ok
}

func (r *containerRule) checkCapabilities(j *judgement, c *admission.Container) bool {
	ok := true
	if r.capabilities != nil {
		add, drop := stateOf(c.CapabilitiesAdd), stateOf(c.CapabilitiesDrop)
		state := admission.StateAbsent
		switch {
		case add == admission.StateSet || drop == admission.StateSet:
			state = admission.StateSet
		case add == admission.StateUnknown || drop == admission.StateUnknown:
			state = admission.StateUnknown
		}
		ok = r.capabilities.checkNil(j, state)
	}
	ok = r.add.check(j, c.CapabilitiesAdd) && ok
	return r.drop.check(j, c.CapabilitiesDrop) && ok
}

// stateOf returns the state of a list, in which empty and nil are equal.
func stateOf(v admission.Value[[]string]) admission.State {
	list, ok := v.Effective()
	switch {
	case ok && len(list) > 0:
		return admission.StateSet
	case ok:
		return admission.StateAbsent
	default:
		return v.State()
	}
}

func (r *containerRule) checkSELinux(j *judgement, v admission.Value[admission.SELinux]) bool {
	if r.seLinux == nil {
		return true
	}
	options, known := v.Effective()
	known = known || v.State() == admission.StateAbsent
	ok := r.seLinux.checkNil(j, v.State())
	ok = r.seLinuxUser.check(j, option(options.User, known)) && ok
	ok = r.seLinuxRole.check(j, option(options.Role, known)) && ok
	ok = r.seLinuxType.check(j, option(options.Type, known)) && ok
	return r.seLinuxLevel.check(j, option(options.Level, known)) && ok
}

// option returns the value of an SELinux option, where "" is nil.
func option(s string, known bool) admission.Value[string] {
	switch {
	case !known:
		return admission.Value[string]{}
	case s == "":
		return admission.Absent[string]()
	default:
		return admission.Set(s)
	}
}

// An imageRule is a compiled ImageRestriction.
type imageRule struct{ registry, image, tag *stringRule }

func (r *containerRule) checkImage(j *judgement) bool {
	if len(r.image) == 0 {
		return true
	}
	name := j.subject.image
	if !name.known {
		return j.unknown(&r.imageUnknown)
	}
	return anyOf(j, len(r.image), func(i int) bool {
		rule := &r.image[i]
		ok := rule.registry.check(j, name.registry)
		ok = rule.image.check(j, name.name) && ok
		return rule.tag.check(j, name.tag) && ok
	})
}

// An imageName is the name of a container's image in parts.
type imageName struct {
	registry, name, tag admission.Value[string]
	known               bool
}

// imageOf parses an image name. A name that a runtime may take for an image ID names no repository, so it is unknown.
func imageOf(v admission.Value[string]) imageName {
	s, ok := v.Effective()
	if !ok {
		return imageName{}
	}
	name, err := imageref.Parse(s)
	if err != nil || name.IsImageID() {
		return imageName{}
	}
	repository := name.Repository()
	suffix := name.String()[len(repository)+1:] // without the colon or the @
	registry, path, _ := strings.Cut(repository, "/")
	return imageName{registry: admission.Set(registryOf(registry)), name: admission.Set(path), tag: admission.Set(suffix), known: true}
}

// registryOf returns one form of the names of a registry, docker.io for Docker Hub.
func registryOf(host string) string {
	host = imageref.CanonicalRegistry(host)
	if hub := imageref.DockerHub(); slices.Contains(hub, host) {
		return hub[0]
	}
	return host
}
