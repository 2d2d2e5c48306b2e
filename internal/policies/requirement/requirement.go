package requirement

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Requirement is a tree of which signatures an image must have. One of Of, SignedBy and Static is set. The zero
// Requirement is met by no image. Requirements that readers return must not be modified.
type Requirement struct {
	// AtLeast is how many requirements of Of must be met. A value below 1 is never met.
	AtLeast  int
	Of       []Requirement
	SignedBy *Signer // a leaf: the image has a signature of this signer
	Static   *Static // a leaf that no signature decides
}

// A Static is met by every image or by none.
type Static struct {
	Pass    bool
	Message string // for the user of a denied pod
}

// A Signer is who must have signed an image, and how. One signature of the image must meet all of its fields. One of
// Key, Keyless and Image is set.
type Signer struct {
	Key     *Key
	Keyless *Keyless
	// Statement is what must have been signed about the image: nil for its signature, else an attestation.
	Statement *Statement
	// Image has conditions on what was collected about the image, which are judged after all other leaves are met. Such
	// a leaf has no other field.
	Image *Validation
	// Repository is where signatures count beside the repository of the image itself, normalised; "" if only there.
	Repository string
	// Log and Timestamp require an entry in a transparency log, and a timestamp. A keyless signature needs one of them.
	Log       *Log
	Timestamp *Timestamp
}

// A Key is a public key.
type Key struct {
	Public []byte // in PKIX form, in DER
	Hash   string // the hash algorithm of the signatures, such as sha256
}

// A Keyless is a certificate with an identity, by an authority that a root certificate leads to.
type Keyless struct {
	Issuer, Subject Text
	Extensions      map[string]string // values that the certificate has, by object identifier; see ExtensionID
	Roots           [][]byte          // certificates in DER; nil means those of the trusted root
	// IgnoreSCT accepts a certificate without a proof that it was published in a certificate log.
	IgnoreSCT bool
	CTLogKeys [][]byte // of certificate logs, in PKIX form in DER; nil means those of the trusted root
}

// A Log is a transparency log.
type Log struct {
	URL  string   // selects a log of the trusted root; "" means any of them. It is not asked
	Keys [][]byte // of the log, in PKIX form in DER; nil means those of the trusted root
}

// A Timestamp is an RFC 3161 timestamp.
type Timestamp struct {
	Chain [][]byte // certificates of the authority in DER; nil means the authorities of the trusted root
}

// Met reports whether a requirement is met, given which of its leaves are met.
func (r *Requirement) Met(signed func(*Signer) bool) bool {
	switch {
	case r.SignedBy != nil:
		return signed(r.SignedBy)
	case r.Static != nil:
		return r.Static.Pass
	case r.AtLeast < 1:
		return false
	}
	met := 0
	for i := range r.Of {
		if r.Of[i].Met(signed) {
			met++
		}
	}
	return met >= r.AtLeast
}

// NeedsSignature reports whether a signature decides: neither every image meets the requirement, nor none.
func (r *Requirement) NeedsSignature() bool {
	return r.Met(func(*Signer) bool { return true }) && !r.Met(func(*Signer) bool { return false })
}

// Signers returns the leaves that a signature decides, in the order of the policy. Those behind a leaf with a program
// are its evidence.
func (r *Requirement) Signers() []*Signer {
	var all []*Signer
	if s := r.SignedBy; s != nil {
		all = append(all, s)
		if s.Image != nil && s.Image.Program != nil {
			for i := range s.Image.Program.Evidence {
				all = append(all, s.Image.Program.Evidence[i].By.Signers()...)
			}
		}
	}
	for i := range r.Of {
		all = append(all, r.Of[i].Signers()...)
	}
	return all
}

// UsesTrustedRoot reports whether a leaf has no root certificates or keys of logs of its own.
func (r *Requirement) UsesTrustedRoot() bool {
	for _, s := range r.Signers() {
		k := s.Keyless
		if k != nil && (k.Roots == nil || !k.IgnoreSCT && k.CTLogKeys == nil) ||
			s.Log != nil && s.Log.Keys == nil || s.Timestamp != nil && s.Timestamp.Chain == nil {
			return true
		}
	}
	return false
}

// AtLeast returns the requirement that n of a list are met. A list of one is that one.
func AtLeast(n int, of ...Requirement) Requirement {
	if len(of) == 1 && n == 1 {
		return of[0]
	}
	return Requirement{AtLeast: n, Of: of}
}

// String describes the requirement in words.
func (r *Requirement) String() string {
	switch {
	case r.SignedBy != nil:
		return r.SignedBy.String()
	case r.Static != nil && r.Static.Pass:
		return "nothing"
	case r.Static != nil, r.AtLeast < 1:
		return "no image is allowed"
	}
	of := make([]string, len(r.Of))
	for i := range r.Of {
		of[i] = r.Of[i].String()
	}
	return fmt.Sprintf("at least %d of (%s)", r.AtLeast, strings.Join(of, "; "))
}

// Overlaps reports whether one signer can be both: the same key, or identities that one certificate is known to have.
// Of two regular expressions this is known only if they are equal.
func (s *Signer) Overlaps(o *Signer) bool {
	if s.Key != nil && o.Key != nil {
		return bytes.Equal(s.Key.Public, o.Key.Public)
	}
	a, b := s.Keyless, o.Keyless
	if a == nil || b == nil || blobs(a.Roots) != blobs(b.Roots) {
		return false
	}
	for id, value := range a.Extensions {
		if other, ok := b.Extensions[id]; ok && other != value {
			return false
		}
	}
	return a.Issuer.overlaps(b.Issuer) && a.Subject.overlaps(b.Subject)
}

// String names the signer: the SHA-256 of a key, or issuer and subject, and the type of the statement.
func (s *Signer) String() string {
	if s.Statement != nil {
		signer := *s
		signer.Statement = nil
		return fmt.Sprintf("an attestation of type %s by %s", s.Statement.PredicateType, &signer)
	}
	switch {
	case s.Image != nil && s.Image.Program != nil:
		return "an image that meets the validations"
	case s.Image != nil:
		return "an image that no condition denies"
	case s.Key != nil:
		return "key sha256:" + fingerprint(s.Key.Public)
	case s.Keyless != nil:
		return fmt.Sprintf("identity %s of issuer %s", s.Keyless.Subject, s.Keyless.Issuer)
	default:
		return "no signer"
	}
}

func fingerprint(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// The reasons of results. RegistryUnavailable is a failure, which says nothing about the image; the others are denials.
const (
	SignatureMissing    = "SIGNATURE_MISSING"
	AttestationMissing  = "ATTESTATION_MISSING" // no statement of the required type by a required signer
	ConditionNotMet     = "CONDITION_NOT_MET"   // the statements of the type meet not all conditions
	SignatureInvalid    = "SIGNATURE_INVALID"
	IdentityMismatch    = "IDENTITY_MISMATCH"
	ContentMismatch     = "CONTENT_MISMATCH"
	RegistryDenied      = "REGISTRY_DENIED"      // the registry does not give the signatures to the credential
	RegistryUnavailable = "REGISTRY_UNAVAILABLE" // the registry was not reached
	LimitExceeded       = "LIMIT_EXCEEDED"       // the signatures are too many, too large, or too late
)

// Reasons returns all reasons.
func Reasons() []string {
	return []string{
		SignatureMissing, AttestationMissing, ConditionNotMet, SignatureInvalid, IdentityMismatch, ContentMismatch,
		RegistryDenied, RegistryUnavailable, LimitExceeded,
	}
}

// A Report says which requirements an image meets.
type Report struct {
	Results    []Result    // one for each requirement, in their order
	Signatures []Signature // those that were found, if they were asked for
}

// A Result is about one requirement.
type Result struct {
	Requirement string // its hash
	Met         bool
	// Reason and Message are why it is not met; "" if it is. The message is a sentence for the user of the pod.
	Reason, Message string
	Signers         []string      // that the requirement names and that have signed, also if they are too few
	Digest          string        // of the signed manifest or index that leads to the image; "" if there is none
	Attestations    []Attestation // those that count, also if they are too few
	// Until is when a condition of an attestation need no longer be met; the zero time if there is none. ReadsClock says
	// that this may be earlier, at a time that is not known.
	Until      time.Time
	ReadsClock bool
	// Conditions has a text for each condition on the image: whether it denies, and what was found. Only where signatures
	// are listed.
	Conditions []string
	// Values are those of a patch for an image that meets the requirement, by the texts of the patch. If they were asked
	// for and are nil, Reason and Message say why. No record and no answer to a node has them.
	Values map[string]any
}

// Unavailable reports whether the result is a failure, which says nothing about the image.
func (r Result) Unavailable() bool { return !r.Met && r.Reason == RegistryUnavailable }

// A Signature is one that was found, valid or not.
type Signature struct {
	Repository, FoundBy string // FoundBy is referrers, fallback-tag, sig-tag or bundles
	Digest, Subject     string // of the manifest or file that holds it, and of what it is attached to
	Signer              string // fingerprint of a key, or subject and issuer of a certificate; "" if it is not known
	Counts              bool   // for one of the requirements
	Reason              string // why it counts or does not
	PredicateType       string // of an attestation; "" if it is none, or cannot be read
	// Conditions has a text for each condition that an attestation was compared with: whether it is met, and by what.
	Conditions []string
}

// ExtensionNames returns the names of all certificate extensions that a rule can have.
func ExtensionNames() []string {
	return []string{
		"githubWorkflowTrigger", "githubWorkflowSha", "githubWorkflowName", "githubWorkflowRepository", "githubWorkflowRef",
	}
}

// ExtensionID returns the object identifier of a certificate extension by its name in policies.
func ExtensionID(name string) (id string, ok bool) {
	i := slices.Index(ExtensionNames(), name)
	return "1.3.6.1.4.1.57264.1." + strconv.Itoa(i+2), i >= 0
}

// ExtensionName returns the name in policies of a certificate extension, the identifier itself if it has none.
func ExtensionName(id string) string {
	for _, name := range ExtensionNames() {
		if known, _ := ExtensionID(name); known == id {
			return name
		}
	}
	return id
}
