// Package podfile implements Pods in files, and the views of them that the API server and a node would have.
// A [Pod] here is an object of the API that was read from a file; admission.Pod is its view.
//
// The views contain the defaults of the API server and the volume with the token of the service account. What only the
// node can find out, such as the user of an image, is unknown.
package podfile
