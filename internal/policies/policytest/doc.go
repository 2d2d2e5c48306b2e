// Package policytest implements the comparison of Pods in files with policy files, without a daemon and without a cluster. It uses the
// code by which pullgated judges.
package policytest
