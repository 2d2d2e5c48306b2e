// Package api has the types of the API group fleet.pullgate.dev/v1alpha1, and the texts that the dispatcher and the pod
// that it starts on a node exchange. docs/helm/pullgate/crds has the schemas. Nothing here is generated: a test compares
// the types with the schemas.
package api
