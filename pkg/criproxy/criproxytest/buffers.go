package criproxytest

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
)

// SpoilBuffers makes every client of gRPC that is made from now on take its buffers from a pool that overwrites them when they are
// given back. It is called once, by TestMain; servers get the pool as an option.
func SpoilBuffers() {
	experimental.SetDefaultBufferPool(&SpoilingPool{BufferPool: mem.DefaultBufferPool()})
}

// Buffers returns the pool of SpoilBuffers, and panics if that was not called.
func Buffers() *SpoilingPool {
	pool, ok := mem.DefaultBufferPool().(*SpoilingPool)
	if !ok {
		panic("criproxytest: the tests do not run on the pool that spoils what is given back: call SpoilBuffers in TestMain")
	}
	return pool
}

// A SpoilingPool is a pool whose buffers are overwritten when they are given back, so that whoever still
// reads one sees other bytes than were sent, and the race detector sees the write. It counts
// those which are out. Its methods may be called concurrently.
type SpoilingPool struct {
	mem.BufferPool
	out atomic.Int64
}

// Get returns a buffer and counts it.
func (s *SpoilingPool) Get(size int) *[]byte {
	b := s.BufferPool.Get(size)
	if counted(b) {
		s.out.Add(1)
	}
	return b
}

// Put overwrites a buffer and takes it back.
func (s *SpoilingPool) Put(b *[]byte) {
	if counted(b) {
		s.out.Add(-1)
	}
	whole := (*b)[:cap(*b)]
	for i := range whole {
		whole[i] = 0xdb
	}
	s.BufferPool.Put(b)
}

// counted tells the buffers that come back: smaller ones are left to the garbage collector.
func counted(b *[]byte) bool { return !mem.IsBelowBufferPoolingThreshold(cap(*b)) }

// Out returns how many buffers are out.
func (s *SpoilingPool) Out() int64 { return s.out.Load() }

// Settles waits up to five seconds until no more buffers are out than there should be, and returns how many are.
func (s *SpoilingPool) Settles(most int64) int64 {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && s.out.Load() > most; {
		time.Sleep(time.Millisecond)
	}
	return s.out.Load()
}
