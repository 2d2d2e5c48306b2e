// Package policyfiles implements the folder of policy files: it reads the folder and the files of every kind.
//
// # Layout
//
// A policy file is a regular file in the folder itself with the suffix .yaml, .yml or .json. It contains one document,
// and its apiVersion and kind, or for a file without a kind one of its fields, select the [Kind] that reads it. Files
// whose names begin with a dot are ignored; other files and folders are ignored and reported in Set.Ignored. A symbolic
// link with the name of a policy file is followed if it stays inside the folder. So the layout of a Kubernetes
// ConfigMap volume can be read: links to ..data/NAME, where ..data is a link that is replaced when the content changes.
//
// Folder and files must be owned by root, or by the user of the process, and must not be writable by others; [Paths]
// has exceptions. There are at most 1,000 policy files of at most 1 MiB, and 16 MiB in all.
//
// # All or nothing
//
// [Read] returns a [Set] of all files, or all errors of all files. A [Watcher] reads the folder again. It returns a
// changed content once it has been the same in two successive calls, because a file that is being written can be valid
// without its end.
//
// # Backends
//
// A file with the field imagePolicy names a [Backend] for image reviews. It contains the configuration of
// kube-apiserver's plugin ImagePolicyWebhook, which ignores the two other keys, match and includeImageVolumes. The
// kubeconfig itself is not opened here.
//
// # Rules about signatures
//
// Two dialects are read into a [requirement.Set]: ClusterPolicy of kyverno.io/v1 with verifyImages, also in the
// spelling of its proposal, and ClusterImagePolicy of policy.sigstore.dev/v1alpha1 and v1beta1. Reading is strict: a
// field of the dialect that is not supported is an error that says what to write instead. In both, patterns match
// normalised names; see [requirement.Pattern]. Logs, roots and authorities without a key or certificate are those of
// the trusted root.
//
// # Offline tests
//
// A [Tester] evaluates Pods in files against policy files, without a daemon and without a cluster. It uses the code by
// which pullgated judges.
package policyfiles
