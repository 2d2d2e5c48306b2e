package imageref

import "strings"

// A Ref is an image name as it is written, with its normal form, so that no name is parsed twice. It is comparable. The
// zero value is no name.
type Ref struct {
	written string
	name    Name
}

// New returns the Ref of a name. A name that does not parse has a Ref as well, with the zero [Name].
func New(s string) Ref {
	n, _ := Parse(s)
	return Ref{written: s, name: n}
}

// String returns the name as it is written.
func (r Ref) String() string { return r.written }

// Empty reports whether there is no name.
func (r Ref) Empty() bool { return r.written == "" }

// Name returns the normalised name, the zero value if the name does not parse.
func (r Ref) Name() Name { return r.name }

// Parsed reports whether the name parses.
func (r Ref) Parsed() bool { return r.name != Name{} }

// Repository returns the repository of the name, "" if the name does not parse.
func (r Ref) Repository() string { return r.name.repository }

// MayBeImageID reports whether runtimes may take the name for an image ID or a prefix of one, with or without
// "sha256:".
func (r Ref) MayBeImageID() bool {
	return r.name.IsImageID() || r.written != "" && strings.Trim(r.written, "0123456789abcdef") == ""
}

// IsShort reports whether the name is written without a registry. It means docker.io to Parse and to containerd; other
// runtimes may be configured to look elsewhere. A name that may be an image ID is not short.
func (r Ref) IsShort() bool {
	const domain = "docker.io/"
	return strings.HasPrefix(r.name.repository, domain) && !r.MayBeImageID() &&
		!strings.HasPrefix(r.written, domain) && !strings.HasPrefix(r.written, "index."+domain)
}
