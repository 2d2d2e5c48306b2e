// Package policyfile implements what the readers of both dialects share: loading of files with all of their errors, keys, certificates and
// fields that are not supported.
package policyfile
