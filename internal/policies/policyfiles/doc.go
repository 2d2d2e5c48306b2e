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
// kube-apiserver's plugin ImagePolicyWebhook; the plugin ignores the two other keys.
//
//	imagePolicy:
//	  kubeConfigFile: /etc/pullgate/scanner.kubeconfig # an absolute path; address and credentials of the backend
//	  allowTTL: 3600                                   # seconds; 0 is the default 3600, -1 is no cache
//	  denyTTL: 30                                      # seconds; 0 is the default 30, -1 is no cache
//	  retryBackoff: 500                                # milliseconds; 0 is the default 500, -1 is no wait
//	  defaultAllow: false                              # whether images are admitted if the backend does not answer
//	match:
//	  namespaces: [team-a]                             # absent means all
//	includeImageVolumes: true                          # the default
//
// The defaults are not those of the plugin: it denies if defaultAllow is absent, and caches an allow for 5 minutes at
// most 30. The kubeconfig itself is not opened here.
//
// # Rules about signatures
//
// Two dialects are read into a [requirement.Set]: ClusterPolicy of kyverno.io/v1 with verifyImages, and
// ClusterImagePolicy of policy.sigstore.dev/v1alpha1 and v1beta1. Reading is strict. A field of the dialect that is not
// supported is an error that says what to write instead. In both, patterns match normalised names, and one without a
// tag matches all tags; see [requirement.Pattern]. Logs, roots and authorities without a key or certificate are those
// of the trusted root.
//
// The spelling of the proposal of Kyverno's rules is read too: imageVerify, which can be a mapping or a list, for
// verifyImages; images for imageReferences; digestVerify and digestMutate for verifyDigest and mutateDigest;
// staticKey.key for keys.publicKeys; attestors for a nested attestor. Differences from Kyverno that do not show as
// errors are:
//
//   - A policy without validationFailureAction enforces.
//   - verifyDigest is false if it is absent, because a signature is bound to the image that runs.
//   - keyless needs both an issuer and a subject.
//   - A static key without rekor needs no log entry.
//
// Differences from policy-controller that do not show as errors are:
//
//   - Regular expressions match the whole issuer or subject.
//   - Signatures are found in each form that cosign writes, whatever signatureFormat says.
//   - URLs are not asked.
//
// # Offline tests
//
// A [Tester] evaluates Pods in files against policy files, without a daemon and without a cluster. It uses the code by
// which pullgated judges.
package policyfiles
