package gate_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// Every client of these tests gets its buffers from the pool that overwrites freed buffers; the servers get it by
// option.
func TestMain(m *testing.M) {
	criproxytest.OverwriteReleasedBuffers()
	goleak.VerifyTestMain(m)
}
