// Package sigstoretest makes signatures for tests: with keys, and with certificates of an authority of the test. It is
// for tests only.
package sigstoretest
