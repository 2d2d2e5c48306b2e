// Package apiview implements the view of a Pod of the Kubernetes API. It knows every field of the view except the groups of volumes, the
// labels of the namespace, and what only the image says, such as its user.
package apiview
