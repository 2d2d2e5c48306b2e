package records

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	// MaxProofs bounds the credentials of one record. The namespace with the most proofs makes room for another one: first
	// it loses a credential without a known Secret, then the least recently used one.
	MaxProofs = 100
	// MaxRotations bounds the rotations of a Secret without confirmation by a registry: the next one needs proof.
	MaxRotations = 64
	// MaxSecrets bounds the Secrets noted with one credential. The rotation of a Secret that is not noted needs proof.
	MaxSecrets = 100
	// MaxGone bounds the records of images that are gone. The store deletes the oldest ones.
	MaxGone = 4096
)

// A Pair is an image under one of its repositories. A proof is for a pair.
type Pair struct {
	ImageID    string `json:"imageID"`
	Repository string `json:"repository"`
}

// A SecretRef identifies the Secret that a credential was read from. One that has only a namespace means the
// credentials that the runtime itself holds for that namespace. One of [OfAccount] means a service account.
type SecretRef struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// OfNamespace reports whether s means the credentials that the runtime holds for a namespace.
func (s SecretRef) OfNamespace() bool { return s.Namespace != "" && s.UID == "" && s.Name == "" }

// accountPrefix is in no name of a Secret. A reference with it has no field that earlier versions do not read.
const accountPrefix = "serviceaccount/"

var (
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	nameForm      = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	uidForm       = regexp.MustCompile(`^[-._A-Za-z0-9]{1,128}$`)
)

// OfAccount returns the reference to a service account; ok is false if a part does not have the form that the API
// server requires.
func OfAccount(namespace, name, uid string) (s SecretRef, ok bool) {
	if !namespaceForm.MatchString(namespace) || !nameForm.MatchString(name) || !uidForm.MatchString(uid) {
		return SecretRef{}, false
	}
	return SecretRef{UID: uid, Namespace: namespace, Name: accountPrefix + name}, true
}

// Account returns the name of the service account that s means; ok is false if it means something else.
func (s SecretRef) Account() (name string, ok bool) { return strings.CutPrefix(s.Name, accountPrefix) }

// A Proof is one credential that pulled the image.
type Proof struct {
	Credential  credential.ID `json:"credential"`
	Secrets     []SecretRef   `json:"secrets,omitempty"`
	FirstProved time.Time     `json:"firstProved"`
	LastProved  time.Time     `json:"lastProved"`
	LastUsed    time.Time     `json:"lastUsed"`
	// Denied is when a registry last refused the credential for the pair's repository. It is zero if the credential was
	// proved since.
	Denied time.Time `json:"denied,omitzero"`
	// RotatedFrom lists the credentials that the Secret held before, oldest first, if no registry has confirmed this one
	// since the Secret changed. See [Proof.Counts].
	RotatedFrom []credential.ID `json:"rotatedFrom,omitempty"`
	Namespace   string          `json:"namespace,omitempty"` // of the pod that proved it; "" if it is not known
}

// Counts reports whether the proof counts for its credential from a Secret. A credential that no registry has confirmed
// counts only from its own Secrets, because another tenant may have made it up.
func (p *Proof) Counts(from SecretRef) bool {
	return len(p.RotatedFrom) == 0 || slices.Contains(p.Secrets, from)
}

func (p *Proof) namespace() string {
	if p.Namespace == "" && len(p.Secrets) > 0 {
		return p.Secrets[0].Namespace
	}
	return p.Namespace
}

func (p *Proof) note(ref SecretRef) {
	if len(p.Secrets) < MaxSecrets && !slices.Contains(p.Secrets, ref) {
		p.Secrets = append(p.Secrets, ref)
	}
}

// A Record lists the credentials that proved access to a pair.
type Record struct {
	Pair   Pair      `json:"pair"`
	Open   bool      `json:"open,omitempty"`
	Opened time.Time `json:"opened,omitzero"`
	// Anonymous and ByNode are when a pull without a credential, and one with a credential of the node, first opened the
	// record. Both are zero in an open record of a version that did not note it. On disk they are proofs, see stored.
	Anonymous time.Time `json:"-"`
	ByNode    time.Time `json:"-"`
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"lastUsed,omitzero"`
	Proofs    []Proof   `json:"proofs,omitempty"`
	Revoked   time.Time `json:"revoked,omitzero"` // when a proof was last revoked or lost
	// OlderGrants means that a pod may hold a grant by a proof that the record does not contain, such as an evicted one.
	OlderGrants bool `json:"olderGrants,omitempty"`
	// Unlisted means that no list of the runtime's images has contained the image since the record was made.
	Unlisted bool `json:"unlisted,omitempty"`
	// Gone is when the runtime's lists stopped containing the image although it was not removed through pullgate. Such a
	// record only prevents a mark if the image comes back.
	Gone time.Time `json:"gone,omitzero"`
}

func (r *Record) clone() Record {
	next := *r
	next.Proofs = slices.Clone(r.Proofs)
	for i := range next.Proofs {
		p := &next.Proofs[i]
		p.Secrets, p.RotatedFrom = slices.Clone(p.Secrets), slices.Clone(p.RotatedFrom)
	}
	return next
}

// ForEveryPod reports whether the record is open, and known to need no credential of the node.
func (r *Record) ForEveryPod() bool { return r.Open && !r.Anonymous.IsZero() }

func (r *Record) close() {
	r.Open, r.Opened, r.Anonymous, r.ByNode = false, time.Time{}, time.Time{}, time.Time{}
}

// The credential IDs of the proofs that a stored record has in place of Anonymous and ByNode. No credential has them.
const (
	storedAnonymous credential.ID = "anonymous"
	storedByNode    credential.ID = "node"
)

// stored returns the record in the form that is on disk. Older versions refuse fields that they do not know, and take
// these proofs for those of credentials that no pod presents.
func (r *Record) stored() Record {
	next := r.clone()
	for id, at := range map[credential.ID]time.Time{storedAnonymous: r.Anonymous, storedByNode: r.ByNode} {
		if !at.IsZero() {
			next.Proofs = append(next.Proofs, Proof{Credential: id, FirstProved: at, LastProved: at, LastUsed: at})
		}
	}
	slices.SortStableFunc(next.Proofs[len(r.Proofs):], func(a, b Proof) int {
		return strings.Compare(string(a.Credential), string(b.Credential))
	})
	return next
}

// loaded is the reverse of stored.
func (r *Record) loaded() Record {
	next := *r
	next.Proofs = slices.DeleteFunc(next.Proofs, func(p Proof) bool {
		switch p.Credential {
		case storedAnonymous:
			next.Anonymous = p.FirstProved
		case storedByNode:
			next.ByNode = p.FirstProved
		default:
			return false
		}
		return true
	})
	if !next.Open { // an older version has closed it
		next.close()
	}
	if len(next.Proofs) == 0 {
		next.Proofs = nil
	}
	return next
}

// An Intent states that a pull was sent to the runtime, or was about to be. Its ID and Repository identify it.
type Intent struct {
	ID         uint64    `json:"id"`
	Name       string    `json:"name"`
	Repository string    `json:"repository"`
	Begun      time.Time `json:"begun"`
	// Ended is when the pull ended without a known result; zero while it is in progress or if its process died. Such an
	// intent may represent several pulls, and has no Name if their names differ; see [MaxUnresolved].
	Ended time.Time `json:"ended,omitzero"`
}

// A Mark states that a pair is preloaded: it was present before any pod had to prove access to it.
type Mark struct {
	Pair   Pair      `json:"pair"`
	Set    time.Time `json:"set"`
	Origin string    `json:"origin"`
}

// Distrust states that an earlier store was lost, or that this one is a copy from an earlier time. Images on the node
// may then have been pulled with credentials that are not in the store.
type Distrust struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	Copy   bool      `json:"copy,omitempty"` // by [Store.Backup]
}

// Facts contains what the store has about one pair, read in one snapshot. The zero value describes an untracked pair.
type Facts struct {
	Record       *Record   // nil if there is none
	Mark         *Mark     // nil if there is none
	LatestProof  time.Time // the latest LastProved in the record
	Intents      []Intent  // of the pair's repository, ordered by ID
	OtherRecords bool      // another repository has a record for the image ID that is not open to every pod
	OtherMarks   bool      // another repository has a mark for the image ID, and the store has been scanned
	// Arriving means that the pair has neither record nor mark, and may have come with a [Creation] that is in the store.
	Arriving bool
}

// ProveAccess reports whether the record holds any proof of access. A lost pull or a revocation leaves one without.
func (f *Facts) ProveAccess() bool {
	return f.Record != nil && (f.Record.Open || len(f.Record.Proofs) > 0)
}
