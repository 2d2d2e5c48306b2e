// Package policy judges facts. It is pure: no clock, no I/O, no memory. Field names and values are
// the kubelet's own, so that one node has one vocabulary.
package policy
