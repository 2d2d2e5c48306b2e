package records

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

// MaxProofs bounds the credentials of one record. The namespace with most of them makes room for another one: it loses first a
// credential without a known Secret, then the one that has not been used for the longest time.
const MaxProofs = 100

// MaxRotations bounds the rotations of a Secret without a confirmation by a registry. After that the new content
// needs proof.
const MaxRotations = 64

// MaxSecrets bounds the Secrets that are noted with one credential. If a Secret is not noted, its next rotation
// needs proof.
const MaxSecrets = 100

// A Pair is what access is proved for: an image under one of its repositories.
type Pair struct {
	ImageID    string `json:"imageID"`
	Repository string `json:"repository"`
}

// A SecretRef identifies the Secret that a credential was read from. One with a namespace alone means the
// credentials that the runtime itself holds for that namespace.
type SecretRef struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// OfNamespace reports whether it means the credentials that the runtime holds for a namespace.
func (s SecretRef) OfNamespace() bool { return s.Namespace != "" && s.UID == "" && s.Name == "" }

// A Proof is one credential that pulled the image.
type Proof struct {
	Credential  credential.ID `json:"credential"`
	Secrets     []SecretRef   `json:"secrets,omitempty"`
	FirstProved time.Time     `json:"firstProved"`
	LastProved  time.Time     `json:"lastProved"`
	LastUsed    time.Time     `json:"lastUsed"`
	// Denied is when a registry last refused the credential for the pair's repository; zero since it was
	// last proved.
	Denied time.Time `json:"denied,omitzero"`
	// RotatedFrom are the credentials that its Secret held before, oldest first, if no registry has confirmed this one since the Secret
	// changed. Such a proof counts for Secrets alone; see [Proof.Counts].
	RotatedFrom []credential.ID `json:"rotatedFrom,omitempty"`
	// Namespace is that of the pod that proved it; "" if it is not known.
	Namespace string `json:"namespace,omitempty"`
}

// Counts reports whether the proof counts for a request with its credential, which is from a Secret if that is known. A
// credential that no registry has confirmed counts only from its own Secrets: another tenant may have invented it.
func (p *Proof) Counts(from SecretRef) bool {
	return len(p.RotatedFrom) == 0 || slices.Contains(p.Secrets, from)
}

// namespace returns the namespace that the proof is of, "" if none is known.
func (p *Proof) namespace() string {
	if p.Namespace == "" && len(p.Secrets) > 0 {
		return p.Secrets[0].Namespace
	}
	return p.Namespace
}

// note adds a Secret that holds the credential.
func (p *Proof) note(ref SecretRef) {
	if len(p.Secrets) < MaxSecrets && !slices.Contains(p.Secrets, ref) {
		p.Secrets = append(p.Secrets, ref)
	}
}

// A Record says which credentials proved access to a pair. If it is not open and has no proofs, the image needs proof from every
// pod.
type Record struct {
	Pair     Pair      `json:"pair"`
	Open     bool      `json:"open,omitempty"`
	Opened   time.Time `json:"opened,omitzero"`
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"lastUsed,omitzero"`
	Proofs   []Proof   `json:"proofs,omitempty"`
	// Revoked is when a proof was last revoked or lost; a container that is older may depend on it.
	Revoked time.Time `json:"revoked,omitzero"`
	// Unlisted says that no list of the runtime's images has had the image since the record was made.
	Unlisted bool `json:"unlisted,omitempty"`
	// Gone is when lists of the runtime's images did not have the image any more, although it was not removed through
	// pullgate. Nothing is proved by such a record: it keeps the image from being marked if it comes back. At most
	// [MaxGone] are kept.
	Gone time.Time `json:"gone,omitzero"`
}

// MaxGone bounds the records of images that are gone; those that have been gone for the longest time are deleted.
const MaxGone = 4096

// An Intent says that a pull was sent to the runtime, or was about to be. Its ID and Repository identify it.
type Intent struct {
	ID         uint64    `json:"id"`
	Name       string    `json:"name"`
	Repository string    `json:"repository"`
	Begun      time.Time `json:"begun"`
	// Ended is when the pull ended without a known result; zero while it is in progress, or if the process that
	// made it died. Such an intent may stand for several pulls, and its Name is empty if their names differ; see
	// [MaxUnresolved].
	Ended time.Time `json:"ended,omitzero"`
}

// A Mark says that a pair is preloaded: it was present before any pod had to prove access to it.
type Mark struct {
	Pair   Pair      `json:"pair"`
	Set    time.Time `json:"set"`
	Origin string    `json:"origin"`
}

// Distrust says that an earlier store was lost, or that this one is a copy from an earlier time, so that images on the node
// may have been pulled with credentials that the store does not know.
type Distrust struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	// Copy says that the store is a copy that [Store.Backup] made.
	Copy bool `json:"copy,omitempty"`
}

// Facts is everything that the store knows about one pair, read in one snapshot. The zero value is
// that of an untracked pair.
type Facts struct {
	Record  *Record // nil if there is none
	Intents int     // of the pair's repository
	Marked  bool
	// Rivals says that another repository has a record for the image ID that is not open to every pod.
	Rivals bool
	// MarkedElsewhere says that another repository has a mark for the image ID, and that the store has been scanned.
	MarkedElsewhere bool
}

// Untracked reports whether nothing is known of the pair itself.
func (f Facts) Untracked() bool { return f.Record == nil && !f.Marked && f.Intents == 0 }

// MayBeMarked reports whether a scan may mark the pair: it is untracked, and no other repository of the image is known.
func (f Facts) MayBeMarked() bool { return f.Untracked() && !f.Rivals && !f.MarkedElsewhere }
