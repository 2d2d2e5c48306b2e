package criproxy_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// Every client of these tests gets its buffers from the pool that overwrites them; servers get it as an option.
func TestMain(m *testing.M) {
	criproxytest.OverwriteReleasedBuffers()
	goleak.VerifyTestMain(m)
}
