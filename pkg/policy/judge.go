package policy

// A Verdict is the answer to "may this pod use this image?".
type Verdict uint8

// The verdicts.
const (
	Reverify Verdict = iota // the pod has to prove access first: callers hide the image or deny the call
	Allow
)

// String returns "Reverify" or "Allow".
func (v Verdict) String() string {
	if v == Allow {
		return "Allow"
	}
	return "Reverify"
}

// A Reason is the rule that led to a verdict. The set is fixed, so that it can be a label.
type Reason string

// The reasons, in the order of the rules.
const (
	Absent           Reason = "absent"            // the runtime does not have the image; the caller's rule
	ExemptStaticPod  Reason = "exempt_static_pod" // Allow
	ExemptNamespace  Reason = "exempt_namespace"  // Allow
	Fenced           Reason = "fenced"            // Reverify, whatever the policy: a file excludes the pod
	RecordUnreadable Reason = "record_unreadable" // Reverify, whatever the policy
	NeverVerify      Reason = "never_verify"      // Allow
	ImageIDName      Reason = "image_id_name"     // Reverify: an image ID is not a name
	Allowlisted      Reason = "allowlisted"       // Allow
	Preloaded        Reason = "preloaded"         // Allow
	Open             Reason = "open"              // Allow
	Granted          Reason = "granted"           // Allow
	Proved           Reason = "proved"            // Allow
	ProvedInGrace    Reason = "proved_in_grace"   // Allow: the proof has expired, but the registry cannot be asked
	Shared           Reason = "shared"            // Allow: a file shares the access that others have proved
	Lent             Reason = "lent"              // Allow: the same, and pulls get a credential
	ProofExpired     Reason = "proof_expired"     // Reverify: the proof has to be renewed
	NodeCredentials  Reason = "node_credentials"  // Reverify: open by credentials of the node, which are for other pods
	NotProved        Reason = "not_proved"        // Reverify: there is a record, without the pod's credentials
	Pulling          Reason = "pulling"           // Reverify: there is only a pull intent
	Untracked        Reason = "untracked"         // Reverify: there is no record, intent or mark
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		Absent, ExemptStaticPod, ExemptNamespace, Fenced, RecordUnreadable, NeverVerify, ImageIDName, Allowlisted,
		Preloaded, Open, Granted, Proved, ProvedInGrace, Shared, Lent, ProofExpired, NodeCredentials, NotProved, Pulling,
		Untracked,
	}
}

// An Exemption says whether and why a pod may use every image.
type Exemption uint8

// The exemptions.
const (
	NotExempt Exemption = iota
	StaticPod
	ExemptedNamespace
)

// Evidence contains the facts about one pod, one image ID and one repository. The zero value describes an untracked
// image.
type Evidence struct {
	Exempt     Exemption
	Unreadable bool   // the record, or the mark, cannot be read
	ByID       bool   // the name is an image ID or a prefix of one
	Repository string // normalised; "" is never on the allowlist
	Preloaded  bool   // the pair is marked preloaded
	Tracked    bool   // the pair has a record
	Pulling    bool   // the repository has a pull intent
	Open       bool   // the record is open to the pod
	Reserved   bool   // the record is open, and not to the pod: credentials of the node opened it, which are for others
	Granted    bool   // the pod holds a grant for the pair
	Proved     bool   // one of the pod's credentials is in the record and still valid
	InGrace    bool   // one of them was, has expired, and counts during its grace because the registry cannot be asked
	Expired    bool   // one of them was, and it has expired
	Fenced     bool   // a file excludes the pod from the image
	Shared     bool   // a file lets the pod use what others have proved, and a proof of anybody is valid
	Lent       bool   // the same, by a file that lends a credential
}

// A Decision is a verdict and the rule that led to it. The zero value denies.
type Decision struct {
	Verdict Verdict
	Reason  Reason
}

// Judge applies the rules in order; the first that matches decides (KEP-2535 has the rules of the policies,
// docs/architecture.md the order). The caller must check that the image is present.
func (p Policy) Judge(e Evidence) Decision {
	allow := func(r Reason) Decision { return Decision{Verdict: Allow, Reason: r} }
	reverify := func(r Reason) Decision { return Decision{Verdict: Reverify, Reason: r} }
	switch {
	case e.Exempt == StaticPod:
		return allow(ExemptStaticPod)
	case e.Exempt == ExemptedNamespace:
		return allow(ExemptNamespace)
	case e.Fenced:
		return reverify(Fenced)
	case e.Unreadable:
		return reverify(RecordUnreadable)
	case p.Mode() == ModeNeverVerify:
		return allow(NeverVerify)
	case e.ByID:
		return reverify(ImageIDName)
	case p.Mode() == ModeNeverVerifyAllowlistedImages && p.Allowlisted(e.Repository):
		return allow(Allowlisted)
	case p.Mode() == ModeNeverVerifyPreloadedImages && e.Preloaded:
		return allow(Preloaded)
	case e.Open:
		return allow(Open)
	case e.Granted:
		return allow(Granted)
	case e.Proved:
		return allow(Proved)
	case e.InGrace:
		return allow(ProvedInGrace)
	case e.Shared:
		return allow(Shared)
	case e.Lent:
		return allow(Lent)
	case e.Expired:
		return reverify(ProofExpired)
	case e.Reserved:
		return reverify(NodeCredentials)
	case e.Tracked, e.Preloaded:
		return reverify(NotProved)
	case e.Pulling:
		return reverify(Pulling)
	default:
		return reverify(Untracked)
	}
}
