// Package restriction implements PodRestriction: policies that are bound to namespaces and restrict the fields of pods.
//
// A pod is admitted if it matches any policy with the mode Accept that is bound to its namespace, or all of those with
// the mode Drop. The order of policies never changes the answer.
//
// Fields lists which source of views carries which field. A field that the source never carries is in Set.Unjudged,
// satisfies no Accept policy, and a Drop policy unless Options.Refuse is set. Other unknown fields satisfy no policy.
package restriction
