// Package podindex knows which pod is asking.
//
// A kubelet's pre-check (ImageStatus) names no pod, but it carries the pod's annotations with
// the value that the kubelet itself wrote under kubernetes.io/config.seen. The pod's sandbox
// carries the same value, beside UID, namespace and name. The [Index] joins the two: it is fed
// with the sandboxes that the runtime has, and answers "who sent this value?".
//
// The index lives in memory only and is rebuilt from the runtime's list of sandboxes. A value
// that it does not hold has no identity; a value that two pods share has two, and a caller must
// then let pass only what each of them may have. Nothing but config.seen is ever matched: a
// tenant can edit the other annotations of its pod, and those of a sandbox are frozen.
//
// The package imports nothing of the runtime's API, so that a program which is no proxy can use
// it as well.
package podindex
