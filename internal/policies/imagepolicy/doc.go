// Package imagepolicy implements the reading of policy files that name a backend for image reviews.
//
// A file has the configuration of kube-apiserver's plugin ImagePolicyWebhook under the key imagePolicy. The plugin ignores the two keys that
// may stand beside it.
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
// The defaults are not those of the plugin: it denies if defaultAllow is absent, and caches an allow for 5 minutes at most 30.
//
// The package reads no other file: it does not open the kubeconfig.
package imagepolicy
