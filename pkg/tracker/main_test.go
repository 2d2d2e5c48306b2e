package tracker_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	testkit.Must(tb, err)
}
