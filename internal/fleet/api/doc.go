// Package api has the types of the API group fleet.pullgate.dev/v1alpha1, and the texts that the dispatcher exchanges
// with the pod that it makes on a node. docs/helm/pullgate/crds has the schemas. Nothing here is generated: a test
// compares the types with the schemas.
package api
