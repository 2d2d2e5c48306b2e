package policyfiles

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
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

// kindOf returns the kind of a file.
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

// kindByKey returns the kind of a file without a kind.
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

// unknownKind returns the error about a value of kind.
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

// A header selects the kind of a file.
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
