//go:build race

package nodeenable_test

// raced reports whether the tests run under the race detector.
const raced = true
