package files

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/strictyaml"
)

// A Kind is a kind of policy files.
type Kind struct {
	// Name and APIVersions are the values of kind and apiVersion in the files.
	Name        string
	APIVersions []string
	// Read reads all files of the kind. It is not called if there is none. The error joins all errors; each begins with the name of its
	// file. Read must accept no file with another apiVersion or kind.
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
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == h.Kind })
	if i < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, k.Name)
		}
		if near := strictyaml.Nearest(h.Kind, names); near != "" {
			return nil, fmt.Errorf("kind: Unsupported value: %q: did you mean %s?", h.Kind, near)
		}
		return nil, field.NotSupported(field.NewPath("kind"), h.Kind, names)
	}
	if !slices.Contains(kinds[i].APIVersions, h.APIVersion) {
		return nil, field.NotSupported(field.NewPath("apiVersion"), h.APIVersion, kinds[i].APIVersions)
	}
	return &kinds[i], nil
}

// A header selects the kind of a file.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// usual is a line of a header as it is usually written.
var usual = regexp.MustCompile(`^(apiVersion|kind):[ \t]+["']?([A-Za-z0-9./-]+)["']?[ \t]*(#.*)?\r?\n?$`)

// scanHeader finds the header in a document that is written as usual; ok is false in all others. Decoding YAML takes as long as all other
// steps of reading a policy together, so it is not done twice. An error here cannot admit a pod, because Kind.Read checks the header.
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

// splitErrors returns the errors that were joined to err.
func splitErrors(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
