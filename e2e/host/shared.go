package host

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Shared are parts that the tests of a package share, by their names. The first test that asks for one starts it.
type Shared[T interface{ Close() error }] struct {
	start   func(name string) (T, error)
	mu      sync.Mutex
	started map[string]func() (T, error)
}

// NewShared returns parts that start starts.
func NewShared[T interface{ Close() error }](start func(name string) (T, error)) *Shared[T] {
	return &Shared[T]{start: start, started: map[string]func() (T, error){}}
}

// Get returns the part with a name.
func (s *Shared[T]) Get(name string) (T, error) {
	s.mu.Lock()
	f := s.started[name]
	if f == nil {
		f = sync.OnceValues(func() (T, error) { return s.start(name) })
		s.started[name] = f
	}
	s.mu.Unlock()
	return f()
}

// Main runs the tests and closes all parts. It returns the exit code.
func (s *Shared[T]) Main(m *testing.M) int {
	code := m.Run()
	for name, f := range s.started {
		part, err := f()
		if err != nil {
			continue // the tests have failed with it
		}
		if err := part.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			code = 1
		}
	}
	return code
}
