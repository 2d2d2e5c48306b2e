// Package criview implements the view of a pod that a kubelet's CRI messages give.
//
// The messages describe what will run: defaults are filled in, and values of the pod are merged into its containers.
// They do not carry every field of a pod, and no message says to which of the pod's lists a container belongs.
// Everything here is a function of the messages; a message of a client that is not a kubelet can have any content.
package criview
