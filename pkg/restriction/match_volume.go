package restriction

import "github.com/pullgate/pullgate/pkg/podview"

// A volumeRule is a compiled VolumeRestriction.
type volumeRule struct {
	leaf
	collection

	volumeType, hostPathType *stringRule
	hostPath                 *pathRule
	readOnly                 *boolRule
	propagation              *stringRule
}

// check compares a volume, and one mount of it unless mount is nil.
func (r *volumeRule) check(j *judgement, v *podview.Volume, mount *podview.Mount) bool {
	ok := !r.requireEmpty || j.violated(&r.leaf, "not empty")
	ok = r.volumeType.check(j, v.Type) && ok
	ok = r.hostPath.check(j, v.HostPath) && ok
	ok = r.hostPathType.check(j, v.HostPathType) && ok
	if mount == nil {
		return ok
	}
	ok = r.readOnly.check(j, mount.ReadOnly) && ok
	return r.propagation.check(j, mount.Propagation) && ok
}

// checkVolumes compares the volumes of a pod, mounted or not, and their number.
func (r *podRule) checkVolumes(j *judgement, v podview.Value[[]podview.Volume]) bool {
	if len(r.volumes) == 0 {
		return true
	}
	volumes, known := v.Effective()
	known = known || v.State() == podview.StateAbsent
	if !known && j.From == Admission { // at the node, a volume that no container mounts does no harm
		return j.unknown(&r.volumes[0].leaf)
	}
	ok := true
	for i := range r.volumes {
		switch rule := &r.volumes[i]; {
		case !rule.forbidEmpty:
		case known:
			ok = rule.collection.check(j, &rule.leaf, len(volumes)) && ok
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
		ok = r.checkVolume(j, &volumes[i], nil) && ok
	}
	return ok
}

// checkVolume compares a volume, and one mount of it unless mount is nil, with the entries of the policy.
func (r *podRule) checkVolume(j *judgement, v *podview.Volume, mount *podview.Mount) bool {
	if j.report == nil && len(r.volumes) == 1 { // by far the most frequent case
		return r.volumes[0].check(j, v, mount)
	}
	return anyOf(j, len(r.volumes), func(i int) bool { return r.volumes[i].check(j, v, mount) })
}

// checkMounts compares the mounts of a container.
func (r *podRule) checkMounts(j *judgement, c *podview.Container, mounts []*podview.Mount) bool {
	if len(r.volumes) == 0 {
		return true
	}
	if _, known := c.Mounts.Effective(); !known && c.Mounts.State() != podview.StateAbsent {
		return j.unknown(&r.volumes[0].leaf)
	}
	ok := true
	for _, m := range mounts {
		if !ok && j.decided() {
			break
		}
		j.mount = m.Path
		ok = r.checkVolume(j, &m.Volume, m) && ok
	}
	j.mount = ""
	return ok
}
