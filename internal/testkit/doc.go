// Package testkit implements what the tests of several packages share: the table of decisions that the library and the
// daemon both have to make, an authority that issues certificates, damage to a store, and commands for test scripts.
package testkit
