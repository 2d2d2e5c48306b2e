// Package cluster is a Kubernetes cluster of one control plane and any number of nodes, made of real
// parts: etcd, kube-apiserver and kubelets of a chosen release, built from source.
//
// It is small on purpose. There is no scheduler, so pods name their node; no controller, so nothing
// is made on a pod's behalf; no pod network, so pods use the host's or have none. What a kubelet does with
// images needs none of them.
//
// Nothing of it outlives Close, and nothing of the machine is changed: a kubelet sees files of its own
// where its paths are fixed, and finds the kernel settings that it would else write.
package cluster
