package requirement

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// hashVersion begins every hash. It changes if requirements with the same meaning get other hashes.
const hashVersion = "v1:"

// Hash identifies what decides about the requirement: keys, identities, root certificates, counts. Requirements that
// differ in any of this have different hashes; the order of a list, and messages, do not change it. trustedRoot
// identifies the trusted root, and changes the hash of a requirement that uses it.
func (r *Requirement) Hash(trustedRoot string) string {
	root := ""
	if r.UsesTrustedRoot() {
		root = trustedRoot
	}
	return hashVersion + fingerprint([]byte(call("requirement", call("trustedRoot", quote(root)), r.canonical())))
}

// canonical returns the text that is hashed. It is the same in all versions of Go and of pullgate.
func (r *Requirement) canonical() string {
	switch {
	case r.SignedBy != nil:
		return r.SignedBy.canonical()
	case r.Static != nil && r.Static.Pass:
		return call("pass")
	case r.Static != nil, r.AtLeast < 1:
		return call("fail")
	case len(r.Of) == 1 && r.AtLeast == 1:
		return r.Of[0].canonical()
	}
	of := make([]string, len(r.Of))
	for i := range r.Of {
		of[i] = r.Of[i].canonical()
	}
	slices.Sort(of)
	return call("atLeast", append([]string{strconv.Itoa(r.AtLeast)}, of...)...)
}

func (s *Signer) canonical() string {
	var parts []string
	if k := s.Key; k != nil {
		parts = append(parts, call("key", quote(k.Hash), fingerprint(k.Public)))
	}
	if k := s.Keyless; k != nil {
		parts = append(parts, k.canonical())
	}
	if s.Repository != "" {
		parts = append(parts, call("repository", quote(s.Repository)))
	}
	if l := s.Log; l != nil {
		parts = append(parts, call("log", quote(l.URL), blobs(l.Keys)))
	}
	if t := s.Timestamp; t != nil {
		parts = append(parts, call("timestamp", blobs(t.Chain)))
	}
	if s.Statement != nil {
		parts = append(parts, s.Statement.canonical())
	}
	if s.Image != nil {
		parts = append(parts, s.Image.canonical())
	}
	return call("signed", parts...)
}

func (k *Keyless) canonical() string {
	parts := []string{call("issuer", k.Issuer.canonical()), call("subject", k.Subject.canonical())}
	for _, id := range slices.Sorted(maps.Keys(k.Extensions)) {
		parts = append(parts, call("extension", quote(id), quote(k.Extensions[id])))
	}
	parts = append(parts, call("roots", blobs(k.Roots)))
	if k.IgnoreSCT {
		parts = append(parts, call("ignoreSCT"))
	} else {
		parts = append(parts, call("ctlog", blobs(k.CTLogKeys)))
	}
	return call("keyless", parts...)
}

func (t Text) canonical() string {
	names := map[textForm]string{noText: "none", exactText: "exact", globText: "glob", regexpText: "regexp"}
	return call(names[t.form], quote(t.pattern))
}

func blobs(list [][]byte) string {
	if list == nil {
		return call("trustedRoot")
	}
	sums := make([]string, len(list))
	for i, data := range list {
		sums[i] = fingerprint(data)
	}
	slices.Sort(sums)
	return call("of", slices.Compact(sums)...)
}

func call(name string, parts ...string) string { return name + "(" + strings.Join(parts, ",") + ")" }

// quote returns a text in quotes, in ASCII: which characters are printable differs between versions of Go.
func quote(s string) string { return strconv.QuoteToASCII(s) }
