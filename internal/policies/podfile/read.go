package podfile

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// A Pod is a Pod of a file, or the pod template of a workload.
type Pod struct {
	// Kind is Pod, or the kind of the workload.
	Kind string
	// Namespace is default if the file has none. Name is the prefix of the name if the file has only generateName.
	Namespace, Name string

	api *corev1.Pod
}

// A Workload is a resource whose objects have a pod template. Path is the names of the fields that lead to it,
// separated by dots.
type Workload struct{ Group, Resource, Path string }

// Read reads the Pods and pod templates of a file: one or more documents in YAML or JSON, each a Pod, one of the
// workloads, or a List of these. It returns an error for a document of another kind, for an unknown field in a Pod or
// pod template, and for a file without any.
func Read(data []byte, workloads ...Workload) ([]Pod, error) {
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
		found, err := readDocument(document, workloads, false)
		if err != nil {
			return nil, err
		}
		pods = append(pods, found...)
	}
	if len(pods) == 0 {
		return nil, errors.New("no Pod, and no pod template")
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
func readDocument(data []byte, workloads []Workload, item bool) ([]Pod, error) {
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
			found, err := readDocument(raw, workloads, true)
			if err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
			pods = append(pods, found...)
		}
		return pods, nil
	}
	if path := templateOf(workloads, d.APIVersion, d.Kind); path != nil {
		return readTemplates(data, d.Kind, path)
	}
	return nil, fmt.Errorf("apiVersion %q, kind %q: only Pods, the workloads of Kubernetes with a pod template, and Lists of them are read", d.APIVersion, d.Kind)
}

// templateOf returns where the objects of a kind have their pod template; nil if they have none.
func templateOf(workloads []Workload, apiVersion, kind string) []string {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group = ""
	}
	for _, t := range workloads {
		if t.Group == group && t.Resource == strings.ToLower(kind)+"s" {
			return strings.Split(t.Path, ".")
		}
	}
	return nil
}

// readTemplates returns the pod templates of a workload as Pods with its name.
func readTemplates(data []byte, kind string, path []string) ([]Pod, error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var workload metav1.PartialObjectMetadata
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &workload); err != nil {
		return nil, err
	}
	found, err := Templates(text, [][]string{path})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: Required value", strings.Join(path, "."))
	}
	var pods []Pod
	for _, t := range found {
		var template corev1.PodTemplateSpec
		if err := decode(t.Data, &template); err != nil {
			return nil, fmt.Errorf("%s: %w", t.At, err)
		}
		pod := corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Namespace, pod.Name, pod.GenerateName = workload.Namespace, workload.Name, workload.GenerateName
		p, err := podOf(pod, kind)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.At, err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// decode decodes JSON as the API server does, which distinguishes upper and lower case, and refuses unknown fields.
func decode(text []byte, into any) error {
	unknown, err := kjson.UnmarshalStrict(text, into, kjson.DisallowUnknownFields)
	return errors.Join(append(unknown, err)...)
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
	if err := decode(text, &p); err != nil {
		return Pod{}, err
	}
	return podOf(p, "Pod")
}

func podOf(p corev1.Pod, kind string) (Pod, error) {
	name := cmp.Or(p.Name, p.GenerateName)
	switch {
	case name == "":
		return Pod{}, errors.New("metadata.name: Required value")
	case len(p.Spec.Containers) == 0:
		return Pod{}, fmt.Errorf("pod %s: spec.containers: Required value", name)
	}
	complete(&p)
	return Pod{Kind: kind, Namespace: p.Namespace, Name: name, api: &p}, nil
}

// An Image is an image that a pod uses. Container is "" if a volume uses it.
type Image struct{ Container, Name string }

// Images returns the images that the pod uses.
func (p Pod) Images() (images []Image) {
	for _, list := range [][]corev1.Container{p.api.Spec.InitContainers, p.api.Spec.Containers} {
		for i := range list {
			images = append(images, Image{list[i].Name, list[i].Image})
		}
	}
	for i := range p.api.Spec.EphemeralContainers {
		images = append(images, Image{p.api.Spec.EphemeralContainers[i].Name, p.api.Spec.EphemeralContainers[i].Image})
	}
	for i := range p.api.Spec.Volumes {
		if v := &p.api.Spec.Volumes[i]; v.Image != nil {
			images = append(images, Image{"", v.Image.Reference})
		}
	}
	return images
}
