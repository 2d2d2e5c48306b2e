//go:build !race

package testkit

// Raced reports whether the tests run under the race detector.
const Raced = false
