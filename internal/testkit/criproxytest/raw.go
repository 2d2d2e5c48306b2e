package criproxytest

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of other messages
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
)

// A RawCodec sends and receives messages as they are, as *[]byte. It encodes and decodes other messages.
type RawCodec struct{}

// Name is empty, so that calls have the content type of a kubelet's, application/grpc without a subtype.
func (RawCodec) Name() string { return "" }

// Marshal returns the bytes themselves, not a copy.
func (RawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return encoding.GetCodecV2("proto").Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies the bytes.
func (RawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	*b = data.Materialize()
	return nil
}

// Serve serves calls of every service with the [RawCodec] and the limit of containerd, until Stop of the server.
func Serve(l net.Listener, handle grpc.StreamHandler, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, grpc.ForceServerCodecV2(RawCodec{}), grpc.UnknownServiceHandler(handle),
		grpc.MaxRecvMsgSize(limit))...)
	go func() { _ = server.Serve(l) }()
	return server
}

// CallRaw makes a unary call with a message that need not be one, and returns the answer as it came.
func CallRaw(ctx context.Context, conn *grpc.ClientConn, method string, message []byte) (answer []byte, err error) {
	err = conn.Invoke(ctx, method, &message, &answer, grpc.ForceCodecV2(RawCodec{}))
	return answer, err
}

// OverwriteReleasedBuffers gives every gRPC client that is created after the call an [OverwritingPool]. It is called
// once, by TestMain; servers get the pool as an option.
func OverwriteReleasedBuffers() {
	experimental.SetDefaultBufferPool(&OverwritingPool{BufferPool: mem.DefaultBufferPool()})
}

// Buffers returns the pool of OverwriteReleasedBuffers, and panics if that was not called.
func Buffers() *OverwritingPool {
	pool, ok := mem.DefaultBufferPool().(*OverwritingPool)
	if !ok {
		panic("criproxytest: call OverwriteReleasedBuffers in TestMain")
	}
	return pool
}

// An OverwritingPool overwrites buffers when they are released: a use after the release reads other bytes than were
// sent, and the race detector reports the write. It counts the buffers in use. Its methods may be called concurrently.
type OverwritingPool struct {
	mem.BufferPool
	inUse atomic.Int64
}

// Get returns a buffer and counts it.
func (p *OverwritingPool) Get(size int) *[]byte {
	b := p.BufferPool.Get(size)
	if counted(b) {
		p.inUse.Add(1)
	}
	return b
}

// Put overwrites a buffer and releases it.
func (p *OverwritingPool) Put(b *[]byte) {
	if counted(b) {
		p.inUse.Add(-1)
	}
	whole := (*b)[:cap(*b)]
	// copies, of which the race detector sees one write each, not one for each byte
	for done := copy(whole, "\xdb"); done < len(whole); {
		done += copy(whole[done:], whole[:done])
	}
	p.BufferPool.Put(b)
}

// counted reports whether gRPC releases a buffer: smaller ones are left to the garbage collector.
func counted(b *[]byte) bool { return !mem.IsBelowBufferPoolingThreshold(cap(*b)) }

// InUse waits until at most so many buffers are in use, half a minute at most, and returns how many are.
func (p *OverwritingPool) InUse(most int64) int64 {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && p.inUse.Load() > most; {
		time.Sleep(time.Millisecond)
	}
	return p.inUse.Load()
}

// ReportAdded makes two calls b.N times in turns, so that what else happens on the machine hits both, and reports their
// medians as p50-without-µs and p50-with-µs, and the difference as p50-added-µs.
func ReportAdded(b *testing.B, without, with func()) {
	b.Helper()
	took := make([][]time.Duration, 2)
	for range b.N {
		for i, call := range []func(){without, with} {
			began := time.Now()
			call()
			took[i] = append(took[i], time.Since(began))
		}
	}
	var medians []float64
	for _, all := range took {
		slices.Sort(all)
		medians = append(medians, float64(all[len(all)/2].Nanoseconds())/1000)
	}
	b.ReportMetric(medians[0], "p50-without-µs")
	b.ReportMetric(medians[1], "p50-with-µs")
	b.ReportMetric(medians[1]-medians[0], "p50-added-µs")
}
