package hidden

import "github.com/pullgate/pullgate/pkg/imageref"

// A Key is a name of one pod.
type Key struct{ Pod, Name string }

// KeyOf returns the key of an image name, in its normal form; of a name that does not parse, as it is written.
func KeyOf(pod string, name imageref.Ref) Key {
	if name.Parsed() {
		return Key{pod, name.Name().String()}
	}
	return Key{pod, name.String()}
}

// Refusals hold the pods that were denied at CreateContainer, so that their next pre-check is hidden and leads to a pull. They are keyed by UID, and by
// the name of the image, or its ID if the name is not reported.
type Refusals struct{ PerPod }

// refusalOf returns the key of a refusal.
func refusalOf(uid string, name imageref.Ref, imageID string) Key {
	if name.Empty() {
		return Key{uid, imageID}
	}
	return KeyOf(uid, name)
}

// Refuse notes that a pod was denied a container on an image; name may be empty.
func (r *Refusals) Refuse(uid string, name imageref.Ref, imageID string) {
	if uid != "" {
		r.Add(refusalOf(uid, name, imageID))
	}
}

// Refused reports, once, whether a pod was denied a container on the image since the last report.
func (r *Refusals) Refused(uid string, name imageref.Ref, imageID string) (yes bool) {
	named, byID := r.Remove(refusalOf(uid, name, imageID)), r.Remove(Key{uid, imageID})
	return named || byID
}

// WillRefuse reports what Refused would report, and has no effect.
func (r *Refusals) WillRefuse(uid string, name imageref.Ref, imageID string) bool {
	return r.Has(refusalOf(uid, name, imageID)) || r.Has(Key{uid, imageID})
}
