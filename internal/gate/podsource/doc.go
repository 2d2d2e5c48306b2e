// Package podsource implements the pod source: it returns the pods of one node according to the API server, and the
// credentials in their pull secrets.
//
// A [Source] watches the pods that are bound to the node and gets the Secrets that they name. It needs only the
// permissions that the Node authorizer gives the kubelet's own identity: list and watch of pods with the field selector
// spec.nodeName, and get of single Secrets that pods of the node name. It does not read service accounts, because
// admission copies their pull secrets into each pod.
//
// The source reads a Secret when a pod arrives, and again when the Secret is needed and its content is older than ten
// seconds. A kubelet watches each Secret, which costs one watch for each and shows a change a little earlier. Content
// that is up to ten seconds old is safe to use: the pod had these credentials, and a pull always uses those of the
// kubelet.
//
// Of a Secret the source keeps only the IDs of its credentials and their patterns; of a pod the images and pull
// policies, the names of its Secrets, and a hash of its annotations. All of it is bounded, whatever a tenant writes.
//
// The source never reports missing knowledge as absence: a pod that the watch has not reported yet is not found, and
// for a Secret that could not be read it returns [ErrNotKnown]. While the API server is unreachable, slow or denies
// requests, the source keeps its pods and Secrets.
package podsource
