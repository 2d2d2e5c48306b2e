package policyfiles

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

type kind struct {
	name string
	// versions are the values of apiVersion. A backend has no header, but the field backendKey.
	versions []string
	// read reads all files of the kind into a set, and accepts no file of another kind.
	read func(*Set, []File) error
}

func kinds() []kind {
	restrictions := func(s *Set, list []File) (err error) {
		s.restrictions, err = restriction.Load(list)
		return err
	}
	backends := func(s *Set, list []File) (err error) {
		s.backends, err = LoadBackends(list)
		return err
	}
	accesses := func(s *Set, list []File) (err error) {
		s.access, err = imageaccess.Load(list)
		return err
	}
	signatures := func(load func([]File, time.Time) (*requirement.Policies, error)) func(*Set, []File) error {
		return func(s *Set, list []File) error {
			p, err := load(list, time.Now())
			s.signatures = append(s.signatures, p)
			return err
		}
	}
	hooks := func(s *Set, list []File) error {
		all, notes, err := LoadHooks(list)
		s.hooks, s.notes = append(s.hooks, all...), append(s.notes, notes...)
		return cmp.Or(err, s.hooks.tooMany())
	}
	defaults := func(s *Set, list []File) error {
		all, notes, err := LoadDefaults(list)
		s.defaults, s.notes = all, append(s.notes, notes...)
		return err
	}
	return []kind{
		{restriction.Kind, []string{restriction.APIVersion, restriction.ProposedAPIVersion}, restrictions},
		{imageaccess.Kind, []string{imageaccess.APIVersion}, accesses},
		{BackendKind, nil, backends},
		{KyvernoKind, []string{KyvernoVersion}, signatures(LoadKyverno)},
		{CIPKind, cipVersions(), signatures(LoadCIP)},
		{IVPKind, ivpVersions(), signatures(LoadIVP)},
		{NamespacedIVPKind, ivpVersions(), signatures(LoadNamespacedIVP)},
		{HookKind, []string{HookVersion}, hooks},
		{InitialiserKind, []string{HookVersion}, hooks},
		{DefaultsKind, []string{restriction.APIVersion}, defaults},
	}
}

// Kinds returns the names of the kinds of policy files.
func Kinds() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

func kindOf(data []byte) (string, error) {
	var h struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(data, &h); err != nil {
		return "", err
	}
	if h.Kind == "" {
		var fields map[string]any
		if err := yaml.Unmarshal(data, &fields); err != nil {
			return "", err
		}
		if _, ok := fields[backendKey]; ok {
			return BackendKind, nil
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if near := strictyaml.Nearest(name, []string{backendKey}); near != "" {
				return "", fmt.Errorf("%s: unknown field; did you mean %s?", name, near)
			}
		}
	}
	var names []string
	for _, k := range kinds() {
		switch {
		case k.versions == nil:
		case k.name != h.Kind:
			names = append(names, k.name)
		case !slices.Contains(k.versions, h.APIVersion):
			return "", field.NotSupported(field.NewPath("apiVersion"), h.APIVersion, k.versions)
		default:
			return k.name, nil
		}
	}
	if h.Kind == "PolicyException" {
		return "", errors.New("kind: Unsupported value: \"PolicyException\": exceptions are not supported; write the " +
			"policies so that they do not match")
	}
	if near := strictyaml.Nearest(h.Kind, names); near != "" {
		return "", fmt.Errorf("kind: Unsupported value: %q: did you mean %s?", h.Kind, near)
	}
	return "", fmt.Errorf("%w, or the field %s instead of kind",
		field.NotSupported(field.NewPath("kind"), h.Kind, names), backendKey)
}

// Requirements returns the rules of a folder about signatures; a set without rules if it has none.
func Requirements(s *Set) *requirement.Set {
	return requirement.NewSet(TrustedRootID(s), signaturePolicies(s)...)
}

// CustomRequirements is Requirements for the rules about custom resources, which only a webhook judges.
func CustomRequirements(s *Set) *requirement.Set {
	return requirement.NewCustomSet(TrustedRootID(s), signaturePolicies(s)...)
}

// AllRules returns the rules of Requirements and of CustomRequirements.
func AllRules(s *Set) []requirement.Rule {
	return slices.Concat(Requirements(s).Rules(), CustomRequirements(s).Rules())
}

// Conditions returns what condition.Check checks of the files: AllRules, and the conditions of hooks.
func Conditions(s *Set) []requirement.Rule {
	all := AllRules(s)
	for _, h := range HooksOf(s) {
		if h.Conditions != nil {
			all = append(all, requirement.Rule{File: h.File, Selects: &requirement.Validation{Program: h.Conditions}})
		}
	}
	return all
}

// Notes returns the notes about the policy files of Requirements, HooksOf and DefaultsOf.
func Notes(s *Set) (notes []string) {
	for _, p := range signaturePolicies(s) {
		notes = append(notes, p.Notes...)
	}
	return append(notes, cmp.Or(s, &Set{}).notes...)
}

// Webhook returns what the policies of a folder require of the webhook.
func Webhook(s *Set) (w requirement.Webhook) {
	for _, p := range signaturePolicies(s) {
		w.Merge(p.Webhook)
	}
	return w
}

// SignatureKinds returns the kinds of policies about signatures.
func SignatureKinds() []string { return []string{KyvernoKind, CIPKind, IVPKind, NamespacedIVPKind} }

// NeedSignatures reports whether a rule requires signatures, and whether one relies on the trusted root.
func NeedSignatures(s *requirement.Set) (needed, byTrustedRoot bool) {
	for _, r := range s.Rules() {
		if r.NeedsSignature() {
			needed = true
			byTrustedRoot = byTrustedRoot || r.Requirement.UsesTrustedRoot()
		}
	}
	return needed, byTrustedRoot
}

// MutateDigests reports whether a rule adds digests to the images of pods.
func MutateDigests(s *requirement.Set) bool {
	return slices.ContainsFunc(s.Rules(), func(r requirement.Rule) bool { return r.MutateDigest })
}

func signaturePolicies(s *Set) []*requirement.Policies { return cmp.Or(s, &Set{}).signatures }

// A Version identifies policy files and a trusted root: the hash of the set, and TrustedRootID.
type Version struct{ Hash, TrustedRoot string }

// VersionOf returns the version of a set, the zero value for nil.
func VersionOf(s *Set) Version { return Version{cmp.Or(s, &Set{}).Hash, TrustedRootID(s)} }

// TrustedRootID returns the SHA-256 of the trusted root of a set in hexadecimal digits, "" if there is none.
func TrustedRootID(s *Set) string {
	if s == nil || s.TrustedRoot == nil {
		return ""
	}
	sum := sha256.Sum256(s.TrustedRoot)
	return hex.EncodeToString(sum[:])
}

// Restrictions returns the PodRestrictions of a folder; nil, which admits every pod, if it has none.
func Restrictions(s *Set) *restriction.Set { return cmp.Or(s, &Set{}).restrictions }

// BackendsOf returns the image review backends of a folder; nil if it has none.
func BackendsOf(s *Set) Backends { return cmp.Or(s, &Set{}).backends }

// HooksOf returns the hooks and initialisers of a folder; nil if it has none.
func HooksOf(s *Set) Hooks { return cmp.Or(s, &Set{}).hooks }

// DefaultsOf returns the PodDefaults of a folder; nil if it has none.
func DefaultsOf(s *Set) []PodDefaults { return cmp.Or(s, &Set{}).defaults }

// Initialises reports whether new pods are changed by PodDefaults or initialisers.
func Initialises(s *Set) bool {
	return len(DefaultsOf(s)) > 0 || slices.ContainsFunc(HooksOf(s), func(h Hook) bool { return h.Mutating })
}

// NeedNamespaces reports whether a policy selects namespaces by their labels in admission.
func NeedNamespaces(s *Set) bool {
	return slices.ContainsFunc(Restrictions(s).Unjudged(restriction.Node), func(f restriction.PolicyField) bool {
		return f.Path == "binding.namespaceSelector"
	}) || slices.ContainsFunc(HooksOf(s), func(h Hook) bool {
		return h.AtAdmission() && h.Namespaces.String() != ""
	}) || slices.ContainsFunc(DefaultsOf(s), func(d PodDefaults) bool { return d.Summary().Selector != "" })
}

// AccessOf returns the files of kind ImageAccess of a folder; nil if it has none.
func AccessOf(s *Set) *imageaccess.Set { return cmp.Or(s, &Set{}).access }

// Unjudged is Set.Unjudged of the PodRestrictions, without the labels of namespaces if the set has them.
func Unjudged(s *Set, from restriction.Source) []restriction.PolicyField {
	return slices.DeleteFunc(Restrictions(s).Unjudged(from), func(f restriction.PolicyField) bool {
		return s != nil && s.NamespaceLabels != nil && f.Path == "binding.namespaceSelector"
	})
}
