// Package gate implements the judged calls of the CRI, by which a pod gets to use an image: it decodes them, gets a
// verdict from the tracker and acts on it.
//
//	criproxy.Server ──▶ Gate ──▶ tracker: may this pod use this image?
//	                      └────▶ podindex: which pod is asking?
//
// [Gate.Handlers] is the table of these calls. For a pod that has to prove access, ImageStatus is answered as if the
// image were absent, so that the kubelet pulls it with the pod's credentials. A PullImage is recorded, or answered
// without the registry. A container on an image that its pod may not use is denied. The gate also reads the calls that
// create and remove pods, and keeps the tracker in sync with the runtime.
package gate
