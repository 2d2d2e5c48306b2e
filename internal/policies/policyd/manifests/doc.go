// Package manifests implements the Kubernetes objects that a cluster needs to use pullgate-policyd as its admission webhook, as YAML
// documents.
//
// In a cluster, pullgate-policyd is a Deployment behind a Service:
//
//	Namespace, ServiceAccount, ClusterRole and ClusterRoleBinding (only if namespaces are watched),
//	ConfigMap with the configuration, ConfigMap with the policy files,
//	Deployment, PodDisruptionBudget, Service, ValidatingWebhookConfiguration
//
// Outside of a cluster it has a URL, and the only document is the ValidatingWebhookConfiguration, in the form that kube-apiserver reads
// from a folder of its own disk (KEP-5793).
package manifests
