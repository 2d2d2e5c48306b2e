package policyfiles

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// notAtNodes is the note about a rule for custom resources.
const notAtNodes = "not enforced here: pods made from it are judged as pods; the webhook judges the object"

type kyvernoContext struct {
	ImagePaths []kyvernoImagePath `json:"imagePaths"`
}

type kyvernoImagePath struct {
	Path       string  `json:"path"`
	KeyField   *string `json:"keyField"`
	ValueField *string `json:"valueField"`
}

// A kyvernoExtractor is what Kyverno has in the place of an image path.
type kyvernoExtractor struct {
	Path  string  `json:"path"` // as in /spec/steps/*
	Key   *string `json:"key"`
	Value *string `json:"value"`
	Name  *string `json:"name"` // of the images, which no condition reads
}

var (
	customKinds = regexp.MustCompile(`^(?:([a-z0-9*?-]*[.*?][a-z0-9.*?-]*)/)?(?:(v[0-9][a-z0-9*?]*|\*)/)?` +
		`([A-Z*?][A-Za-z0-9*?]*)([./][a-z*]+)?$`)
	extractorPath = regexp.MustCompile(`^(/[A-Za-z_][A-Za-z0-9_-]*(/\*)?)+/?$`)
	fieldName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
)

// customKind reads a kind as in Task, v1/Task or tekton.dev/v1/Task. Kyverno has subresources behind a dot or a slash.
func customKind(name string) (k requirement.Kind, subresource, ok bool) {
	m := customKinds.FindStringSubmatch(name)
	if m == nil || m[1] != "" && m[2] == "" {
		return k, false, false
	}
	return requirement.Kind{Group: cmp.Or(m[1], "*"), Version: cmp.Or(m[2], "*"), Kind: m[3]}, m[4] != "", true
}

// isNamed reports whether a webhook can be registered for a kind without being asked about all objects of the cluster.
func isNamed(k requirement.Kind) bool {
	return !strings.ContainsAny(k.Group, "*?") || !strings.ContainsAny(k.Kind, "*?")
}

// named reports whether a kind without a group is meant to be one of custom resources, and not a slip.
func (c *kyvernoCompiler) named(kind string) bool {
	near := strictyaml.Nearest(strings.TrimSuffix(kind, "s"), append(workloads(), "Pod"))
	return c.extracted[kind] != nil || c.hasPaths && near == ""
}

// rulePaths reads where a rule says that custom resources name images.
func (c *kyvernoCompiler) rulePaths(at *field.Path, r *kyvernoRule) {
	c.paths, c.extracted = nil, map[string][]requirement.ImagePath{}
	for i, context := range r.Context {
		at := at.Child("context").Index(i).Child("imagePaths")
		c.RequiredIf(len(context.ImagePaths) == 0, at, "must have at least one entry")
		c.paths = append(c.paths, c.imagePaths(at, context.ImagePaths)...)
	}
	c.paths = append(c.paths, c.imagePaths(at.Child("imagePaths"), r.ImagePaths)...)
	for _, kind := range slices.Sorted(maps.Keys(r.ImageExtractors)) {
		if at := at.Child("imageExtractors").Key(kind); kind == "Pod" {
			c.Invalid(at, kind, "must be absent; all images of a pod are verified")
		} else {
			c.extracted[kind] = c.extractors(at, kind, r.ImageExtractors[kind])
		}
	}
	hasPaths := func(v kyvernoVerification) bool { return len(v.ImagePaths) > 0 }
	c.hasPaths = c.paths != nil || r.ImageVerify != nil && hasPaths(*r.ImageVerify) ||
		slices.ContainsFunc(r.VerifyImages, hasPaths)
}

// maxPaths bounds the paths of a rule, because the webhook evaluates all of them on each object.
const maxPaths = 50

func (c *kyvernoCompiler) imagePaths(at *field.Path, list []kyvernoImagePath) (all []requirement.ImagePath) {
	c.InvalidIf(len(list) > maxPaths, at, len(list), "must have at most 50 entries")
	for i, p := range list[:min(len(list), maxPaths)] {
		at := at.Index(i)
		c.RequiredIf(p.Path == "", at.Child("path"), "must be an expression in JMESPath, as in {{ spec.steps[*] }}")
		all = append(all, requirement.ImagePath{
			Path: p.Path, Key: c.field(at.Child("keyField"), p.KeyField, "name"),
			Value: c.field(at.Child("valueField"), p.ValueField, "image"), At: at.Child("path").String(),
		})
	}
	return all
}

func (c *kyvernoCompiler) field(at *field.Path, value *string, absent string) string {
	if value == nil {
		return absent
	}
	c.InvalidIf(!fieldName.MatchString(*value), at, *value, "must be the name of a field, as in "+absent)
	return *value
}

// extractors returns the image paths that find what Kyverno's extractors do.
func (c *kyvernoCompiler) extractors(at *field.Path, kind string, list []kyvernoExtractor) []requirement.ImagePath {
	all := []requirement.ImagePath{}
	c.InvalidIf(len(list) > maxPaths, at, len(list), "must have at most 50 entries")
	for i, e := range list[:min(len(list), maxPaths)] {
		at := at.Index(i)
		if !extractorPath.MatchString(e.Path) {
			c.Invalid(at.Child("path"), e.Path,
				"must be names of fields, each with at most one * behind it, as in /spec/steps/*")
			continue
		}
		p := requirement.ImagePath{
			Kind: kind, Key: c.field(at.Child("key"), e.Key, "name"), Value: c.field(at.Child("value"), e.Value, "image"),
			At: at.Child("path").String(),
		}
		names := strings.Split(strings.Trim(e.Path, "/"), "/")
		if e.Value != nil && names[len(names)-1] != "*" {
			names = append(names, p.Value)
		}
		for _, name := range names {
			switch {
			case name == "*": // the elements of a list, or the values of a map
				p.Path += "[]"
			case strings.Contains(name, "-"):
				p.Path += fmt.Sprintf(".%q", name)
			default:
				p.Path += "." + name
			}
		}
		p.Path = strings.TrimPrefix(p.Path, ".")
		all = append(all, p)
	}
	return all
}

// custom returns a rule for custom resources, nil if it has none, or does not say where they name images.
func (c *kyvernoCompiler) custom(at *field.Path, v *kyvernoVerification, objects *requirement.Custom) (
	custom *requirement.Custom,
) {
	own := c.imagePaths(at.Child("imagePaths"), v.ImagePaths)
	if objects == nil {
		return nil
	}
	out := *objects
	out.Paths = slices.Concat(c.paths, own)
	for _, kind := range slices.Sorted(maps.Keys(c.extracted)) {
		out.Paths = append(out.Paths, c.extracted[kind]...)
	}
	if out.Paths == nil {
		c.Note(at, "not enforced for custom resources: neither imagePaths nor imageExtractors says where they name images")
		return nil
	}
	return &out
}
