package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// Limits of an object of a custom resource. The webhook limits its size.
const (
	maxCustomImages = 1000
	maxCustomDepth  = 64
)

// A CustomObject is an object of a custom resource in a request to the webhook.
type CustomObject struct {
	Kind                 requirement.Kind
	Namespace, Operation string
	JSON                 []byte
	Old                  []byte // the object before an update; nil if there is none
}

// A Custom is what rules say about an object of a custom resource.
type Custom struct {
	Unchanged bool // an update changes nothing that a rule reads
	// Findings are about what is not an image, and about conditions on the object.
	Findings []admission.Finding
	// Judge judges the images that the request brings. What cannot be judged is denied, because no node sees the object.
	// It is nil if there are too many.
	Judge func(context.Context) []admission.Finding
}

// compilePaths ignores paths with errors, which condition.Check reports: nothing is found by them.
func (r *Rules) compilePaths() {
	r.paths = map[string]*condition.Path{}
	for _, rule := range r.custom.Rules() {
		for _, p := range rule.Custom.Paths {
			if r.paths[p.Path] == nil {
				r.paths[p.Path], _ = condition.CompilePath(p.Path)
			}
		}
	}
}

// JudgeCustom returns what rules say about an object; nil if no rule is for its kind and namespace. It asks no
// registry.
func (s *Service) JudgeCustom(ctx context.Context, rules *Rules, o CustomObject) *Custom {
	applied := rules.custom.ForObject(o.Kind, o.Namespace)
	if len(applied) == 0 {
		return nil
	}
	if o.Old != nil && rules.unchanged(applied, o) {
		return &Custom{Unchanged: true}
	}
	now, err := decodeCustom(o.JSON)
	before, _ := decodeCustom(o.Old) // nil has no images, so that all of the new object are judged
	c := &Custom{}
	images := map[string][]*requirement.Rule{}
	for _, r := range applied {
		if err != nil {
			c.deny(r, err.Error())
			continue
		}
		found, old := rules.find(ctx, r, o.Kind, now), located{}
		if o.Old != nil {
			old = rules.find(ctx, r, o.Kind, before)
		}
		if found.problems.Len() == maxProblems { // there may be more
			old.problems = nil
		}
		for _, problem := range sets.List(found.failures.Union(found.problems.Difference(old.problems))) {
			c.deny(r, problem)
		}
		for image := range found.images.Difference(old.images) {
			images[image] = append(images[image], r)
		}
	}
	if len(images) > maxCustomImages {
		for _, r := range applied {
			c.deny(r, fmt.Sprintf("the object has %d images; must have at most %d", len(images), maxCustomImages))
		}
		return c
	}
	rulesFor := func(image string) requirement.ImageRules {
		name := imageref.New(image)
		a := requirement.Apply(images[image], name)
		// Pods that are made from it get the digest. The pods of an object without a namespace can be in any one.
		a.Pinned = o.Namespace != "" && rules.set.For(o.Namespace, name).AddsDigest()
		return a
	}
	all := slices.Sorted(maps.Keys(images))
	object := Object{Namespace: o.Namespace, Operation: o.Operation, Images: all, JSON: o.JSON, Custom: true}
	found, _ := judgeObject(ctx, rules, object, rulesFor) // no rule selects
	c.Findings = append(c.Findings, found...)
	namespace := o.Namespace // alone, because the object is large
	c.Judge = func(ctx context.Context) []admission.Finding {
		findings, _ := s.judge(ctx, rules, namespace, all, rulesFor) // nothing is undetermined by such rules
		return findings
	}
	return c
}

func (c *Custom) deny(r *requirement.Rule, why string) {
	c.Findings = append(c.Findings, r.Finding(admission.Deny, admission.FieldUnknown,
		fmt.Sprintf("%s is not met: %s", r, why)))
}

// decodeCustom returns an object. The error has no value of it.
func decodeCustom(data []byte) (object any, err error) {
	if _, depth := registry.Parts(data); depth > maxCustomDepth {
		return nil, fmt.Errorf("the object is nested more than %d deep", maxCustomDepth)
	}
	if json.Unmarshal(data, &object) != nil {
		return nil, errors.New("the object cannot be decoded")
	}
	return object, nil
}

// unchanged reports whether an update changes no field that paths of rules read, and nothing but metadata if they are
// written for another version.
func (r *Rules) unchanged(applied []*requirement.Rule, o CustomObject) bool {
	var of, now map[string]json.RawMessage
	if json.Unmarshal(o.Old, &of) != nil || json.Unmarshal(o.JSON, &now) != nil {
		return false
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(of)), maps.Keys(now))
	changed := func(name string) bool { return !bytes.Equal(of[name], now[name]) }
	for _, rule := range applied {
		if !rule.Custom.Names(o.Kind) && slices.ContainsFunc(names, func(name string) bool {
			return name != "metadata" && changed(name)
		}) {
			return false
		}
		for _, p := range rule.Custom.Paths {
			path := r.paths[p.Path]
			if path == nil || path.Fields() == nil || slices.ContainsFunc(path.Fields(), changed) {
				return false
			}
		}
	}
	return true
}

// A located has the images that paths find in an object, why something that they find is not one, and why a path could
// not be evaluated: then it is not known what is there.
type located struct{ images, problems, failures sets.Set[string] }

func (r *Rules) find(ctx context.Context, rule *requirement.Rule, kind requirement.Kind, object any) located {
	l := located{sets.New[string](), sets.New[string](), sets.New[string]()}
	if !rule.Custom.Names(kind) { // the rule of another policy has the API server send it
		l.failures.Insert(fmt.Sprintf("it does not name the version %s of the object, in which images can be elsewhere; "+
			"use a version that it names", safetext.ASCII(kind.Version, maxText)))
	}
	for _, p := range rule.Custom.Paths {
		if p.Kind != "" && p.Kind != kind.Kind {
			continue
		}
		path := r.paths[p.Path]
		if path == nil || ctx.Err() != nil {
			l.failures.Insert("path " + p.Path + " was not evaluated")
			continue
		}
		value, err := path.Find(object)
		if err != nil {
			l.failures.Insert("path " + p.Path + ": " + safetext.ASCII(err.Error(), maxText))
			continue
		}
		l.add(p, value)
	}
	return l
}

func (l located) add(p requirement.ImagePath, value any) {
	switch v := value.(type) {
	case nil:
	case string:
		l.image(v)
	case []any:
		for i, element := range v {
			l.element(p, strconv.Itoa(i), element)
		}
	case map[string]any: // its values are a list
		for _, key := range slices.Sorted(maps.Keys(v)) {
			l.element(p, key, v[key])
		}
	default:
		l.problem(p, "", "finds neither a list nor an object nor a text")
	}
}

func (l located) element(p requirement.ImagePath, key string, element any) {
	switch e := element.(type) {
	case nil:
	case string:
		l.image(e)
	case map[string]any:
		if name, ok := e[p.Key].(string); ok {
			key = name
		}
		switch image := e[p.Value].(type) {
		case nil:
		case string:
			l.image(image)
		default:
			l.problem(p, key, "has the field "+p.Value+", which must be a text")
		}
	default:
		l.problem(p, key, "must be an object")
	}
}

func (l located) image(name string) {
	if name != "" {
		l.images.Insert(name)
	}
}

// maxProblems bounds the sentences about a rule and an object, because a tenant chooses what is in the object.
const maxProblems = 10

func (l located) problem(p requirement.ImagePath, key, why string) {
	text := "path " + p.Path + " "
	if key != "" {
		text = fmt.Sprintf("element %q of path %s ", safetext.ASCII(key, maxText), p.Path)
	}
	if len(l.problems) < maxProblems {
		l.problems.Insert(text + why)
	}
}
