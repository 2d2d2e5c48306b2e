// Package apiserver implements GET requests to a Kubernetes API server with the identity of a kubeconfig, as kubectl
// reads it: with client certificates, tokens and exec plugins.
package apiserver
