package verify

// IsTimestamp is exported for a test of what costs nothing but time.
func IsTimestamp(data []byte) (bool, error) { return isTimestamp(data) }

// TakeMemory takes the memory for large documents, and returns how to give it back.
func (s *Service) TakeMemory() (release func()) {
	if !s.memory.TryAcquire(maxMemory) {
		panic("the memory is in use")
	}
	return func() { s.memory.Release(maxMemory) }
}
