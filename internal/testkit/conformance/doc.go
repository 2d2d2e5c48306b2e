// Package conformance reads the table of decisions that every build must make, so that the same
// cases can be run against the library and over the socket of the daemon.
package conformance
