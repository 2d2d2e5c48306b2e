//go:build !race

package criproxytest

// raced reports whether the tests run under the race detector.
const raced = false
