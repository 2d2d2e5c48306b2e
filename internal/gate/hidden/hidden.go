package hidden

import "github.com/pullgate/pullgate/pkg/imageref"

// A Key is one pod, as identified by a pre-check, and one normalised image name.
type Key struct {
	seen string // config.seen
	name string
}

// KeyOf returns the key of a pre-check with seen as its config.seen and with this name.
func KeyOf(seen string, name imageref.Ref) Key { return Key{seen: seen, name: normal(name)} }

// normal returns the normal form of a name; for a name that does not parse, the name as written.
func normal(name imageref.Ref) string {
	if name.Parsed() {
		return name.Name().String()
	}
	return name.String()
}

// A Set holds the hidden pre-checks: a PullImage of the same pod for the same name may be a request to prove access to the image on the node. A
// pre-check stays in the set until the pod gets a grant for the name or a later pre-check is allowed. A Set also holds the pods that were denied
// at CreateContainer, so that their next pre-check is hidden and leads to a pull. Both are limited for each pod separately. The zero value is
// empty and ready to use; it may be used concurrently.
type Set struct {
	hidden   PerPod // by config.seen
	refusals PerPod // by UID; of names, or of image IDs if the name is not reported
}

// Add notes a hidden pre-check and reports whether it was not hidden before.
func (s *Set) Add(k Key) (added bool) { return s.hidden.Add(k.seen, k.name) }

// Has reports whether a pre-check is hidden.
func (s *Set) Has(k Key) bool { return s.hidden.Has(k.seen, k.name) }

// Clear removes a hidden pre-check.
func (s *Set) Clear(k Key) { s.hidden.Remove(k.seen, k.name) }

// refusalOf returns the key of a refusal.
func refusalOf(name imageref.Ref, imageID string) string {
	if name.Empty() {
		return imageID
	}
	return normal(name)
}

// Refuse notes that a pod was denied a container on an image; name may be empty.
func (s *Set) Refuse(uid string, name imageref.Ref, imageID string) {
	if uid != "" {
		s.refusals.Add(uid, refusalOf(name, imageID))
	}
}

// Refused reports, once, whether a pod was denied a container on the image since the last report.
func (s *Set) Refused(uid string, name imageref.Ref, imageID string) (yes bool) {
	named, byID := s.refusals.Remove(uid, refusalOf(name, imageID)), s.refusals.Remove(uid, imageID)
	return named || byID
}

// WillRefuse reports what Refused would report, and has no effect.
func (s *Set) WillRefuse(uid string, name imageref.Ref, imageID string) bool {
	return s.refusals.Has(uid, refusalOf(name, imageID)) || s.refusals.Has(uid, imageID)
}

// EndPod removes the refusals of a pod.
func (s *Set) EndPod(uid string) { s.refusals.End(uid) }

// EndUnknown removes the hidden pre-checks of every config.seen that was known before and is not known any more.
func (s *Set) EndUnknown(known func(seen string) bool) { s.hidden.EndUnknown(known) }
