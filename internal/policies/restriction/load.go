package restriction

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// A File is the content of a policy file. Its name is for errors.
type File struct {
	Name string
	Data []byte
}

// Load reads policy files into a Set: all of them or none. The error joins all errors of all files; each begins with
// the name of the file.
func Load(files []File) (*Set, error) {
	var (
		s      Set
		known  = newInterned()
		errs   []error
		fileOf = map[string]string{} // by the name of the policy
	)
	for i, r := range readAll(files, known) {
		name := files[i].Name
		if r.err != nil {
			errs = append(errs, inFile(name, r.err)...)
			continue
		}
		if other, taken := fileOf[r.compiled.name]; taken {
			err := fmt.Errorf("metadata.name: Duplicate value: %q: also in %s; each policy needs its own name",
				r.compiled.name, other)
			errs = append(errs, inFile(name, errors.Join(strictyaml.WithLines(files[i].Data, []error{err})...))...)
			continue
		}
		fileOf[r.compiled.name] = name
		s.policies = append(s.policies, r.compiled)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.checks = known.counts
	slices.SortFunc(s.policies, func(a, b *policy) int { return cmp.Compare(a.name, b.name) })
	return &s, nil
}

type reading struct {
	compiled *policy
	err      error
}

func readAll(files []File, known *interned) []reading {
	all := make([]reading, len(files))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		workers.Go(func() {
			decoder := newDecoder()
			for i := next.Add(1) - 1; i < int64(len(files)); i = next.Add(1) - 1 {
				_, all[i].compiled, all[i].err = parse(decoder, known, files[i].Data)
			}
		})
	}
	workers.Wait()
	return all
}

func inFile(name string, err error) (all []error) {
	for _, e := range safetext.Split(err) {
		all = append(all, fmt.Errorf("%s: %w", name, e))
	}
	return all
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
	Name string
	Mode BindingMode
	// Audit reports whether the policy only reports.
	Audit bool
	// Everywhere reports whether the policy is bound to all namespaces. Otherwise it is bound to Namespaces and to those
	// that Selector selects, in the notation of kubectl --selector.
	Everywhere bool
	Namespaces []string
	Selector   string
}

// Policies returns a summary of each policy, by name.
func (s *Set) Policies() []Summary {
	var all []Summary
	for _, p := range s.all() {
		b := &p.binding
		sum := Summary{
			Name: p.name, Mode: BindingModeDrop, Audit: p.audit, Everywhere: b.everywhere(),
			Namespaces: b.namespaces,
		}
		if p.accept {
			sum.Mode = BindingModeAccept
		}
		if b.selector != nil {
			sum.Selector = b.selector.String()
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

// Restricted returns the paths of the fields that at least one policy restricts, as Field.Path has them, in order. A
// source of views need not keep any others.
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

// Parse reads one policy from its YAML and checks it. The error joins all errors of the document; each names the path
// of the field, the value and what is allowed, and the line. A policy that Parse returns has its canonical form: YAML
// of it, parsed again, is the same policy.
func Parse(data []byte) (*PodRestriction, error) {
	p, _, err := parse(newDecoder(), newInterned(), data)
	return p, err
}

func parse(d *strictyaml.Decoder, known *interned, data []byte) (*PodRestriction, *policy, error) {
	var p PodRestriction
	errs, err := d.Decode(data, &p)
	if err != nil {
		return nil, nil, err
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
	if len(errs) > 0 {
		return nil, nil, errors.Join(strictyaml.WithLines(data, errs)...)
	}
	return &p, compiled, nil
}

// newDecoder returns a decoder for policies. The proposal of PodRestriction spells some fields in two ways, in the
// types and in the examples; both are read.
func newDecoder() *strictyaml.Decoder {
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[PointerRestriction](): rewriteAllowNil,
		reflect.TypeFor[StringMapRestriction](): func(m *strictyaml.Mapping) {
			m.Rename("requireKeys", "requiredKeys")
			m.Rename("valueRestrictions", "values")
		},
		reflect.TypeFor[PodSpecRestriction](): func(m *strictyaml.Mapping) {
			if one, ok := m.Fields["volumes"].(map[any]any); ok {
				m.Fields["volumes"] = []any{one}
			}
		},
		reflect.TypeFor[VolumeRestriction](): rewriteVolumeType,
	}}
}

// rewriteAllowNil reads allowNil, the opposite of forbidNil.
func rewriteAllowNil(m *strictyaml.Mapping) {
	const name = "allowNil"
	v, ok := m.Fields[name]
	if !ok {
		return
	}
	delete(m.Fields, name)
	allow, isBool := v.(bool)
	switch _, both := m.Fields["forbidNil"]; {
	case !isBool:
		m.Errorf(name, "Invalid value: %v: must be true or false", v)
	case both:
		m.Errorf(name, "the opposite of forbidNil; give one of them")
	default:
		m.Fields["forbidNil"] = !allow
	}
}

// rewriteVolumeType reads volumeType.values. The types of the proposal make a list of volumeType, of which a volume has
// one.
func rewriteVolumeType(m *strictyaml.Mapping) {
	inner, ok := m.Fields["volumeType"].(map[any]any)
	if !ok || len(inner) != 1 {
		return
	}
	if values, ok := inner["values"]; ok {
		m.Fields["volumeType"] = values
	}
}

//go:embed presets/*.yaml
var presets embed.FS

// Presets returns the names of the policies that come with pullgate, in order.
func Presets() []string {
	entries, err := presets.ReadDir("presets")
	if err != nil {
		panic("restriction: " + err.Error()) // it is compiled in
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
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
