// Package policyfiles implements the folder of policy files: it reads the folder and the files of every kind.
//
// # Layout
//
// A policy file is a regular file in the folder itself with the suffix .yaml, .yml or .json. It contains one document,
// whose kind selects what reads it. Others are ignored, and those without a dot at the start are in Set.Ignored.
// A symbolic link is followed if it stays inside the folder, as in a volume of a ConfigMap, whose link ..data is
// replaced when the content changes.
//
// Folder and files must be owned by root, or by the user of the process, and must not be writable by others; [Paths]
// has exceptions. There are at most 1,000 policy files of at most 1 MiB, and 16 MiB in all.
//
// [Read] returns a [Set] of all files, or all errors of all files. A [Watcher] waits until a content is the same in two
// successive calls, because a file that is being written can be valid without its end.
//
// # Kinds
//
// A file with the field imagePolicy, which has the configuration of kube-apiserver's plugin ImagePolicyWebhook, names a
// [Backend] for image reviews. Two dialects are read into a [requirement.Set]: ClusterPolicy of kyverno.io/v1 with
// verifyImages, also in the spelling of its proposal, and ClusterImagePolicy of policy.sigstore.dev. A field of them
// that is not supported is an error that says what to write instead. A rule for custom resources, which only a webhook
// judges, is a note; see [CustomRequirements].
//
// A [Tester] evaluates Pods in files against policy files, without a daemon, by the code with which pullgated judges.
package policyfiles
