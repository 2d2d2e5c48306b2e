package policyfiles

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// DefaultsKind is the name of the kind of files that add to new pods what they lack.
const DefaultsKind = "PodDefaults"

// PodDefaults are what a file adds to the pods of some namespaces.
type PodDefaults struct {
	restriction.Bound
	podfile.Supplement

	Name string
}

type defaultsDocument struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   dialectMetadata `json:"metadata"`
	Binding    *struct {
		Namespaces        []string                   `json:"namespaces"`
		NamespaceSelector *restriction.LabelSelector `json:"namespaceSelector"`
	} `json:"binding"`
	Template map[string]any `json:"template"`
}

type defaultsFile struct {
	checker
	PodDefaults
}

// LoadDefaults reads files into PodDefaults, by name: all of them or none; see [strictyaml.Load]. Each note begins with
// a file.
func LoadDefaults(list []File) (defaults []PodDefaults, notes []string, err error) {
	all, err := strictyaml.Load(list, func(f File) (defaultsFile, string, []error) {
		d := parseDefaults(f.Data)
		d.Notes = strictyaml.WithLines(f.Data, d.Notes)
		return d, d.Name, d.Errs
	}, strictyaml.NameTaken)
	for i, f := range all {
		for _, note := range f.Notes {
			notes = append(notes, list[i].Name+": "+note.Error())
		}
		defaults = append(defaults, f.PodDefaults)
	}
	slices.SortFunc(defaults, func(a, b PodDefaults) int { return cmp.Compare(a.Name, b.Name) })
	return defaults, notes, err
}

func parseDefaults(data []byte) (out defaultsFile) {
	var doc defaultsDocument
	errs, err := (&strictyaml.Decoder{RefuseNull: true}).Decode(data, &doc)
	if err != nil {
		return defaultsFile{checker: checker{Errs: []error{err}}}
	}
	out.Name, out.checker = doc.Metadata.Name, checker{Errs: errs, Incomplete: len(errs) > 0}
	out.header(doc.APIVersion, doc.Kind, []string{restriction.APIVersion}, DefaultsKind, out.Name)
	for key := range doc.Metadata.Annotations {
		out.InvalidIf(strings.HasPrefix(key, ownAnnotation), field.NewPath("metadata", "annotations"), key,
			"no annotation with this prefix is known for "+DefaultsKind)
	}
	if b := doc.Binding; b != nil {
		at := field.NewPath("binding")
		out.InvalidIf((b.Namespaces == nil) == (b.NamespaceSelector == nil), at, "",
			"must have either namespaces or namespaceSelector; leave binding out for all namespaces")
		bound, invalid := restriction.CompileBinding(at,
			&restriction.Binding{Namespaces: b.Namespaces, NamespaceSelector: b.NamespaceSelector})
		for _, err := range invalid {
			out.Errs = append(out.Errs, err)
		}
		out.InvalidIf(b.NamespaceSelector != nil && len(invalid) == 0 && bound.Summary().Everywhere,
			at.Child("namespaceSelector"), "", "must not be empty; leave binding out for all namespaces")
		out.Bound = bound
	}
	added, notes, errs := podfile.NewSupplement(field.NewPath("template"), doc.Template)
	out.Supplement, out.Notes, out.Errs = added, notes, append(out.Errs, errs...)
	for _, list := range [][]error{out.Errs, out.Notes} { // they are of mappings
		slices.SortFunc(list, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	}
	return out
}
