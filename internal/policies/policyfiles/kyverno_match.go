package policyfiles

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

var validNamespace = regexp.MustCompile(`^[a-z0-9*?]([a-z0-9*?-]{0,61}[a-z0-9*?])?$`)

// workloads are the kinds whose pods a rule for Pod covers. A rule for them alone is for no pod.
func workloads() []string {
	return []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicationController"}
}

// A selection is what one filter selects: pods, objects of custom resources, or both.
type selection struct {
	namespaces requirement.Namespaces
	pods       bool
	kinds      []requirement.Kind // of custom resources
	anyKind    bool               // the filter has no kinds
}

// scope returns for which pods a rule is, and for which objects of custom resources; nil if it is for none.
func (c *kyvernoCompiler) scope(at *field.Path, r *kyvernoRule) (
	pods requirement.Scope, forPods bool, custom *requirement.Custom,
) {
	match := at.Child("match")
	if r.Match == nil {
		c.Required(match, "must select the kind Pod, as in any: [{resources: {kinds: [Pod]}}]")
		return pods, false, nil
	}
	include := c.alternatives(match, r.Match, true)
	var exclude [][]selection
	if r.Exclude != nil {
		exclude = c.alternatives(at.Child("exclude"), r.Exclude, false)
	}
	if objects := ofCustom(include, true); objects != nil {
		custom = &requirement.Custom{Include: objects, Exclude: ofCustom(exclude, false)}
	}
	pods.Include, pods.Exclude = ofPods(include), ofPods(exclude)
	switch {
	case len(pods.Include) == 0 && custom == nil:
		c.Note(match, "not enforced: the rule is not for pods; add Pod to kinds if it should be")
		return pods, false, nil
	case len(pods.Include) > 0 && !pods.Includes(""):
		c.Invalid(at.Child("exclude"), "all pods",
			"excludes every pod, so the rule is for none; exclude namespaces, or remove the rule")
	case r.Exclude != nil && custom != nil && !custom.SelectsAny():
		c.Invalid(at.Child("exclude"), "all custom resources",
			"excludes every object, so the rule is for none; exclude namespaces, or remove the kinds from match")
	}
	return pods, len(pods.Include) > 0, custom
}

func ofPods(list [][]selection) (alternatives [][]requirement.Namespaces) {
	for _, all := range list {
		var namespaces []requirement.Namespaces
		for _, s := range all {
			if s.pods {
				namespaces = append(namespaces, s.namespaces)
			}
		}
		if len(namespaces) == len(all) {
			alternatives = append(alternatives, namespaces)
		}
	}
	return alternatives
}

// ofCustom returns the alternatives that select custom resources. named leaves out those that name none of them.
func ofCustom(list [][]selection, named bool) (alternatives [][]requirement.Objects) {
	for _, all := range list {
		names := false
		var objects []requirement.Objects
		for _, s := range all {
			if s.kinds != nil || s.anyKind {
				objects = append(objects, requirement.Objects{Kinds: s.kinds, Namespaces: s.namespaces})
			}
			names = names || slices.ContainsFunc(s.kinds, isNamed)
		}
		if len(objects) == len(all) && (names || !named) {
			alternatives = append(alternatives, objects)
		}
	}
	return alternatives
}

func (c *kyvernoCompiler) alternatives(at *field.Path, m *kyvernoMatch, needsKinds bool) [][]selection {
	switch n := len(given("any all resources", m.Any != nil, m.All != nil, m.Resources != nil)); {
	case n == 0:
		c.Required(at, "must have any, all or resources")
		return nil
	case n > 1:
		c.Invalid(at, "any, all, resources", "must have one of them")
		return nil
	case m.Resources != nil:
		return [][]selection{{c.resources(at.Child("resources"), m.Resources, needsKinds)}}
	case m.Any != nil:
		all := c.filters(at.Child("any"), *m.Any, needsKinds)
		alternatives := make([][]selection, len(all))
		for i, s := range all {
			alternatives[i] = []selection{s}
		}
		return alternatives
	}
	return [][]selection{c.filters(at.Child("all"), *m.All, needsKinds)}
}

func (c *kyvernoCompiler) filters(at *field.Path, list []kyvernoFilter, needsKinds bool) (all []selection) {
	c.RequiredIf(len(list) == 0, at, "must have at least one entry")
	for i, f := range list {
		if f.Resources == nil {
			c.Required(at.Index(i).Child("resources"), "must have kinds or namespaces")
			continue
		}
		all = append(all, c.resources(at.Index(i).Child("resources"), f.Resources, needsKinds))
	}
	return all
}

func (c *kyvernoCompiler) resources(at *field.Path, r *kyvernoResources, needsKinds bool) (s selection) {
	switch {
	case r.Kinds == nil && (needsKinds || r.Namespaces == nil):
		c.Required(at.Child("kinds"), "must have the kind Pod")
	case r.Kinds == nil:
		s.pods, s.anyKind = true, true
	case len(*r.Kinds) == 0:
		c.Invalid(at.Child("kinds"), "[]", "must have at least one entry")
	default:
		s.pods, s.kinds = c.kinds(at.Child("kinds"), *r.Kinds, needsKinds)
	}
	if r.Namespaces == nil {
		return s
	}
	if len(*r.Namespaces) == 0 {
		c.Invalid(at.Child("namespaces"), "[]", "must have at least one entry; leave the field out to select all namespaces")
	}
	s.namespaces = requirement.Namespaces{}
	everything := false
	for i, name := range *r.Namespaces {
		if !validNamespace.MatchString(name) {
			c.Invalid(at.Child("namespaces").Index(i), name, "must be the name of a namespace, in which * and ? are wildcards")
		}
		s.namespaces = append(s.namespaces, requirement.Glob(name))
		everything = everything || name != "" && strings.Trim(name, "*") == ""
	}
	if everything {
		s.namespaces = nil
	}
	return s
}

// kinds reports whether Pod is among the kinds, and returns those of custom resources.
func (c *kyvernoCompiler) kinds(at *field.Path, names []string, match bool) (pods bool, custom []requirement.Kind) {
	for i, name := range names {
		kind := name[strings.LastIndex(name, "/")+1:]
		group := strings.TrimSuffix(strings.TrimSuffix(name, kind), "/")
		k, subresource, ok := customKind(name)
		switch {
		case kind == "Pod" && slices.Contains([]string{"", "v1", "*", "*/v1", "*/*"}, group):
			pods = true
		case name == "*" || name == "*/*" || name == "*/*/*":
			pods, custom = true, append(custom, requirement.Kind{Group: "*", Version: "*", Kind: "*"})
		case slices.Contains(workloads(), kind):
			c.Note(at.Index(i), "no effect; a rule for Pod is for the pods of all workloads")
		case !ok || k.Kind == "Pod" || k.Group == "*" && !c.named(k.Kind):
			c.Invalid(at.Index(i), name, "must be Pod, or a custom resource with its group, as in tekton.dev/v1/Task")
		case !isNamed(k):
			c.Invalid(at.Index(i), name, "must have the group or the kind without wildcards, as in tekton.dev/*/*")
		case subresource:
			c.Note(at.Index(i), "no effect; subresources are not judged")
		case !match && k.Version != "*":
			c.Invalid(at.Index(i), name,
				"must have the version *, as in tekton.dev/*/Task, because an object can be sent in any version")
		case match && !c.hasPaths && c.extracted[k.Kind] == nil:
			c.Note(at.Index(i), "not enforced: neither imagePaths nor imageExtractors says where it names images")
		default:
			c.NoteIf(match, at.Index(i), notAtNodes)
			custom = append(custom, k)
		}
	}
	return pods, custom
}
