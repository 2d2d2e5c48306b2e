package testkit

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

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

// Equal makes the test fail if got is not want.
func Equal[T any](tb testing.TB, what string, got, want T) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
