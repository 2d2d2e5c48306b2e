package policyfiles

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

var validNamespace = regexp.MustCompile(`^[a-z0-9*?]([a-z0-9*?-]{0,61}[a-z0-9*?])?$`)

var customResource = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+/[a-z0-9*]+/[A-Z][A-Za-z0-9]*(\.[a-z]+)?$`)

// workloads are the kinds whose pods a rule for Pod covers. A rule for them alone is for no pod.
func workloads() []string {
	return []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicationController"}
}

func (c *kyvernoCompiler) scope(at *field.Path, r *kyvernoRule) (s requirement.Scope, forPods bool) {
	match := at.Child("match")
	if r.Match == nil {
		c.Required(match, "must select the kind Pod, as in any: [{resources: {kinds: [Pod]}}]")
		return s, false
	}
	s.Include = c.alternatives(match, r.Match, true)
	if r.Exclude != nil {
		s.Exclude = c.alternatives(at.Child("exclude"), r.Exclude, false)
	}
	switch {
	case len(s.Include) == 0:
		c.Note(match, "not enforced: the rule is not for pods; add Pod to kinds if it should be")
		return s, false
	case !s.Includes(""):
		c.Invalid(at.Child("exclude"), "all pods",
			"excludes every pod, so the rule is for none; exclude namespaces, or remove the rule")
	}
	return s, true
}

func (c *kyvernoCompiler) alternatives(at *field.Path, m *kyvernoMatch, needsKinds bool) [][]requirement.Namespaces {
	switch n := len(given("any all resources", m.Any != nil, m.All != nil, m.Resources != nil)); {
	case n == 0:
		c.Required(at, "must have any, all or resources")
		return nil
	case n > 1:
		c.Invalid(at, "any, all, resources", "must have one of them")
		return nil
	case m.Resources != nil:
		if ns, ok := c.resources(at.Child("resources"), m.Resources, needsKinds); ok {
			return [][]requirement.Namespaces{{ns}}
		}
		return nil
	case m.Any != nil:
		all, _ := c.filters(at.Child("any"), *m.Any, needsKinds)
		alternatives := make([][]requirement.Namespaces, len(all))
		for i, ns := range all {
			alternatives[i] = []requirement.Namespaces{ns}
		}
		return alternatives
	}
	all, complete := c.filters(at.Child("all"), *m.All, needsKinds)
	if !complete {
		return nil
	}
	return [][]requirement.Namespaces{all}
}

func (c *kyvernoCompiler) filters(at *field.Path, list []kyvernoFilter, needsKinds bool) (
	all []requirement.Namespaces, complete bool,
) {
	c.RequiredIf(len(list) == 0, at, "must have at least one entry")
	for i, f := range list {
		if f.Resources == nil {
			c.Required(at.Index(i).Child("resources"), "must have kinds or namespaces")
			continue
		}
		if ns, ok := c.resources(at.Index(i).Child("resources"), f.Resources, needsKinds); ok {
			all = append(all, ns)
		}
	}
	return all, len(all) == len(list) && len(all) > 0
}

func (c *kyvernoCompiler) resources(at *field.Path, r *kyvernoResources, needsKinds bool) (
	ns requirement.Namespaces, ok bool,
) {
	switch {
	case r.Kinds == nil && (needsKinds || r.Namespaces == nil):
		c.Required(at.Child("kinds"), "must have the kind Pod")
	case r.Kinds == nil:
		ok = true
	case len(*r.Kinds) == 0:
		c.Invalid(at.Child("kinds"), "[]", "must have at least one entry")
	default:
		ok = c.kinds(at.Child("kinds"), *r.Kinds)
	}
	if r.Namespaces == nil {
		return nil, ok
	}
	if len(*r.Namespaces) == 0 {
		c.Invalid(at.Child("namespaces"), "[]", "must have at least one entry; leave the field out to select all namespaces")
	}
	ns = requirement.Namespaces{}
	everything := false
	for i, name := range *r.Namespaces {
		if !validNamespace.MatchString(name) {
			c.Invalid(at.Child("namespaces").Index(i), name, "must be the name of a namespace, in which * and ? are wildcards")
		}
		ns = append(ns, requirement.Glob(name))
		everything = everything || name != "" && strings.Trim(name, "*") == ""
	}
	if everything {
		return nil, ok
	}
	return ns, ok
}

// kinds reports whether Pod is among the kinds. A custom resource has its group, or an extractor of its images.
func (c *kyvernoCompiler) kinds(at *field.Path, kinds []string) (pods bool) {
	for i, name := range kinds {
		_, extracted := c.extractors[name]
		kind := name[strings.LastIndex(name, "/")+1:]
		group := strings.TrimSuffix(strings.TrimSuffix(name, kind), "/")
		switch {
		case kind == "Pod" && slices.Contains([]string{"", "v1", "*", "*/v1", "*/*"}, group), name == "*":
			pods = true
		case slices.Contains(workloads(), kind):
			c.Note(at.Index(i), "no effect; a rule for Pod is for the pods of all workloads")
		case kind != "Pod" && (extracted || customResource.MatchString(name)):
			c.Note(at.Index(i), "not enforced: pullgate verifies only the images of pods")
		default:
			c.Invalid(at.Index(i), name, "must be Pod, or a custom resource with its group, as in tekton.dev/v1/Task")
		}
	}
	return pods
}
