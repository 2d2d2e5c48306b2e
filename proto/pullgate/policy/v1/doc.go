// Package policyv1 is the API between pullgated and pullgate-policyd, generated from policy.proto, which describes what
// each call promises. pullgated uses it through internal/policies/policyclient. `go generate` of the admin API writes
// this one too.
package policyv1
