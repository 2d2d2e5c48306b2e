// Package hook implements the client of hooks: validating webhooks that are asked about a pod, all at the same time.
//
// # Wire format
//
// A hook gets a POST of an AdmissionReview of admission.k8s.io/v1, as an API server sends it, and answers with one. The
// answer must have the UID of the request, and no patch.
//
// # Failures
//
// A hook is asked once, within its timeoutSeconds; again if it closes an idle connection. A redirect, another status
// than 2xx, an answer that is too large or is not valid, and no answer in time, are failures, about which the failure
// policy of the hook decides. Some cases deny whatever that is, because a tenant could cause them: see [ErrBusy] and
// [ErrTooLarge].
//
// After five time-outs in a row of a namespace, the failure policy decides at once for 30 seconds about its pods. While
// five namespaces have time-outs, two are enough. An answer about any pod ends this.
//
// # Memory
//
// All hooks share one budget for the bytes of requests, in which each namespace has a part.
package hook
