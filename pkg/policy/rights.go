package policy

// FileRights are what files of an operator say about a use of an image. The zero value says nothing.
type FileRights struct {
	Enforced, Audited NamedRights // Audited has no effect and is reported
}

// NamedRights are the names of the files that say something, "" for none.
type NamedRights struct {
	Fence string // it excludes the pod
	Share string // the pod may use the image while a proof of anybody is valid
	Lend  string // the same, and its pulls get a credential
}

// The rights by which pods use images.
const (
	ByProof     = "proof"     // a credential of the pod proved access
	ByOpen      = "open"      // the image is open to every pod
	ByPreload   = "preloaded" // the image is preloaded
	ByPolicy    = "policy"    // the policy, the allowlist or an exemption requires no proof
	ByImageFile = "access"    // a file of an operator
)

// Rights returns all rights.
func Rights() []string { return []string{ByProof, ByOpen, ByPreload, ByPolicy, ByImageFile} }

// Right returns the right of an Allow for the reason, "" for other reasons.
func (r Reason) Right() string {
	switch r {
	case Proved, ProvedInGrace, Granted:
		return ByProof
	case Open:
		return ByOpen
	case Preloaded:
		return ByPreload
	case NeverVerify, Allowlisted, ExemptStaticPod, ExemptNamespace:
		return ByPolicy
	case Shared, Lent:
		return ByImageFile
	default:
		return ""
	}
}
