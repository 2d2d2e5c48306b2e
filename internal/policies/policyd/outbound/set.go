package outbound

import (
	"errors"
	"reflect"
	"slices"
	"sync"
)

// A Client asks one program, with a target T that is read from files.
type Client[T any] interface {
	Use(target T)
	// CloseIdle closes connections that are not in use, and reports whether no request is in flight.
	CloseIdle() (idle bool)
	Close()
}

// A Set has the clients of several programs. It may be used concurrently. The zero value has none.
type Set[S, T any, C Client[T]] struct {
	mu      sync.Mutex
	specs   []S
	clients []C // the slice is replaced, not modified
	removed []C // that are still asked
}

// Read reads the targets of specs. It returns the errors of all.
func Read[S, T any](specs []S, read func(S) (T, error)) ([]T, error) {
	targets, errs := make([]T, len(specs)), make([]error, len(specs))
	for i, spec := range specs {
		targets[i], errs[i] = read(spec)
	}
	return targets, errors.Join(errs...)
}

// Replace makes a set ask the programs of specs, with their targets. A client that the set has already is kept.
func (s *Set[S, T, C]) Replace(specs []S, targets []T, create func(S, T) C) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, oldSpecs := slices.Clone(s.clients), slices.Clone(s.specs)
	clients := make([]C, len(specs))
	for i, spec := range specs {
		known := slices.IndexFunc(oldSpecs, func(o S) bool { return reflect.DeepEqual(o, spec) })
		if known < 0 {
			clients[i] = create(spec, targets[i])
			continue
		}
		clients[i] = old[known]
		clients[i].Use(targets[i])
		old, oldSpecs = slices.Delete(old, known, known+1), slices.Delete(oldSpecs, known, known+1)
	}
	s.specs, s.clients = specs, clients
	s.removed = append(s.removed, old...)
	s.dropIdleLocked()
}

func (s *Set[S, T, C]) dropIdleLocked() {
	s.removed = slices.DeleteFunc(s.removed, func(c C) bool { return c.CloseIdle() })
}

// Reload reads all targets again. It returns the errors of those that are invalid; the last valid ones stay in use.
func (s *Set[S, T, C]) Reload(read func(S) (T, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropIdleLocked()
	var errs []error
	for i, c := range s.clients {
		t, err := read(s.specs[i])
		if errs = append(errs, err); err == nil {
			c.Use(t)
		}
	}
	return errors.Join(errs...)
}

// Clients returns the clients in the order of the specs. They can be asked until Close, also after Replace.
func (s *Set[S, T, C]) Clients() []C {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients
}

// Close closes all clients. The set must not be used afterwards.
func (s *Set[S, T, C]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range slices.Concat(s.clients, s.removed) {
		c.Close()
	}
}
