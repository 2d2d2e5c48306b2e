package policyfiles

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// A Kind is a kind of policy files.
type Kind struct {
	// Name identifies the kind. It is the value of kind in the files, unless they have a Key.
	Name string
	// APIVersions are the values of apiVersion in the files.
	APIVersions []string
	// Key is set for files without a kind. It is a field that only the files of this kind have.
	Key string
	// Read reads all files of the kind. It is not called if there is none. The error joins all errors; each begins with
	// the name of its file. Read must accept no file with another apiVersion or kind, or without the key.
	Read func([]File) (Policies, error)
}

// Policies are the policies of one kind. They are immutable.
type Policies interface {
	// Len returns the number of policies.
	Len() int
}

func kindOf(data []byte, kinds []Kind) (*Kind, error) {
	h, ok := scanHeader(data)
	if !ok {
		if err := yaml.Unmarshal(data, &h); err != nil {
			return nil, err
		}
	}
	if h.Kind == "" {
		return kindByKey(data, kinds)
	}
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Key == "" && k.Name == h.Kind })
	if i < 0 {
		return nil, unknownKind(h.Kind, kinds)
	}
	if !slices.Contains(kinds[i].APIVersions, h.APIVersion) {
		return nil, field.NotSupported(field.NewPath("apiVersion"), h.APIVersion, kinds[i].APIVersions)
	}
	return &kinds[i], nil
}

func kindByKey(data []byte, kinds []Kind) (*Kind, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	var keys []string
	for i, k := range kinds {
		if k.Key == "" {
			continue
		}
		if _, ok := fields[k.Key]; ok {
			return &kinds[i], nil
		}
		keys = append(keys, k.Key)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if near := strictyaml.Nearest(name, keys); near != "" {
			return nil, fmt.Errorf("%s: unknown field; did you mean %s?", name, near)
		}
	}
	return nil, unknownKind("", kinds)
}

func unknownKind(kind string, kinds []Kind) error {
	var names []string
	var keys strings.Builder
	for _, k := range kinds {
		if k.Key == "" {
			names = append(names, k.Name)
		} else {
			keys.WriteString(", or the field " + k.Key + " instead of kind")
		}
	}
	if near := strictyaml.Nearest(kind, names); near != "" {
		return fmt.Errorf("kind: Unsupported value: %q: did you mean %s?", kind, near)
	}
	return fmt.Errorf("%w%s", field.NotSupported(field.NewPath("kind"), kind, names), &keys)
}

type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// usual is a line of a header as it is usually written.
var usual = regexp.MustCompile(`^(apiVersion|kind):[ \t]+["']?([A-Za-z0-9./-]+)["']?[ \t]*(#.*)?\r?\n?$`)

// scanHeader finds the header in a document that is written as usual; ok is false in all others. Decoding YAML takes as
// long as all other steps of reading a policy together, so it is not done twice. An error here cannot admit a pod,
// because Kind.Read checks the header.
func scanHeader(data []byte) (h header, ok bool) {
	for line := range bytes.Lines(data) {
		if line[0] != 'a' && line[0] != 'k' {
			continue
		}
		m := usual.FindSubmatch(line)
		switch {
		case m == nil:
			continue
		case string(m[1]) == "kind":
			h.Kind = string(m[2])
		default:
			h.APIVersion = string(m[2])
		}
		if h.Kind != "" && h.APIVersion != "" {
			return h, true
		}
	}
	return header{}, false
}

// Kinds returns the kinds of policy files.
func Kinds() []Kind {
	return []Kind{
		{
			Name: restriction.Kind, APIVersions: []string{restriction.APIVersion, restriction.ProposedAPIVersion},
			Read: func(list []File) (Policies, error) { return restriction.Load(list) },
		},
		{Name: BackendKind, Key: backendKey, Read: func(list []File) (Policies, error) { return LoadBackends(list) }},
		{
			Name: KyvernoKind, APIVersions: []string{KyvernoVersion},
			Read: func(list []File) (Policies, error) { return LoadKyverno(list, time.Now()) },
		},
		{
			Name: CIPKind, APIVersions: cipVersions(),
			Read: func(list []File) (Policies, error) { return LoadCIP(list, time.Now()) },
		},
	}
}

// Requirements returns the rules of a folder about signatures; a set without rules if it has none.
func Requirements(s *Set) *requirement.Set {
	return requirement.NewSet(TrustedRootID(s), signaturePolicies(s)...)
}

// SignatureNotes returns the notes about the policy files of Requirements.
func SignatureNotes(s *Set) (notes []string) {
	for _, p := range signaturePolicies(s) {
		if p != nil {
			notes = append(notes, p.Notes...)
		}
	}
	return notes
}

// Webhook returns what the policies of a folder require of the webhook.
func Webhook(s *Set) requirement.Webhook {
	if p := Of[*requirement.Policies](s, KyvernoKind); p != nil { // the other dialect does not have the fields
		return p.Webhook
	}
	return requirement.Webhook{}
}

// SignatureKinds returns the kinds of policies about signatures.
func SignatureKinds() []string { return []string{KyvernoKind, CIPKind} }

// NeedSignatures reports whether a rule requires signatures, which pullgate-policyd verifies, and whether one relies on
// the trusted root.
func NeedSignatures(s *requirement.Set) (needed, byTrustedRoot bool) {
	for _, r := range s.Rules() {
		if r.NeedsSignature() {
			needed = true
			byTrustedRoot = byTrustedRoot || r.Requirement.UsesTrustedRoot()
		}
	}
	return needed, byTrustedRoot
}

func signaturePolicies(s *Set) []*requirement.Policies {
	return []*requirement.Policies{Of[*requirement.Policies](s, KyvernoKind), Of[*requirement.Policies](s, CIPKind)}
}

// A Version identifies policy files and a trusted root: the hash of the set, and TrustedRootID.
type Version struct{ Hash, TrustedRoot string }

// VersionOf returns the version of a set, the zero value for nil.
func VersionOf(s *Set) Version {
	if s == nil {
		return Version{}
	}
	return Version{s.Hash, TrustedRootID(s)}
}

// TrustedRootID identifies the trusted root of a set: the SHA-256 of the file in hexadecimal digits, "" if there is
// none.
func TrustedRootID(s *Set) string {
	if s == nil || s.TrustedRoot == nil {
		return ""
	}
	sum := sha256.Sum256(s.TrustedRoot)
	return hex.EncodeToString(sum[:])
}

// Restrictions returns the PodRestrictions of a folder; nil, which admits every pod, if it has none.
func Restrictions(s *Set) *restriction.Set {
	return Of[*restriction.Set](s, restriction.Kind)
}

// Unjudged returns what the PodRestrictions of a folder restrict and a source of views never carries. The labels of
// namespaces are not in it if the set has them from a file.
func Unjudged(s *Set, from restriction.Source) []restriction.PolicyField {
	return slices.DeleteFunc(Restrictions(s).Unjudged(from), func(f restriction.PolicyField) bool {
		return s != nil && s.NamespaceLabels != nil && f.Path == "binding.namespaceSelector"
	})
}
