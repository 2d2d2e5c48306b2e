package signature

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/verification"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const (
	// maxVerifications is how many verifications are done at the same time; maxPerRegistry is how many of them are of one
	// registry.
	maxVerifications, maxPerRegistry = 24, 8
	// maxMemory bounds the memory for large documents of registries together, and memoryPerRegistry that for those of one
	// registry. Small documents need none of it.
	maxMemory, memoryPerRegistry = 96 << 20, 48 << 20
	// maxFlights bounds those that wait for a turn too.
	maxFlights = 1024
	// waitLimit bounds the wait for a turn. With the longest verification it is shorter than pullgated waits.
	waitLimit = 10 * time.Second
)

// A key identifies a verification.
type key struct {
	rules                          *Rules
	name                           imageref.Ref
	imageID, digests, requirements string
	credential                     verification.Credential
	list                           bool
	webhook                        bool // the image is resolved, and results are cached
}

// A flight is a verification that callers wait for. Service.mu guards waiters.
type flight struct {
	waiters int
	cancel  context.CancelFunc
	done    chan struct{} // closed when report and err are set
	report  verification.Report
	err     error
}

// A queue is for the verifications of one registry. Service.mu guards users.
type queue struct {
	turns  chan struct{}
	memory *semaphore.Weighted
	users  int
}

// share returns the result of a verification, which callers with the same key share. If all of them leave, it is canceled; one of the webhook
// goes on, so that its result is known when the request is repeated.
func (s *Service) share(ctx context.Context, k key, work func(context.Context) (verification.Report, error)) (verification.Report, error) {
	if err := ctx.Err(); err != nil {
		return verification.Report{}, err
	}
	s.mu.Lock()
	f := s.flights[k]
	if f == nil && (s.closed || len(s.flights) >= maxFlights) {
		s.mu.Unlock()
		s.count(Failed)
		return verification.Report{}, ErrBusy
	}
	if f == nil {
		f = s.startLocked(k, work) //nolint:contextcheck // other callers can wait for it when this one has left
	}
	f.waiters++
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.report, f.err
	case <-ctx.Done():
		s.leave(k, f)
		return verification.Report{}, ctx.Err()
	}
}

func (s *Service) startLocked(k key, work func(context.Context) (verification.Report, error)) *flight {
	ctx, cancel := context.WithCancel(s.base)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	s.flights[k] = f
	s.running.Go(func() {
		defer cancel()
		f.report, f.err = s.fly(ctx, k, work)
		if f.err != nil {
			s.count(Failed)
		}
		s.mu.Lock()
		if s.flights[k] == f {
			delete(s.flights, k)
		}
		s.mu.Unlock()
		close(f.done)
	})
	return f
}

func (s *Service) leave(k key, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiters--; f.waiters == 0 && !k.webhook && s.flights[k] == f {
		f.cancel()
		delete(s.flights, k) // no other caller may join it
	}
}

// fly waits for a turn and does the work.
func (s *Service) fly(ctx context.Context, k key, work func(context.Context) (verification.Report, error)) (report verification.Report, err error) {
	defer func() {
		if value := recover(); value != nil {
			report, err = verification.Report{}, ErrPanic
			if s.options.OnPanic != nil {
				s.options.OnPanic(value, debug.Stack())
			}
		}
	}()
	memory, end, err := s.turn(ctx, registryOf(k.name))
	if err != nil {
		return verification.Report{}, err
	}
	defer end()
	// Without its memory a verification says nothing about the image: it must not end like one that a registry delays.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	reservation := registry.NewReservation(memoryPerRegistry, memory, s.memory)
	reservation.Busy = func() { giveUp(fmt.Errorf("%w: their large documents take all memory for them", ErrBusy)) }
	defer reservation.Release()
	return work(registry.WithReservation(ctx, reservation))
}

// turn waits until a verification of a registry may begin; end says that it has ended. memory is for those of the registry.
func (s *Service) turn(ctx context.Context, registry string) (memory *semaphore.Weighted, end func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	s.mu.Lock()
	q := s.queues[registry]
	if q == nil {
		q = &queue{turns: make(chan struct{}, maxPerRegistry), memory: semaphore.NewWeighted(memoryPerRegistry)}
		s.queues[registry] = q
	}
	q.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(s.queues, registry)
		}
	}
	// Those of one registry come first, so that no registry waits for more than its share of all.
	for i, turns := range []chan struct{}{q.turns, s.turns} {
		select {
		case turns <- struct{}{}:
		case <-waiting.Done():
			if i > 0 {
				<-q.turns
			}
			leave()
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, nil, ctx.Err()
			}
			return nil, nil, fmt.Errorf("%w: waited %v for those of %s and of other registries", ErrBusy, waitLimit, registry)
		}
	}
	return q.memory, func() { <-s.turns; <-q.turns; leave() }, nil
}
