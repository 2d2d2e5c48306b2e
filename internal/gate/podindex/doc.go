// Package podindex implements the index by which the gate identifies the pod of a call.
//
// A kubelet's pre-check (ImageStatus) has no pod UID. It has the pod's annotations, including the value that the
// kubelet itself wrote under kubernetes.io/config.seen. The pod's sandbox has the same value, and UID, namespace and
// name. An [Index] holds the sandboxes of the runtime and returns the pods that have a value.
//
// The index is only in memory; it is rebuilt from the runtime's list of sandboxes. A value that is not in the index
// identifies no pod. A value of two pods identifies both; a caller must then allow only what each of them may use. The
// index compares only config.seen: a tenant can edit the other annotations of its pod, and the annotations of a sandbox
// do not change.
package podindex
