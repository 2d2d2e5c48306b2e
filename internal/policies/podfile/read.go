package podfile

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Pod is a Pod of a file, or the pod template of a workload.
type Pod struct {
	// Kind is Pod, or the kind of the workload.
	Kind string
	// Namespace is default if the file has none. Name is the prefix of the name if the file has only generateName.
	Namespace, Name string

	api *corev1.Pod
}

// A Workload is a resource whose objects have a pod template, at a path of fields separated by dots.
type Workload struct{ Group, Resource, Path string }

// Read reads the Pods and pod templates of a file: documents in YAML or JSON, each a Pod, one of the workloads, or a
// List of these. Another kind, an unknown field in a Pod or template, and a file without any are errors.
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

type list struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
}

// readDocument reads a document, or an item of a List. A List in a List is an error: each level would be parsed again.
func readDocument(data []byte, workloads []Workload, item bool) ([]Pod, error) {
	var d *list
	if err := yaml.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if d == nil && !item {
		return nil, nil // nothing between two separators
	}
	d = cmp.Or(d, &list{})
	switch {
	case d.APIVersion == "v1" && d.Kind == "Pod":
		var pod corev1.Pod
		text, err := yaml.YAMLToJSONStrict(data)
		if err == nil {
			err = decode(text, &pod)
		}
		if err != nil {
			return nil, err
		}
		p, err := podOf(pod, d.Kind)
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
	return nil, fmt.Errorf("apiVersion %q, kind %q: only Pods, the workloads of Kubernetes with a pod template, and "+
		"Lists of them are read", d.APIVersion, d.Kind)
}

func templateOf(workloads []Workload, apiVersion, kind string) []string {
	group, _ := path.Split(apiVersion)
	for _, t := range workloads {
		if t.Group == strings.TrimSuffix(group, "/") && t.Resource == strings.ToLower(kind)+"s" {
			return strings.Split(t.Path, ".")
		}
	}
	return nil
}

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

func podOf(p corev1.Pod, kind string) (Pod, error) {
	name := cmp.Or(p.Name, p.GenerateName)
	switch {
	case name == "":
		return Pod{}, errors.New("metadata.name: Required value")
	case len(p.Spec.Containers) == 0:
		return Pod{}, fmt.Errorf("pod %s: spec.containers: Required value", name)
	}
	// what the API server adds to a pod before admission webhooks see it, as far as a view has the fields
	p.Namespace = cmp.Or(p.Namespace, corev1.NamespaceDefault)
	SetDefaults(&p.Spec)
	mountToken(&p.Spec)
	return Pod{Kind: kind, Namespace: p.Namespace, Name: name, api: &p}, nil
}

// An Image is an image that a pod uses. Container is "" if a volume uses it.
type Image struct {
	Container, Name string
	PullPolicy      corev1.PullPolicy
}

// Images returns the images that the pod uses.
func (p Pod) Images() []Image { return ImagesOf(&p.api.Spec) }

// ImagesOf returns the images that a pod uses, in the order of its spec.
func ImagesOf(s *corev1.PodSpec) (images []Image) {
	for _, c := range containersOf(s) {
		images = append(images, Image{c.Name, c.Image, c.ImagePullPolicy})
	}
	for _, v := range s.Volumes {
		if v.Image != nil {
			images = append(images, Image{"", v.Image.Reference, v.Image.PullPolicy})
		}
	}
	return images
}

const maxTemplates = 100

// ErrTemplate means that the pod templates of an object cannot be found or decoded.
var ErrTemplate = errors.New("podfile: invalid pod template")

// A Template is a pod template in JSON that is not decoded yet.
type Template struct {
	At   string // its path in the object, with indices
	Data []byte
}

// Templates returns the pod templates at paths of an object in JSON, of all elements of lists, or ErrTemplate.
func Templates(object []byte, paths [][]string) ([]Template, error) {
	var all []Template
	for _, path := range paths {
		if err := walk(object, path, "", false, &all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// walk adds the templates in a value. A list in a list is refused, so the depth is limited by the length of the path.
func walk(value []byte, path []string, at string, inList bool, all *[]Template) error {
	var list []json.RawMessage
	var fields map[string]json.RawMessage
	switch value = bytes.TrimSpace(value); {
	case len(value) == 0, string(value) == "null":
		return nil
	case value[0] == '[' && !inList:
		if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &list); err != nil {
			return NotDecoded(at, "a list")
		}
		for i, element := range list {
			if err := walk(element, path, fmt.Sprintf("%s[%d]", at, i), true, all); err != nil {
				return err
			}
		}
		return nil
	case value[0] != '{':
		return NotDecoded(at, "an object")
	case len(path) == 0:
		if len(*all) == maxTemplates {
			return fmt.Errorf("%w: there are more than %d", ErrTemplate, maxTemplates)
		}
		*all = append(*all, Template{at, value})
		return nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &fields); err != nil {
		return NotDecoded(at, "an object")
	}
	return walk(fields[path[0]], path[1:], strings.TrimPrefix(at+"."+path[0], "."), false, all)
}

// NotDecoded returns the ErrTemplate for a value of an object, without the cause: it can contain values.
func NotDecoded(at, want string) error {
	return fmt.Errorf("%w: %s is not %s", ErrTemplate, cmp.Or(at, "the object"), want)
}

// SetDefaults sets the fields that the API server sets in each pod that lacks them, as far as a view has the fields.
func SetDefaults(s *corev1.PodSpec) {
	s.RestartPolicy = cmp.Or(s.RestartPolicy, corev1.RestartPolicyAlways)
	s.DNSPolicy = cmp.Or(s.DNSPolicy, corev1.DNSClusterFirst)
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	eachContainer(s, func(c *corev1.Container) {
		c.ImagePullPolicy = cmp.Or(c.ImagePullPolicy, pullPolicy(c.Image))
	})
}

// eachContainer calls f for each container, but not for ephemeral ones, which no pod is created with.
func eachContainer(s *corev1.PodSpec, f func(*corev1.Container)) {
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			f(&list[i])
		}
	}
}

// pullPolicy returns the default for an image: Always for the tag latest, also if the name has neither tag nor digest.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, byDigest := strings.Cut(image, "@")
	if strings.HasSuffix(name, ":latest") || !byDigest &&
		strings.HasSuffix(imageref.New(image).Name().String(), ":latest") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

const tokenVolume = "kube-api-access"

func mountToken(s *corev1.PodSpec) {
	if s.AutomountServiceAccountToken != nil && !*s.AutomountServiceAccountToken {
		return
	}
	used := false
	eachContainer(s, func(c *corev1.Container) {
		if slices.ContainsFunc(c.VolumeMounts,
			func(m corev1.VolumeMount) bool { return m.MountPath == admission.ServiceAccountPath }) {
			return
		}
		used = true
		c.VolumeMounts = append(c.VolumeMounts,
			corev1.VolumeMount{Name: tokenVolume, MountPath: admission.ServiceAccountPath, ReadOnly: true})
	})
	if used {
		source := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}
		s.Volumes = append(s.Volumes, corev1.Volume{Name: tokenVolume, VolumeSource: source})
	}
}
