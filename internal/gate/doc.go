// Package gate answers the calls of the CRI in which a pod comes to use an image: it decodes them, asks the tracker for a verdict
// and acts on it.
//
//	criproxy.Server ──▶ Gate ──▶ tracker: may this pod use this image?
//	                      └────▶ podindex: which pod is asking?
//
// [Gate.Handlers] is the table of these calls. ImageStatus of a pod that has to prove access is answered as if the image were
// absent, so that the kubelet pulls it with the pod's credentials; a PullImage is recorded, or answered without the registry; a
// container that is about to start on an image which its pod may not use is refused. The gate also reads the calls that tell
// which pods there are, and keeps the tracker in step with the runtime.
package gate
