package restriction

import (
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

type podRule struct {
	values, volume, mount, containers, initContainers *check
	volumes                                           []*volumeRule // of volume and mount
}

func nameOf(p *admission.Pod) admission.Value[string] {
	if p.Name == "" { // a template, whose pods get generated names
		return admission.Value[string]{}
	}
	return admission.Set(p.Name)
}

// checkGroups: a source with both in one list does not say which group is which, so each must fit one of the ranges.
func checkGroups(j *judgement, supplemental, fs *valueRule[int64]) bool {
	p := j.pod
	groups, together := p.Groups.Effective()
	separate := p.SupplementalGroups.State() != admission.StateUnknown || p.FSGroup.State() != admission.StateUnknown
	switch {
	case separate || !together:
		ok := compareGroups(j, supplemental, p.SupplementalGroups)
		return fs.compare(j, p.FSGroup) && ok
	case len(groups) == 0:
		ok := compareGroups(j, supplemental, admission.Absent[[]int64]())
		return fs.compare(j, admission.Absent[int64]()) && ok
	case supplemental != nil && supplemental.requireNil && fs != nil && fs.requireNil:
		return j.violated(&supplemental.leaf, quote(j, groups[0]))
	}
	ok := true
	var restricting []*valueRule[int64]
	for _, rule := range [...]*valueRule[int64]{supplemental, fs} {
		if rule == nil {
			continue
		}
		ok = rule.checkNil(j, admission.StateUnknown) && ok
		if rule.allows != nil {
			restricting = append(restricting, rule)
		}
	}
	for _, g := range groups {
		if len(restricting) > 0 && !slices.ContainsFunc(restricting,
			func(rule *valueRule[int64]) bool { return rule.allows(g) }) {
			return j.violated(&restricting[0].leaf, quote(j, g))
		}
	}
	return ok
}

// allOf reports whether all checks match. Without a report it ends with the first that does not.
func allOf(j *judgement, checks []*check) bool {
	ok := true
	for _, one := range checks {
		if ok = one.matches(j) && ok; !ok && j.report == nil {
			break
		}
	}
	return ok
}

// anyOf reports whether one of the checks matches. Otherwise it reports the violations of the check with the fewest.
func anyOf(j *judgement, checks []*check) bool {
	report := j.report
	j.report = nil
	if matches := slices.ContainsFunc(checks, func(c *check) bool { return c.matches(j) }); matches || report == nil {
		j.report = report
		return matches
	}
	var fewest []Violation
	for i, one := range checks {
		var found []Violation
		j.report = &found
		one.matches(j)
		if i == 0 || len(found) < len(fewest) {
			fewest = found
		}
	}
	*report = append(*report, fewest...)
	j.report = report
	return false
}

func (r *podRule) checkContainer(j *judgement, s *subject) bool {
	j.subject, j.view = s, &s.view
	ok := r.checkLists(j, s.container)
	ok = r.checkMounts(j, s) && ok
	j.subject = nil
	return ok
}

// checkLists compares a container with the list of its kind, or with both if the kind is not known.
func (r *podRule) checkLists(j *judgement, c *admission.Container) bool {
	kind, known := c.Kind.Effective()
	// to match one list can be enough
	if !known && (j.AssumeUnknown || j.Stage == admission.StageImageReview) && j.From != Node && j.report == nil {
		return r.containers.matches(j) || r.initContainers.matches(j)
	}
	ok := true
	if !known || kind != admission.KindInit {
		ok = r.containers.matches(j)
	}
	// once is enough for an unknown kind
	if known && kind == admission.KindInit || !known && r.initContainers != r.containers {
		ok = r.initContainers.matches(j) && ok
	}
	return ok
}

// stateOf returns the state of a list, in which empty and nil are equal.
func stateOf(v admission.Value[[]string]) admission.State {
	switch list, ok := v.Effective(); {
	case ok && len(list) > 0:
		return admission.StateSet
	case ok:
		return admission.StateAbsent
	}
	return v.State()
}

func option(s string, known bool) admission.Value[string] {
	switch {
	case !known:
		return admission.Value[string]{}
	case s == "":
		return admission.Absent[string]()
	}
	return admission.Set(s)
}

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
	return imageName{
		registry: admission.Set(registryOf(registry)), name: admission.Set(path), tag: admission.Set(suffix), known: true,
	}
}

// registryOf returns one form of the names of a registry, docker.io for Docker Hub.
func registryOf(host string) string {
	host = imageref.CanonicalRegistry(host)
	if hub := imageref.DockerHub(); slices.Contains(hub, host) {
		return hub[0]
	}
	return host
}

type volumeRule struct {
	leaf
	CollectionRestriction
	volume, mount *check
}

func (r *podRule) checkVolumes(j *judgement, v admission.Value[[]admission.Volume]) bool {
	if len(r.volumes) == 0 {
		return true
	}
	volumes, known := v.Effective()
	known = known || v.State() == admission.StateAbsent
	if !known && j.From == Admission { // at the node, a volume that no container mounts does no harm
		return j.unknown(&r.volumes[0].leaf)
	}
	ok := true
	for i := range r.volumes {
		switch rule := r.volumes[i]; {
		case !rule.ForbidEmpty:
		case known:
			ok = rule.CollectionRestriction.check(j, &rule.leaf, len(volumes)) && ok
		case rule.field.at(j.From) != Exact:
			ok = j.unjudged(&rule.leaf) && ok
		default:
			ok = j.unknown(&rule.leaf) && ok
		}
	}
	for i := range volumes {
		if !ok && j.decided() {
			break
		}
		j.view = &j.volumes[i]
		ok = r.volume.matches(j) && ok
	}
	return ok
}

func (r *podRule) checkMounts(j *judgement, s *subject) bool {
	if len(r.volumes) == 0 {
		return true
	}
	mounts := &s.container.Mounts
	if _, known := mounts.Effective(); !known && mounts.State() != admission.StateAbsent {
		return j.unknown(&r.volumes[0].leaf)
	}
	ok := true
	for i := range s.mounts {
		if !ok && j.decided() {
			break
		}
		j.view = &s.mounts[i]
		ok = r.mount.matches(j) && ok
	}
	return ok
}
