package verify

import "github.com/containerd/platforms"

// SetPlatform sets the platform of the images, which is that of this machine otherwise.
func (v *Verifier) SetPlatform(p string) { v.platform = platforms.Only(platforms.MustParse(p)) }

// IsTimestamp is exported for a test of what costs nothing but time.
func IsTimestamp(data []byte) (bool, error) { return isTimestamp(data) }

// TakeDecoding takes the turn to decode a predicate, and returns how to give it back.
func (s *Service) TakeDecoding() (release func()) {
	if !s.decoding.TryAcquire(1) {
		panic("the turn is taken")
	}
	return func() { s.decoding.Release(1) }
}

// TakeMemory takes the memory for large documents, and returns how to give it back.
func (s *Service) TakeMemory() (release func()) {
	if !s.memory.TryAcquire(maxMemory) {
		panic("the memory is in use")
	}
	return func() { s.memory.Release(maxMemory) }
}
