package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A Supplement is a part of a pod: what is added to pods that lack it.
type Supplement struct{ fields map[string]any }

// NewSupplement returns the supplement of a template, whose inner mappings can have keys of any type, with notes and
// all errors.
func NewSupplement(at *field.Path, template map[string]any) (s Supplement, notes, errs []error) {
	var c supplementChecker
	if len(template) == 0 {
		return s, nil, []error{field.Required(at, "must have metadata or spec")}
	}
	s.fields = c.read(at, template)
	return s, c.notes, c.errs
}

type supplementChecker struct{ notes, errs []error }

func (c *supplementChecker) invalid(at *field.Path, value any, allowed string) {
	c.errs = append(c.errs, field.Invalid(at, value, allowed))
}

func (c *supplementChecker) note(at *field.Path, text string) {
	c.notes = append(c.notes, fmt.Errorf("%s: %s", at, text))
}

func (c *supplementChecker) read(at *field.Path, template map[string]any) (fields map[string]any) {
	var part struct {
		Metadata struct {
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec corev1.PodSpec `json:"spec"`
	}
	text, err := goyaml.Marshal(template)
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		var strict []error
		strict, err = kjson.UnmarshalStrict(text, &part)
		for _, e := range strict {
			c.errs = append(c.errs,
				fmt.Errorf("%s: %w; must be a part of a Pod, of metadata.labels, metadata.annotations and spec", at, e))
		}
	}
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(text, &fields)
	}
	switch {
	case err != nil:
		c.errs = append(c.errs, fmt.Errorf("%s: must be a part of a Pod: %w", at, err))
		return nil
	case len(text) > requirement.MaxPatch:
		c.errs = append(c.errs, field.TooLong(at, "", requirement.MaxPatch))
		return nil
	}
	for key, value := range part.Metadata.Labels {
		for _, detail := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)) {
			c.invalid(at.Child("metadata", "labels").Key(key), value, detail)
		}
	}
	for key := range part.Metadata.Annotations {
		at := at.Child("metadata", "annotations")
		for _, detail := range validation.IsQualifiedName(strings.ToLower(key)) {
			c.invalid(at, key, detail)
		}
		if requirement.ProtectedAnnotation(key) {
			c.invalid(at, key, "must not set this annotation: it has a meaning for pullgate")
		}
	}
	c.check(at, fields, podType)
	return fields
}

// alwaysSet are the fields that every pod has when webhooks see it: the API server sets their defaults, and its plugins
// ServiceAccount and Priority have run.
func alwaysSet() []string {
	return []string{
		"dnsPolicy", "enableServiceLinks", "preemptionPolicy", "priority", "restartPolicy", "schedulerName",
		"serviceAccount", "serviceAccountName", "terminationGracePeriodSeconds",
	}
}

// alwaysInContainers are those of containers.
func alwaysInContainers() []string {
	return []string{"imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"}
}

func (c *supplementChecker) check(at *field.Path, v map[string]any, t reflect.Type) {
	const why = "every pod has this field when webhooks see it, so it would never be added"
	for name, value := range v {
		at, in := at.Child(name), fieldOf(t, name)
		if t.Kind() == reflect.Map {
			at = at.Key(name) // for the message alone
		}
		switch _, whole := v["image"]; {
		case value == nil:
			c.invalid(at, "null", "must have a value; leave the field out otherwise")
		case t == specType && value == true && slices.Contains([]string{"hostNetwork", "hostPID", "hostIPC"}, name):
			c.invalid(at, value, "a pod does not show that false was written, so it would be added in spite of it")
		case t == specType && name == "ephemeralContainers":
			c.invalid(at, "", "a new pod has none")
		case t == specType && slices.Contains(alwaysSet(), name),
			t == containerType && !whole && slices.Contains(alwaysInContainers(), name):
			c.invalid(at, value, why)
		case t == specType && name == "priorityClassName":
			c.invalid(at, value, "the plugin Priority has set the priority before, and would deny the pod")
		case t == specType && name == "tolerations":
			c.note(at, "no effect unless the plugin DefaultTolerationSeconds is off: it adds tolerations to all pods before")
		case t == specType && name == "automountServiceAccountToken":
			c.note(at, "does not remove the token, which the plugin ServiceAccount has mounted before")
		}
		if in.Type == nil {
			continue // it is not known, and reported
		}
		switch value := value.(type) {
		case map[string]any:
			c.check(at, value, deref(in.Type))
		case []any:
			c.list(at, value, in)
		}
	}
}

func (c *supplementChecker) list(at *field.Path, list []any, in reflect.StructField) {
	seen, key := map[any]bool{}, in.Tag.Get("patchMergeKey")
	for i, v := range list {
		e, ok := v.(map[string]any)
		if v == nil {
			c.invalid(at.Index(i), "null", "must have a value")
		}
		if !ok {
			continue
		}
		c.check(at.Index(i), e, deref(in.Type).Elem())
		switch id := e[key]; {
		case key == "":
		case id == nil:
			c.errs = append(c.errs, field.Required(at.Index(i).Child(key), "the elements of a pod are compared by it"))
		case seen[id]:
			c.errs = append(c.errs, field.Duplicate(at.Index(i).Child(key), id))
		default:
			seen[id] = true
		}
	}
}

//nolint:gochecknoglobals // constants
var (
	podType       = reflect.TypeFor[corev1.Pod]()
	specType      = reflect.TypeFor[corev1.PodSpec]()
	containerType = reflect.TypeFor[corev1.Container]()
)

// completed reports whether a pod that has an object of a type gets the fields that the object lacks. All others are
// added as a whole: most of them have one of several fields, such as a probe, and two would be invalid.
func completed(t reflect.Type) bool {
	return t.Kind() == reflect.Map || slices.Contains([]reflect.Type{
		specType, containerType, reflect.TypeFor[metav1.ObjectMeta](),
		reflect.TypeFor[corev1.PodSecurityContext](), reflect.TypeFor[corev1.SecurityContext](),
		reflect.TypeFor[corev1.ResourceRequirements](),
		reflect.TypeFor[corev1.Lifecycle](), reflect.TypeFor[corev1.PodDNSConfig](), reflect.TypeFor[corev1.Affinity](),
		reflect.TypeFor[corev1.NodeAffinity](), reflect.TypeFor[corev1.PodAffinity](),
		reflect.TypeFor[corev1.PodAntiAffinity](),
	}, t)
}

// fieldOf returns the field of a struct by its name in JSON, also of embedded ones. Its Type is nil if there is none.
func fieldOf(t reflect.Type, name string) (none reflect.StructField) {
	switch t.Kind() { //nolint:exhaustive // others have no fields
	case reflect.Map:
		return reflect.StructField{Type: t.Elem()}
	case reflect.Struct:
	default:
		return none
	}
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name && name != "" {
			return f
		}
		if options == "inline" || f.Anonymous && tag == "" {
			if inner := fieldOf(f.Type, name); inner.Type != nil {
				return inner
			}
		}
	}
	return none
}

func deref(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// Complete adds to a pod, a JSON text, what it lacks. What it has stays as it is.
func (s Supplement) Complete(pod []byte) ([]byte, error) {
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(pod, &object); err != nil || object == nil {
		return nil, errors.New("the pod cannot be decoded")
	}
	addLacking(object, s.fields, podType)
	return json.Marshal(object)
}

func addLacking(to, lacking map[string]any, t reflect.Type) {
	own := t == containerType && (to["command"] != nil || to["args"] != nil)
	for name, v := range lacking {
		if own && (name == "command" || name == "args") {
			continue // together they are one command line
		}
		in, now := fieldOf(t, name), to[name]
		switch v := v.(type) {
		case []any:
			list, isList := now.([]any)
			if now != nil && !isList || in.Type == nil {
				continue
			}
			if list = addElements(list, v, in); len(list) > 0 {
				to[name] = list
			}
		case map[string]any:
			if object, is := now.(map[string]any); is && in.Type != nil && completed(deref(in.Type)) {
				addLacking(object, v, deref(in.Type))
				continue
			}
			if now == nil {
				to[name] = runtime.DeepCopyJSONValue(v)
			}
		default:
			if now == nil {
				to[name] = v
			}
		}
	}
}

// addElements returns a list with the elements that it lacks. A container without an image only completes another one,
// and one with an image completes none: a user could give its name to a container, which would get its privileges.
func addElements(list, lacking []any, in reflect.StructField) []any {
	key, of := in.Tag.Get("patchMergeKey"), deref(in.Type).Elem()
	if key == "" {
		if len(list) > 0 {
			return list
		}
		list, _ = runtime.DeepCopyJSONValue(lacking).([]any)
		return list
	}
	for _, v := range lacking {
		element, _ := v.(map[string]any)
		at := slices.IndexFunc(list, func(e any) bool {
			m, _ := e.(map[string]any)
			return m != nil && m[key] == element[key]
		})
		switch _, whole := element["image"]; {
		case at < 0 && (of != containerType || whole):
			list = append(list, runtime.DeepCopyJSONValue(element))
		case at >= 0 && of == containerType && !whole:
			now, _ := list[at].(map[string]any)
			addLacking(now, element, of)
		}
	}
	return list
}
