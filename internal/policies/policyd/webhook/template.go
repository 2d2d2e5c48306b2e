package webhook

import (
	"bytes"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/policies/podfile"
)

// A templatePath says where objects of a resource have pod templates.
type templatePath struct {
	paths  [][]string
	custom bool
}

// A rawTemplate is a pod template that is not decoded yet.
type rawTemplate podfile.Template

// find returns the pod templates of an object. The error is podfile.ErrTemplate.
func (p templatePath) find(object []byte) (all []rawTemplate, err error) {
	found, err := podfile.Templates(object, p.paths)
	for _, t := range found {
		all = append(all, rawTemplate(t))
	}
	return all, err
}

// same reports whether an update changes no field of the object that has pod templates in it, whether they can be
// decoded or not.
func (p templatePath) same(before, object []byte) bool {
	var of, now map[string]json.RawMessage
	if kjson.UnmarshalCaseSensitivePreserveInts(before, &of) != nil || kjson.UnmarshalCaseSensitivePreserveInts(object, &now) != nil {
		return false
	}
	return !slices.ContainsFunc(p.paths, func(path []string) bool { return !bytes.Equal(of[path[0]], now[path[0]]) })
}

// decode returns the template as a pod. The decoder distinguishes upper and lower case, as that of the API server does.
func (t rawTemplate) decode(custom bool) (*corev1.Pod, error) {
	var template corev1.PodTemplateSpec
	if err := kjson.UnmarshalCaseSensitivePreserveInts(t.Data, &template); err != nil {
		return nil, podfile.NotDecoded(t.At, "a pod template")
	}
	if custom { // the API server has set the defaults in all others
		podfile.SetDefaults(&template.Spec)
	}
	pod := &corev1.Pod{Spec: template.Spec}
	pod.Labels, pod.Annotations = template.Labels, template.Annotations
	return pod, nil
}
