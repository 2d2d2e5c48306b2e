// Package restriction implements PodRestriction: policies that are bound to namespaces and restrict the fields of pods.
//
// A pod is admitted if it matches any policy with the mode Accept that is bound to its namespace, or all of those with
// the mode Drop. The order of policies never changes the answer.
//
// Fields lists which source of views carries which field. If the source never carries a field, Set.Unjudged reports it;
// it does not satisfy an Accept policy, and Options.Refuse decides about a Drop policy. A field that the source carries
// and does not know for this pod satisfies no policy.
package restriction
