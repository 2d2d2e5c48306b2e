package criproxytest

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
)

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
