// Package cluster is a Kubernetes cluster of one control plane and any number of nodes, made of real
// parts: etcd, kube-apiserver and kubelets of a chosen release, built from source.
//
// It has no scheduler, so pods name their node; no controllers; and no pod network, so pods use the host's or have
// none. A kubelet needs none of these to pull images.
//
// Close removes everything. The machine is not changed: where a kubelet's paths are fixed it sees files of its own, and
// it finds the kernel settings that it would otherwise write.
package cluster
