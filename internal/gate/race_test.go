//go:build race

package gate_test

// raced says that the tests run under the race detector.
const raced = true
