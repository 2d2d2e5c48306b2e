// Package podsource is the pod source: what the API server says of the pods of one node, and which
// credentials their pull secrets hold.
//
// A [Source] watches the pods that are bound to the node and gets the Secrets that they name. It
// needs no more than what the Node authorizer gives the kubelet's own identity: list and watch of
// pods with the field selector spec.nodeName, and get of single Secrets that pods of the node name.
// Service accounts are not read, since admission copies their pull secrets into each pod.
//
// Secrets are got when a pod arrives, and again when they are asked for and older than ten seconds;
// a kubelet watches each of them, which costs one watch a Secret and tells of a change a little
// earlier. A Secret that changed in between is on the safe side: what is judged then is a credential
// that the pod had ten seconds ago, and a pull always uses what the kubelet has.
//
// Nothing of a Secret is kept but the IDs of its credentials and what they are for; of a pod the
// containers' names, images and pull policies, the names of its Secrets, and a hash of its
// annotations. Both are bounded, whatever a tenant writes into them.
//
// What is not known is never told as something that is not there: a pod that the watch has not
// brought yet is not found, and a Secret that could not be read is [ErrNotKnown]. What is known stays
// known while the API server is away, forbids or is slow.
package podsource
