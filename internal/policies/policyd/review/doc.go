// Package review implements the client of image review backends: it asks whether the images of a pod are allowed.
//
// # Wire format
//
// A review is a POST of an ImageReview of imagepolicy.k8s.io/v1alpha1, as kube-apiserver's plugin ImagePolicyWebhook
// sends it, to the server of a kubeconfig:
//
//	{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},"spec":{"containers":
//	 [{"image":"app:1"}],"annotations":{"x.image-policy.k8s.io/a":"T-7"},"namespace":"b"},"status":{"allowed":false}}
//
// The images are those of the pod, unchanged. The annotations are those whose key contains ".image-policy.k8s.io/".
// Nothing else is sent. The backend answers with a 2xx status and an ImageReview whose status says whether all images
// are allowed. As for the plugin, kind and apiVersion may be absent in the answer, and an absent status denies.
//
// # Failures
//
// An attempt takes at most 30 seconds. It is repeated, five times at most, after a connection that could not be made or
// was closed, the status 429, 500 or 504, and any other error with Retry-After. Everything else is a failure at once.
// After a failure the default of the backend decides, and the result is marked. A failure is never cached.
//
// Concurrent reviews of the same images, annotations and namespace are one request, which ends when no caller waits for
// it any more. At most eight requests are sent for one namespace at the same time.
package review
