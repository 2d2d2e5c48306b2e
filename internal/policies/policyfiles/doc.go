// Package policyfiles lists the kinds of policy files. pullgated, pullgate-policyd and pullgatectl read the same folder, and a file of a
// kind that one of them does not know would make the whole folder invalid for it.
package policyfiles
