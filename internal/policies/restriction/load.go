package restriction

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// A File is a policy file.
type File = strictyaml.File

// Load reads policy files into a Set: all of them or none; see [strictyaml.Load].
func Load(files []File) (*Set, error) {
	known, decoder := newInterned(), newDecoder()
	policies, err := strictyaml.Load(files, func(f File) (*policy, string, []error) {
		p, compiled, errs := parse(decoder, known, f.Data)
		return compiled, p.Metadata.Name, errs
	}, strictyaml.NameTaken)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(policies, func(a, b *policy) int { return cmp.Compare(a.name, b.name) })
	return &Set{policies, known.counts}, nil
}

func (s *Set) all() []*policy {
	if s == nil {
		return nil
	}
	return s.policies
}

// Len returns the number of policies.
func (s *Set) Len() int { return len(s.all()) }

// A Summary says what a policy is bound to and how it takes part in decisions.
type Summary struct {
	Name       string
	Mode       BindingMode
	Audit      bool // The policy only reports.
	Everywhere bool // in all namespaces; otherwise in Namespaces and in those that Selector selects
	Namespaces []string
	Selector   string
}

// Policies returns a summary of each policy, by name.
func (s *Set) Policies() []Summary {
	var all []Summary
	for _, p := range s.all() {
		sum := (&Bound{p.binding}).Summary()
		sum.Name, sum.Mode, sum.Audit = p.name, BindingModeDrop, p.audit
		if p.accept {
			sum.Mode = BindingModeAccept
		}
		all = append(all, sum)
	}
	return all
}

// A PolicyField is a field that a policy restricts, or a part of a restriction.
type PolicyField struct {
	Policy string `json:"policy"`
	Path   string `json:"path"`
}

// Unjudged returns what the policies restrict and a source never carries, ordered by policy and path.
func (s *Set) Unjudged(from Source) []PolicyField {
	var found []PolicyField
	for _, p := range s.all() {
		for _, l := range p.leaves {
			exactness := l.field.at(from)
			switch {
			case exactness == Never:
				found = append(found, PolicyField{p.name, l.path})
			case exactness != Exact && l.needsState:
				found = append(found, PolicyField{p.name, l.path + " (whether it is set)"})
			}
		}
	}
	slices.SortFunc(found, func(a, b PolicyField) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Path, b.Path))
	})
	return found
}

// Restricted returns the paths of the fields that at least one policy restricts, as Field.Path has them, in order.
func (s *Set) Restricted() []string {
	var paths []string
	for _, p := range s.all() {
		for _, l := range p.leaves {
			paths = append(paths, l.field.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func parse(d *strictyaml.Decoder, known *interned, data []byte) (p PodRestriction, compiled *policy, errs []error) {
	errs, err := d.Decode(data, &p)
	if err != nil {
		return p, nil, []error{err}
	}
	if p.APIVersion == ProposedAPIVersion {
		p.APIVersion = APIVersion
	}
	if p.Binding != nil && p.Binding.Mode == "Allow" {
		p.Binding.Mode = BindingModeAccept
	}
	compiled, invalid := compile(&p, known)
	for _, err := range invalid {
		errs = append(errs, err)
	}
	return p, compiled, errs
}

// newDecoder returns a decoder, also for the spellings of the proposal.
func newDecoder() *strictyaml.Decoder {
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[PointerRestriction](): rewriteAllowNil,
		reflect.TypeFor[stringMapRestriction](): func(m *strictyaml.Mapping) {
			m.Rename("requireKeys", "requiredKeys")
			m.Rename("valueRestrictions", "values")
		},
		reflect.TypeFor[podSpecRestriction](): func(m *strictyaml.Mapping) {
			if one, ok := m.Fields["volumes"].(map[any]any); ok {
				m.Fields["volumes"] = []any{one}
			}
		},
		reflect.TypeFor[volumeRestriction](): rewriteVolumeType,
	}}
}

// rewriteAllowNil reads allowNil, the opposite of forbidNil.
func rewriteAllowNil(m *strictyaml.Mapping) {
	const name = "allowNil"
	v, given := m.Fields[name]
	delete(m.Fields, name)
	allow, isBool := v.(bool)
	switch _, both := m.Fields["forbidNil"]; {
	case !given:
	case !isBool:
		m.Errorf(name, "Invalid value: %v: must be true or false", v)
	case both:
		m.Errorf(name, "the opposite of forbidNil; give one of them")
	default:
		m.Fields["forbidNil"] = !allow
	}
}

// rewriteVolumeType reads volumeType.values: the types of the proposal make a list of volumeType.
func rewriteVolumeType(m *strictyaml.Mapping) {
	inner, _ := m.Fields["volumeType"].(map[any]any)
	if values, ok := inner["values"]; ok && len(inner) == 1 {
		m.Fields["volumeType"] = values
	}
}

//go:embed presets/*.yaml
var presets embed.FS

// Presets returns the names of the policies that come with pullgate, in order.
func Presets() []string {
	names, _ := fs.Glob(presets, "presets/*.yaml") // the pattern is valid
	for i, name := range names {
		names[i] = strings.TrimSuffix(path.Base(name), ".yaml")
	}
	return names
}

// Preset returns the file of a policy that comes with pullgate, to start from.
func Preset(name string) ([]byte, error) {
	data, err := presets.ReadFile("presets/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("no preset %q; there are %s", name, strings.Join(Presets(), ", "))
	}
	return data, nil
}
