// Package webhook implements the HTTPS endpoints of pullgate-policyd, as an http.Handler.
//
//	/admission/validate  admission.k8s.io/v1 AdmissionReview: judges pods and pod templates
//	/admission/mutate    admission.k8s.io/v1 AdmissionReview: adds digests to the images of pods
//	/imagereview         imagepolicy.k8s.io/v1alpha1 ImageReview: a backend for image reviews
//
// # Admission
//
// CREATE and UPDATE are judged, everything else is admitted:
//
//	pods                       restrictions, then signatures, then image reviews of all images
//	pods/ephemeralcontainers   the same for the ephemeral containers
//	built-in kinds with a pod template, and custom resources of Options.Templates
//	                           restrictions and signatures; the pods are judged again, and only their images are reviewed
//	custom resources that rules about signatures name
//	                           signatures of the images that the rules find
//
// The node enforces in any case; the webhook reports early, with the chain, the files and the texts of the node.
//
//   - An update is admitted if it changes nothing that a policy judges: it can remove finalizers from an object that
//     violates a newer policy. A change of labels or annotations of a pod is denied only for a rule that the pod met.
//   - A mirror pod is admitted, because a denial hides a pod that runs. No kubelet runs a pod of the API server with
//     the annotation kubernetes.io/config.mirror, so that it exempts nothing.
//   - An object that cannot be decoded or exceeds a limit is denied, and so is a request whose judgement panics.
//
// No answer and no Event contains a value of the object other than those in the sentence of a denial, and the names of
// images that got digests.
package webhook
