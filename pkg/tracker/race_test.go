//go:build race

package tracker_test

// raced says that the tests run under the race detector.
const raced = true
