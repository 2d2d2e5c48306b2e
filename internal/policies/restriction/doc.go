// Package restriction implements PodRestriction: policies that are bound to namespaces and restrict the fields of pods.
//
// Load reads policy files into a Set, and Set.Judge compares a pod view with the policies that are bound to its
// namespace:
//
//  1. If the pod matches a bound policy with the mode Accept, it is admitted.
//  2. Otherwise, it must match each bound policy with the mode Drop.
//  3. A pod that no policy is bound to is admitted.
//
// The order of policies never changes the answer. A policy restricts nothing by default, changes no pod, calls nothing
// and reads no clock.
//
// # Fields that a source does not know
//
// A view can lack a field for two reasons. Fields lists which source carries which field. If the source never carries a
// field, Set.Unjudged reports it when the policies are loaded; it does not satisfy an Accept policy, and Options.Refuse
// decides about a Drop policy. If the source carries the field and does not know it for this pod, the field satisfies
// no policy.
package restriction
