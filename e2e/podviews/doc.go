// Package podviews compares the two views of a pod: the one that criview builds from what a kubelet sends to a runtime,
// and the one that apiview builds from the Pod of the API server. It generates the pods, keeps what the kubelet sends,
// and counts how often each field was compared.
package podviews
