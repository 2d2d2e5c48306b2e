package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/podfile"
)

// A Template says where the objects of a custom resource have a pod template. Several entries can be about one resource.
type Template struct {
	// Group and Resource are those of the API, such as example.com and workers. All versions are judged.
	Group    string `json:"group"`
	Resource string `json:"resource"`
	// Path is the path of the pod template in an object, such as spec.worker.template. A list on the path, or at its end, stands for
	// all of its elements. An object without the path has no pod template there.
	Path string `json:"path"`
}

const (
	// maxSegments bounds a path, because each segment reads the object once.
	maxSegments = 16
	// maxTemplates bounds the pod templates of one object.
	maxTemplates = 100
)

func (t Template) segments() []string { return strings.Split(t.Path, ".") }

// ValidateTemplates returns what is wrong with the templates of a configuration. p is the path of the list.
func ValidateTemplates(p *field.Path, list []Template) (errs field.ErrorList) {
	native := builtIn()
	segment := regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	for i, t := range list {
		at := p.Index(i)
		for _, detail := range validation.IsDNS1123Subdomain(t.Group) {
			errs = append(errs, field.Invalid(at.Child("group"), t.Group, detail))
		}
		for _, detail := range validation.IsDNS1123Label(t.Resource) {
			errs = append(errs, field.Invalid(at.Child("resource"), t.Resource, detail))
		}
		if _, ok := native[schema.GroupResource{Group: t.Group, Resource: t.Resource}]; ok {
			errs = append(errs, field.Invalid(at.Child("resource"), t.Resource, "the pod templates of this resource are always judged; remove the entry"))
		}
		if slices.Contains(list[:i], t) {
			errs = append(errs, field.Duplicate(at, t.Path))
		}
		segments := t.segments()
		if len(segments) > maxSegments {
			errs = append(errs, field.Invalid(at.Child("path"), t.Path, fmt.Sprintf("must have at most %d segments", maxSegments)))
		}
		if slices.ContainsFunc(segments, func(s string) bool { return !segment.MatchString(s) }) {
			errs = append(errs, field.Invalid(at.Child("path"), t.Path, "must be names of fields with dots between them, such as spec.worker.template"))
		}
	}
	return errs
}

// A templatePath says where objects of a resource have pod templates.
type templatePath struct {
	paths  [][]string
	custom bool
}

// builtIn returns the resources of Kubernetes that have pod templates. Their versions have them in the same place.
func builtIn() map[schema.GroupResource]templatePath {
	all := map[schema.GroupResource]templatePath{
		{Resource: "podtemplates"}:             {paths: [][]string{{"template"}}},
		{Group: "batch", Resource: "cronjobs"}: {paths: [][]string{{"spec", "jobTemplate", "spec", "template"}}},
	}
	for _, r := range []schema.GroupResource{
		{Resource: "replicationcontrollers"},
		{Group: "apps", Resource: "replicasets"},
		{Group: "apps", Resource: "daemonsets"},
		{Group: "apps", Resource: "statefulsets"},
		{Group: "apps", Resource: "deployments"},
		{Group: "batch", Resource: "jobs"},
	} {
		all[r] = templatePath{paths: [][]string{{"spec", "template"}}}
	}
	return all
}

// errInvalidTemplate is the cause of a denial of an object whose pod templates cannot be judged.
var errInvalidTemplate = errors.New("webhook: invalid pod template")

// A rawTemplate is a pod template that is not decoded yet.
type rawTemplate struct {
	at   string // its path in the object, with indices
	data []byte
}

// find returns the pod templates of an object. The error is errInvalidTemplate.
func (p templatePath) find(object []byte) ([]rawTemplate, error) {
	var all []rawTemplate
	for _, path := range p.paths {
		if err := walk(object, path, "", &all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// same reports whether an update changes no field of the object that has pod templates in it, whether they can be decoded or not.
func (p templatePath) same(before, object []byte) bool {
	var of, now map[string]json.RawMessage
	if kjson.UnmarshalCaseSensitivePreserveInts(before, &of) != nil || kjson.UnmarshalCaseSensitivePreserveInts(object, &now) != nil {
		return false
	}
	return !slices.ContainsFunc(p.paths, func(path []string) bool { return !bytes.Equal(of[path[0]], now[path[0]]) })
}

// walk adds what is at a path below a value.
func walk(value []byte, path []string, at string, all *[]rawTemplate) error {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || string(value) == "null" {
		return nil
	}
	if value[0] != '[' {
		return walkObject(value, path, at, all)
	}
	var list []json.RawMessage
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &list); err != nil {
		return notDecoded(at, "a list")
	}
	for i, element := range list {
		element = bytes.TrimSpace(element)
		if string(element) == "null" {
			continue
		}
		if err := walkObject(element, path, fmt.Sprintf("%s[%d]", at, i), all); err != nil {
			return err
		}
	}
	return nil
}

// walkObject is walk for a value that is not a list. So the depth is limited by the length of the path.
func walkObject(value []byte, path []string, at string, all *[]rawTemplate) error {
	if value[0] != '{' {
		return notDecoded(at, "an object")
	}
	if len(path) == 0 {
		if len(*all) == maxTemplates {
			return fmt.Errorf("%w: there are more than %d", errInvalidTemplate, maxTemplates)
		}
		*all = append(*all, rawTemplate{at, value})
		return nil
	}
	var fields map[string]json.RawMessage
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &fields); err != nil {
		return notDecoded(at, "an object")
	}
	return walk(fields[path[0]], path[1:], strings.TrimPrefix(at+"."+path[0], "."), all)
}

// notDecoded says what is wrong, without the cause: it can contain values.
func notDecoded(at, want string) error {
	at = cmp.Or(at, "the object")
	return fmt.Errorf("%w: %s is not %s", errInvalidTemplate, at, want)
}

// decode returns the template as a pod. The decoder distinguishes upper and lower case, as that of the API server does.
func (t rawTemplate) decode(custom bool) (*corev1.Pod, error) {
	var template corev1.PodTemplateSpec
	if err := kjson.UnmarshalCaseSensitivePreserveInts(t.data, &template); err != nil {
		return nil, notDecoded(t.at, "a pod template")
	}
	if custom { // the API server has set the defaults in all others
		podfile.SetDefaults(&template.Spec)
	}
	pod := &corev1.Pod{Spec: template.Spec}
	pod.Labels, pod.Annotations = template.Labels, template.Annotations
	return pod, nil
}
