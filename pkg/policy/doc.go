// Package policy implements the rules by which evidence leads to a verdict. It is pure: no clock, no I/O, no state. Names and
// values of fields are those of the kubelet.
package policy
