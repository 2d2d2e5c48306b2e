package requirement

// The reasons of results. RegistryUnavailable is a failure, which says nothing about the image; the others are denials.
const (
	SignatureMissing = "SIGNATURE_MISSING"
	SignatureInvalid = "SIGNATURE_INVALID"
	IdentityMismatch = "IDENTITY_MISMATCH"
	ContentMismatch  = "CONTENT_MISMATCH"
	// RegistryDenied is for an image whose registry does not give its signatures to the credential.
	RegistryDenied = "REGISTRY_DENIED"
	// RegistryUnavailable is for an image whose registry was not reached.
	RegistryUnavailable = "REGISTRY_UNAVAILABLE"
	// LimitExceeded is for an image whose signatures are too many, or too large, or were not received in time.
	LimitExceeded = "LIMIT_EXCEEDED"
)

// Reasons returns all reasons.
func Reasons() []string {
	return []string{SignatureMissing, SignatureInvalid, IdentityMismatch, ContentMismatch, RegistryDenied, RegistryUnavailable, LimitExceeded}
}

// A Report says which requirements an image meets.
type Report struct {
	// Results has one result for each requirement, in their order.
	Results []Result
	// Signatures are those that were found, if they were asked for.
	Signatures []Signature
}

// A Result is about one requirement.
type Result struct {
	// Requirement is the hash of the requirement.
	Requirement string
	// Met reports whether the image meets it. Reason and Message are why not; both are "" if it does. The message is a
	// sentence for the user of the pod.
	Met             bool
	Reason, Message string
	// Signers are those that the requirement names and that have signed, also if they are too few.
	Signers []string
	// Digest is the digest of the manifest or index that is signed and leads to the image; "" if there is none.
	Digest string
}

// Unavailable reports whether the result is a failure, which says nothing about the image.
func (r Result) Unavailable() bool { return !r.Met && r.Reason == RegistryUnavailable }

// A Signature is one that was found, valid or not.
type Signature struct {
	// Repository is where it was found, and FoundBy how: referrers, fallback-tag, sig-tag or bundles.
	Repository, FoundBy string
	// Digest is that of the manifest or file that holds it, and Subject that of what it is attached to.
	Digest, Subject string
	// Signer has signed: the fingerprint of a key, or subject and issuer of a certificate; "" if it is not known.
	Signer string
	// Counts reports whether it counts for one of the requirements, and Reason why or why not.
	Counts bool
	Reason string
}
