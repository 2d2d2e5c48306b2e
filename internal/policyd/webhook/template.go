package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/podfile"
)

// maxTemplates bounds the pod templates of one object.
const maxTemplates = 100

// A templatePath says where objects of a resource have pod templates.
type templatePath struct {
	paths  [][]string
	custom bool
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
