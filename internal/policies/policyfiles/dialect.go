package policyfiles

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A dialectPolicy is what one file gave.
type dialectPolicy struct {
	checker
	Name    string
	Rules   []requirement.Rule
	Webhook requirement.Webhook
}

// loadDialect reads files with parse: all of them or none. The error joins all errors of all files; each begins with
// the name of the file.
func loadDialect(files []File, parse func(data []byte) dialectPolicy) (*requirement.Policies, error) {
	var (
		all    []dialectPolicy
		errs   []error
		notes  []string
		fileOf = map[string]string{}
	)
	for _, f := range files {
		p := parse(f.Data)
		if other, taken := fileOf[p.Name]; taken && p.Name != "" {
			p.Errs = append(p.Errs, fmt.Errorf("metadata.name: Duplicate value: %q: also in %s; each policy needs its own name", p.Name, other))
		}
		fileOf[p.Name] = f.Name
		for _, err := range strictyaml.WithLines(f.Data, p.Errs) {
			errs = append(errs, fmt.Errorf("%s: %w", f.Name, err))
		}
		for _, note := range strictyaml.WithLines(f.Data, p.Notes) {
			notes = append(notes, f.Name+": "+note.Error())
		}
		for i := range p.Rules {
			p.Rules[i].File, p.Rules[i].Policy = f.Name, p.Name
		}
		all = append(all, p)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	slices.SortFunc(all, func(a, b dialectPolicy) int { return cmp.Compare(a.Name, b.Name) })
	loaded := &requirement.Policies{Notes: notes, Count: len(all)}
	for _, p := range all {
		loaded.Rules = append(loaded.Rules, p.Rules...)
		if w := &loaded.Webhook; len(p.Rules) > 0 {
			if w.FailurePolicy != "Fail" && p.Webhook.FailurePolicy != "" {
				w.FailurePolicy = p.Webhook.FailurePolicy
			}
			w.TimeoutSeconds = max(w.TimeoutSeconds, p.Webhook.TimeoutSeconds)
		}
	}
	return loaded, nil
}

// A dialectDocument is a policy file as it is written. S is the type of its spec.
type dialectDocument[S any] struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   dialectMetadata `json:"metadata"`
	Spec       *S              `json:"spec"`
}

// decodeDialect decodes a file, and checks everything but the spec. Without a spec it reports noSpec.
func decodeDialect[S any](d *strictyaml.Decoder, data []byte, versions []string, kind, noSpec string) (dialectDocument[S], dialectPolicy) {
	var doc dialectDocument[S]
	errs, err := d.Decode(data, &doc)
	if err != nil {
		return doc, dialectPolicy{checker: checker{Errs: []error{err}}}
	}
	p := dialectPolicy{Name: doc.Metadata.Name, checker: checker{Errs: errs, Incomplete: len(errs) > 0}}
	p.header(doc.APIVersion, doc.Kind, versions, kind, doc.Metadata.Name)
	if doc.Spec == nil {
		p.Required(field.NewPath("spec"), noSpec)
	}
	return doc, p
}

// dialectMetadata is that of a policy. Fields that the API server sets are ignored.
type dialectMetadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// IgnoreServerFields removes the fields of an object that the API server sets, so that the output of kubectl get -o
// yaml is a policy file. It is a rewrite of the type of the document.
func ignoreServerFields(m *strictyaml.Mapping) {
	delete(m.Fields, "status")
	metadata, ok := m.Fields["metadata"].(map[any]any)
	if !ok {
		return
	}
	for _, name := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences", "finalizers"} {
		delete(metadata, name)
	}
}

// refuseFields returns a rewrite that reports fields of a mapping that exist in the dialect and are not supported, with
// what to do instead.
func refuseFields(instead map[string]string) func(*strictyaml.Mapping) {
	return func(m *strictyaml.Mapping) {
		for name, text := range instead {
			if _, ok := m.Fields[name]; ok {
				m.Errorf(name, "%s", text)
				delete(m.Fields, name)
			}
		}
	}
}

// A checker collects errors and notes of one policy.
type checker struct {
	Errs []error
	// Notes begin with the path of the field.
	Notes []error
	// Incomplete says that fields are missing because they have errors already. Missing fields are then not reported
	// again.
	Incomplete bool
}

// Invalid reports a value that is not allowed.
func (c *checker) Invalid(at *field.Path, value any, allowed string) {
	c.Errs = append(c.Errs, field.Invalid(at, value, allowed))
}

// Required reports a missing field.
func (c *checker) Required(at *field.Path, allowed string) {
	if !c.Incomplete {
		c.Errs = append(c.Errs, field.Required(at, allowed))
	}
}

// Note reports a field that is valid and has no effect.
func (c *checker) Note(at *field.Path, text string) {
	c.Notes = append(c.Notes, fmt.Errorf("%s: %s", at, text))
}

// header checks the header of a policy.
func (c *checker) header(apiVersion, kind string, versions []string, wantKind, name string) {
	if !slices.Contains(versions, apiVersion) {
		c.Errs = append(c.Errs, field.NotSupported(field.NewPath("apiVersion"), apiVersion, versions))
	}
	if kind != wantKind {
		c.Errs = append(c.Errs, field.NotSupported(field.NewPath("kind"), kind, []string{wantKind}))
	}
	for _, detail := range validation.IsDNS1123Subdomain(name) {
		c.Invalid(field.NewPath("metadata", "name"), name, detail)
	}
}

// An alternative is a field beside which others must be absent.
type alternative struct {
	Name  string
	Given bool
}

// Only returns the name of the alternative that is given; ok is false, and an error reported, unless exactly one is.
func (c *checker) Only(at *field.Path, allowed string, all []alternative) (name string, ok bool) {
	var given []string
	for _, a := range all {
		if a.Given {
			given = append(given, a.Name)
		}
	}
	switch len(given) {
	case 0:
		c.Required(at, allowed)
		return "", false
	case 1:
		return given[0], true
	default:
		c.Invalid(at, strings.Join(given, ", "), allowed)
		return "", false
	}
}

// OneOf returns the value of a field that has one of a few values, the first of them if it is absent or invalid. A
// field with a value of another type is empty, and has an error already.
func (c *checker) OneOf(at *field.Path, value *string, allowed ...string) string {
	if value == nil || *value == "" && c.Incomplete {
		return allowed[0]
	}
	if !slices.Contains(allowed, *value) {
		c.Errs = append(c.Errs, field.NotSupported(at, *value, allowed))
		return allowed[0]
	}
	return *value
}
