// Package policy implements the rules by which evidence leads to a verdict. It is pure: no clock, no I/O, no state.
// Names and values of fields are those of the kubelet.
//
// A policy here is a verification policy: it says which images need a proof of access. Policies about pods, such as
// restrictions and required signatures, are not in this package.
package policy
