package criproxy_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
)

// Every client of these tests gets its buffers from the pool that spoils them; the servers have it by option.
func TestMain(m *testing.M) {
	experimental.SetDefaultBufferPool(&spoiling{BufferPool: mem.DefaultBufferPool()})
	goleak.VerifyTestMain(m)
}
