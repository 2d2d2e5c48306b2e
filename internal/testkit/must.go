package testkit

import "testing"

// Must ends the test if one of the errors is not nil.
func Must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// Value returns the result of a call, Value(call())(t), whose error ends the test.
func Value[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		Must(tb, err)
		return v
	}
}
