package podfile

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// A Pod is a Pod of a file.
type Pod struct {
	// Namespace is default if the file has none. Name is the prefix of the name if the file has only generateName.
	Namespace, Name string

	api *corev1.Pod
}

// Read reads the Pods of a file: one or more documents in YAML or JSON, each a Pod or a List of Pods. It returns an error for a document
// of another kind, for an unknown field, and for a file without a Pod.
func Read(data []byte) ([]Pod, error) {
	var pods []Pod
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		found, err := readDocument(document, false)
		if err != nil {
			return nil, err
		}
		pods = append(pods, found...)
	}
	if len(pods) == 0 {
		return nil, errors.New("no Pod")
	}
	return pods, nil
}

// A list is a document that contains others.
type list struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
}

// readDocument reads a document, or an item of a List. A List in a List is an error: each level would be parsed again.
func readDocument(data []byte, item bool) ([]Pod, error) {
	var d list
	if err := yaml.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	switch {
	case d.Kind == "" && d.APIVersion == "" && d.Items == nil && len(bytes.TrimSpace(withoutComments(data))) == 0:
		return nil, nil // nothing between two separators
	case d.APIVersion == "v1" && d.Kind == "Pod":
		p, err := readPod(data)
		return []Pod{p}, err
	case !item && d.APIVersion == "v1" && (d.Kind == "List" || d.Kind == "PodList"):
		var pods []Pod
		for i, raw := range d.Items {
			found, err := readDocument(raw, true)
			if err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
			pods = append(pods, found...)
		}
		return pods, nil
	default:
		return nil, fmt.Errorf("apiVersion %q, kind %q: only Pods of v1 are read, and Lists of them; make a Pod of a pod template", d.APIVersion, d.Kind)
	}
}

// withoutComments returns a document without separators and lines that are comments.
func withoutComments(data []byte) []byte {
	var rest []byte
	for line := range bytes.Lines(data) {
		if t := bytes.TrimSpace(line); !bytes.HasPrefix(t, []byte("#")) && !bytes.HasPrefix(t, []byte("---")) {
			rest = append(rest, line...)
		}
	}
	return rest
}

func readPod(data []byte) (Pod, error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return Pod{}, err
	}
	var p corev1.Pod
	// The decoder of the API server, which distinguishes upper and lower case.
	unknown, err := kjson.UnmarshalStrict(text, &p, kjson.DisallowUnknownFields)
	if err := errors.Join(append(unknown, err)...); err != nil {
		return Pod{}, err
	}
	name := cmp.Or(p.Name, p.GenerateName)
	switch {
	case name == "":
		return Pod{}, errors.New("metadata.name: Required value")
	case len(p.Spec.Containers) == 0:
		return Pod{}, fmt.Errorf("pod %s: spec.containers: Required value", name)
	}
	complete(&p)
	return Pod{Namespace: p.Namespace, Name: name, api: &p}, nil
}
