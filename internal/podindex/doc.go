// Package podindex implements the index by which the gate identifies the pod of a call.
//
// A kubelet's pre-check (ImageStatus) has no pod UID, but it has the pod's annotations with
// the value that the kubelet itself wrote under kubernetes.io/config.seen. The pod's sandbox
// has the same value, beside UID, namespace and name. An [Index] holds the sandboxes of the runtime
// and returns the pods that have a value.
//
// The index lives in memory only and is rebuilt from the runtime's list of sandboxes. A value
// that is not in the index identifies no pod; a value of two pods identifies both, and a caller must
// then allow only what each of them may use. Only config.seen is compared: a
// tenant can edit the other annotations of its pod, and those of a sandbox do not change.
package podindex
