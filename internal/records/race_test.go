//go:build race

package records_test

// raced says that the tests run under the race detector.
const raced = true
