package restriction

import (
	"errors"
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// Parse reads one policy from its YAML and checks it. The error joins all errors of the document; each names the path
// of the field, the value and what is allowed, and the line. A policy that Parse returns has its canonical form: YAML
// of it, parsed again, is the same policy.
func Parse(data []byte) (*PodRestriction, error) {
	p, _, err := parse(newDecoder(), data)
	return p, err
}

func parse(d *strictyaml.Decoder, data []byte) (*PodRestriction, *policy, error) {
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
	compiled, invalid := compile(&p)
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
