//go:build !race

package webhook_test

// raced reports whether the tests run under the race detector.
const raced = false
