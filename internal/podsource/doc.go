// Package podsource implements the pod source: the pods of one node according to the API server, and the credentials in their
// pull secrets.
//
// A [Source] watches the pods that are bound to the node and gets the Secrets that they name. It needs only the permissions that the
// Node authorizer gives the kubelet's own identity: list and watch of pods with the field selector spec.nodeName, and get of
// single Secrets that pods of the node name. It does not read service accounts, since admission copies their pull secrets
// into each pod.
//
// Secrets are read when a pod arrives, and again when they are needed and older than ten seconds. A kubelet watches each
// of them, which costs one watch for each Secret and shows a change a little earlier. To use a Secret as it was up to ten seconds ago is
// safe: the pod had these credentials, and a pull always uses those of the kubelet.
//
// Of a Secret the source keeps only the IDs of its credentials and their patterns; of a pod the images and pull policies, the names of
// its Secrets, and a hash of its annotations. All of it is bounded, whatever a tenant writes.
//
// The source never reports as absent what it does not know: a pod that the watch has not reported yet is not found, and a Secret
// that could not be read is [ErrNotKnown]. What is known stays known while the API server is unreachable, slow or denies requests.
package podsource
