// Package pullsecrets implements an explanation of the pull secrets of a pod: which of them a kubelet would send for
// which image, and what is wrong with the others. It reads only what the tenant of the pod may read.
//
// Secrets are matched to images as kubelets match them, by pkg/credential. Nothing of their content is in a report.
// What may not be read is reported as not known.
package pullsecrets
