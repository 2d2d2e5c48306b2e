//go:build race

package restriction_test

// raced reports whether the tests run under the race detector.
const raced = true
