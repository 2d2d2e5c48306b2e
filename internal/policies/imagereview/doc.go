// Package imagereview implements the validator of the admission chain that has the images of a container reviewed by backends.
//
// It asks pullgate-policyd, which asks the backends, at the creation of a container: about the image of the container, and about the images
// that it mounts. All backends of its namespace must allow all of them. Backends see the images as the pod has them, the namespace, and the
// annotations that are meant for them.
//
// # Failures
//
// The validator expects exactly one answer of each backend about each image. A backend that did not answer pullgate-policyd,
// and every backend if no connection to pullgate-policyd can be made, has failed: the image is then admitted or denied as
// defaultAllow in the policy file says that pullgated has read, whatever pullgate-policyd says of it. Every other failure
// denies, because an image can cause it: a connection that is lost after the question was sent, a time-out of
// pullgate-policyd, an invalid answer, other policy files. So does a denial of a backend, an image, an annotation or a
// namespace that is not known, and a caller that ends the call.
package imagereview
