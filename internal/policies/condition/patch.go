package condition

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A Patch is a compiled change of a pod. It is immutable.
type Patch struct {
	mutation *requirement.Mutation
	image    []string // the texts with expressions on the image, sorted
	key      string   // of them
	texts    map[string]operand
}

const (
	maxOperations = 50
	maxTexts      = 50      // with expressions, of a patch
	maxFilled     = 4 << 10 // bounds a text with the values of its expressions, in bytes
	// maxImageValues bounds the values that are kept for an image, in bytes.
	maxImageValues = 16 << 10
)

// CompilePatch returns the patch of a mutation, or an error for each part that cannot be applied.
func CompilePatch(m *requirement.Mutation) (*Patch, field.ErrorList) {
	p, at := &Patch{mutation: m, texts: map[string]operand{}}, field.NewPath(m.At)
	c := patchCompiler{Patch: p}
	if text, err := json.Marshal([]any{m.Merge, m.Operations}); err != nil || len(text) > requirement.MaxPatch {
		return nil, field.ErrorList{field.TooLong(at, "", requirement.MaxPatch)}
	}
	if m.Merge != nil {
		c.merge(at.Child("patchStrategicMerge"), m.Merge)
	} else {
		c.operations(at.Child("patchesJson6902"), m.Operations)
	}
	if len(p.texts) > maxTexts {
		c.errs = append(c.errs, field.TooMany(at, len(p.texts), maxTexts))
	}
	if c.errs != nil {
		return nil, c.errs
	}
	slices.Sort(p.image)
	if p.image != nil {
		text, err := json.Marshal(p.image)
		if err != nil {
			return nil, field.ErrorList{field.InternalError(at, err)}
		}
		p.key = string(text)
	}
	return p, nil
}

type patchCompiler struct {
	*Patch

	errs field.ErrorList
}

func (c *patchCompiler) invalid(at *field.Path, value any, why string) {
	c.errs = append(c.errs, field.Invalid(at, value, why))
}

func (c *patchCompiler) merge(at *field.Path, patch map[string]any) {
	c.value(at, patch)
	// null stands for the value of an expression: its type is not known yet.
	text, err := json.Marshal(fill(patch, func(s string) any {
		if strings.Contains(s, "{{") {
			return nil
		}
		return s
	}))
	var part struct {
		Metadata struct {
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec corev1.PodSpec `json:"spec"`
	}
	strict, invalid := kjson.UnmarshalStrict(text, &part)
	if err = errors.Join(append(strict, err, invalid)...); err != nil && c.errs == nil {
		c.invalid(at, "", "must be a part of a Pod, of metadata.labels, metadata.annotations and spec: "+err.Error())
	}
	for _, key := range slices.Sorted(maps.Keys(part.Metadata.Annotations)) {
		c.annotation(at, key)
	}
}

func (c *patchCompiler) annotation(at *field.Path, key string) {
	if requirement.ProtectedAnnotation(key) {
		c.invalid(at, key, "must not set this annotation: it has a meaning for pullgate")
	}
}

// pointer matches what an operation may change: fields in labels, annotations and the spec.
var (
	pointer  = regexp.MustCompile(`\A/(?:spec|metadata/(?:labels|annotations))(?:/(?:[^/~{}]|~[01])+)+\z`)
	position = regexp.MustCompile(`\A/spec/.*/[0-9]+\z`)
)

func (c *patchCompiler) operations(at *field.Path, list []requirement.PatchOperation) {
	if len(list) == 0 || len(list) > maxOperations {
		c.invalid(at, len(list), fmt.Sprintf("must have from 1 to %d operations", maxOperations))
		return
	}
	for i, o := range list {
		at := at.Index(i)
		switch {
		case !slices.Contains([]string{"add", "remove", "replace"}, o.Op):
			c.errs = append(c.errs, field.NotSupported(at.Child("op"), o.Op, []string{"add", "remove", "replace"}))
		case !pointer.MatchString(o.Path) || strings.Contains(o.Path, "/-"):
			c.invalid(at.Child("path"), o.Path, "must be a place in /spec, /metadata/labels or /metadata/annotations, without "+
				"expressions, - and negative numbers")
		case o.Op != "replace" && position.MatchString(o.Path):
			c.invalid(at.Child("path"), o.Path, "must not add or remove a position of a list, because a second pass would do "+
				"it again; use patchStrategicMerge")
		case (o.Op == "remove") != (o.Value == nil):
			c.invalid(at.Child("value"), o.Value, "must be absent for remove, and must not be absent or null otherwise")
		}
		if key, ok := strings.CutPrefix(o.Path, "/metadata/annotations/"); ok {
			c.annotation(at.Child("path"), strings.NewReplacer("~1", "/", "~0", "~").Replace(key))
		}
		c.value(at.Child("value"), o.Value)
	}
}

// mergeKeys are the fields of a pod by which a strategic merge finds an element of a list.
func mergeKeys() []string {
	return []string{"containerPort", "devicePath", "ip", "mountPath", "name", "topologyKey", "uid"}
}

// value compiles the texts in a value.
func (c *patchCompiler) value(at *field.Path, v any) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			c.value(at.Index(i), v[i])
			entry, _ := v[i].(map[string]any)
			for _, key := range mergeKeys() {
				if text, _ := entry[key].(string); slices.Contains(c.image, text) {
					c.invalid(at.Index(i).Child(key), text,
						"must not be about the image, which would choose the element that is changed")
				}
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if strings.HasPrefix(key, "$") || strings.ContainsAny(key, "(){}") {
				c.invalid(at, key, "directives, anchors and expressions in names of fields are not supported")
			}
			c.value(at.Child(key), v[key])
		}
	case string:
		if _, known := c.texts[v]; known {
			return
		}
		o, err := compileOperand(v)
		onPod := o.variables(c.mutation.PodReads)
		if err == nil && onPod != nil {
			err = o.variables(slices.Concat(c.mutation.ImageReads, c.mutation.PodReads))
		}
		onImage := o.variables(c.mutation.ImageReads)
		switch {
		case err != nil:
			c.invalid(at, v, err.Error())
		case o.parts == nil:
		case onPod != nil && onImage != nil:
			c.invalid(at, v, "is about the image and about the pod; write two fields")
		case o.readsClock():
			c.invalid(at, v, "must not read the clock: a second pass would have another value")
		default:
			c.texts[v] = o
			if onImage == nil {
				c.image = append(c.image, v)
			}
		}
	}
}

// fill returns a value with its texts replaced.
func fill(v any, text func(string) any) any {
	switch v := v.(type) {
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = fill(v[i], text)
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for key := range v {
			all[key] = fill(v[key], text)
		}
		return all
	case string:
		return text(v)
	}
	return v
}

// Key identifies what ImageValues evaluates; it is "" if that is nothing, also of no patch.
func (p *Patch) Key() string {
	if p == nil {
		return ""
	}
	return p.key
}

// Reads is as that of Compiled, for what ImageValues evaluates.
func (p *Patch) Reads(variable string) bool {
	return p != nil && slices.ContainsFunc(p.image, func(text string) bool { return p.texts[text].reads(variable) })
}

// ImageValues returns the values that depend on the image alone, for Fill. They are kept, and the document is not.
func (p *Patch) ImageValues(document any) (map[string]any, error) {
	values, size := map[string]any{}, 0
	for _, text := range p.image {
		v, err := p.texts[text].filled(document)
		if err != nil {
			return nil, err
		}
		if t, ok := v.(string); ok {
			v = strings.Clone(t) // not the document that it is a part of
			if size += len(t); size > maxImageValues {
				return nil, fmt.Errorf("the values have more than %d bytes", maxImageValues)
			}
		}
		values[text] = v
	}
	return values, nil
}

// filled returns a text, number or boolean. The error does not quote the document. A kubelet expands $(NAME) in
// commands, arguments and variables: a value must not name a variable of the container.
func (o operand) filled(document any) (any, error) {
	v, err := o.evaluate(document, time.Time{})
	text, isText := v.(string)
	switch {
	case err != nil || v == nil:
		return nil, fmt.Errorf("%s has no value", o.literal)
	case !isScalar(v):
		return nil, fmt.Errorf("%s is not a text, number or boolean", o.literal)
	case isText && len(text) > maxFilled:
		return nil, fmt.Errorf("%s has more than %d bytes", o.literal, maxFilled)
	case strings.Contains(text, "$("):
		return nil, fmt.Errorf("%s has $(, which a kubelet expands", o.literal)
	}
	return v, nil
}

// Fill returns the strategic merge, or else the operations, with the values of the image and of a document about the
// pod. Numbers are as apimachinery decodes them.
func (p *Patch) Fill(image map[string]any, pod any) (
	merge map[string]any, operations []requirement.PatchOperation, failed error,
) {
	size := 0
	text := func(s string) any {
		o, has := p.texts[s]
		if !has || failed != nil {
			return s
		}
		v, ok := image[s]
		switch {
		case ok:
		case slices.Contains(p.image, s):
			failed = fmt.Errorf("the value of %s is not known", o.literal)
		default:
			v, failed = o.filled(pod)
		}
		if t, ok := v.(string); ok {
			size += len(t)
		}
		if size > requirement.MaxPatch {
			failed = fmt.Errorf("the values have more than %d bytes", requirement.MaxPatch)
		}
		return v
	}
	filled := requirement.Mutation{Operations: slices.Clone(p.mutation.Operations)}
	if p.mutation.Merge != nil {
		filled.Merge, _ = fill(p.mutation.Merge, text).(map[string]any)
	}
	for i := range filled.Operations {
		filled.Operations[i].Value = fill(filled.Operations[i].Value, text)
	}
	if failed != nil {
		return nil, nil, failed
	}
	data, err := json.Marshal(filled)
	if err == nil {
		filled = requirement.Mutation{}
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, &filled)
	}
	return filled.Merge, filled.Operations, err
}
