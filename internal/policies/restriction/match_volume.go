package restriction

import (
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A volumeRule is a compiled VolumeRestriction.
type volumeRule struct {
	leaf
	CollectionRestriction

	volumeType, hostPathType *stringRule
	types                    typeBits // that volumeType allows; see typeNumbers
	hostPath                 *stringRule
	readOnly                 *boolRule
	propagation              *stringRule
}

// typeBits is a set of types of volumes. It has one bit for each type that has a number.
type typeBits uint64

// typeNumbers numbers the types of volumes that policies allow. Comparing the type of each mount with the list of each
// policy is most of a judgement, so it is done with sets. A type without a number is compared with the lists.
type typeNumbers map[string]int

// allowed returns the types that a rule allows whatever else it says; types without a number are not among them.
func (n typeNumbers) allowed(r *stringRule) (set typeBits) {
	if r == nil || r.needsState || r.regex != nil {
		return 0
	}
	for _, name := range r.whitelist {
		if _, known := n[name]; !known && len(n) < 64 {
			n[name] = len(n)
		}
		if !slices.Contains(r.blacklist, name) {
			set |= n.bit(name)
		}
	}
	return set
}

// bit returns the set with one type; the empty set if the type has no number.
func (n typeNumbers) bit(name string) typeBits {
	if i, known := n[name]; known {
		return 1 << i
	}
	return 0
}

// check compares a volume, and one mount of it unless mount is nil. bit is that of its type.
func (r *volumeRule) check(j *judgement, v *admission.Volume, bit typeBits, mount *admission.Mount) bool {
	ok := !r.RequireEmpty || j.violated(&r.leaf, "not empty")
	ok = (r.types&bit != 0 || r.volumeType.check(j, v.Type)) && ok
	ok = r.hostPath.check(j, v.HostPath) && ok
	ok = r.hostPathType.check(j, v.HostPathType) && ok
	if mount == nil {
		return ok
	}
	ok = r.readOnly.check(j, mount.ReadOnly) && ok
	return r.propagation.check(j, mount.Propagation) && ok
}

// checkVolumes compares the volumes of a pod, mounted or not, and their number.
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
		switch rule := &r.volumes[i]; {
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
		ok = r.checkVolume(j, &volumes[i], 0, nil) && ok
	}
	return ok
}

// checkVolume compares a volume, and one mount of it unless mount is nil, with the entries of the policy.
func (r *podRule) checkVolume(j *judgement, v *admission.Volume, bit typeBits, mount *admission.Mount) bool {
	if j.report == nil && len(r.volumes) == 1 { // by far the most frequent case
		return r.volumes[0].check(j, v, bit, mount)
	}
	return anyOf(j, len(r.volumes), func(i int) bool { return r.volumes[i].check(j, v, bit, mount) })
}

// checkMounts compares the mounts of a container.
func (r *podRule) checkMounts(j *judgement, c *admission.Container, mounts []mount) bool {
	if len(r.volumes) == 0 {
		return true
	}
	if _, known := c.Mounts.Effective(); !known && c.Mounts.State() != admission.StateAbsent {
		return j.unknown(&r.volumes[0].leaf)
	}
	ok := true
	for _, m := range mounts {
		if !ok && j.decided() {
			break
		}
		j.mount = m.Path
		ok = r.checkVolume(j, &m.Volume, m.bit, m.Mount) && ok
	}
	j.mount = ""
	return ok
}
