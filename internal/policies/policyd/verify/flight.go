package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const (
	// maxVerifications is how many verifications are done at the same time; maxPerRegistry is how many of them are of
	// one registry.
	maxVerifications, maxPerRegistry = 24, 8
	// maxMemory bounds the memory for large documents of registries together, and memoryPerRegistry that for those of
	// one registry. Small documents need none of it.
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
	credential                     admission.Login
	list                           bool
	webhook                        bool // the image is resolved, and results are cached
}

// A group is the verifications in flight, with the registries as tenants.
type group = inflight.Group[key, requirement.Report]

func (s *Service) newGroup() *group {
	return inflight.New[key, requirement.Report](inflight.Limits{
		PerTenant: maxPerRegistry, Total: maxVerifications, TotalSize: maxFlights, TenantMemory: memoryPerRegistry, Wait: waitLimit,
	}, func(err error) {
		s.count(Failed)
		if p, ok := errors.AsType[*inflight.PanicError](err); ok && s.options.OnPanic != nil {
			s.options.OnPanic(p.Value, p.Stack)
		}
	})
}

// share returns the result of a verification, which callers with the same key share. If all of them leave, it is
// canceled; one of the webhook goes on, so that its result is known when the request is repeated.
func (s *Service) share(ctx context.Context, k key, work func(context.Context) (requirement.Report, error)) (requirement.Report, error) {
	if err := ctx.Err(); err != nil {
		return requirement.Report{}, err
	}
	w := inflight.Work[requirement.Report]{Tenant: registryOf(k.name.Repository()), Size: 1}
	if k.webhook {
		w.Ending = inflight.Continue
	}
	w.Run = func(ctx context.Context, turn inflight.Turn[requirement.Report]) (requirement.Report, error) {
		// Without its memory a verification says nothing about the image: it must not end like one that a registry
		// delays.
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		reservation := registry.NewReservation(memoryPerRegistry, turn.Memory, s.memory)
		reservation.Busy = func() { giveUp(fmt.Errorf("%w: their large documents take all memory for them", ErrBusy)) }
		defer reservation.Release()
		return work(registry.WithReservation(ctx, reservation))
	}
	report, err := s.inFlight.Do(ctx, k, w)
	switch _, panicked := errors.AsType[*inflight.PanicError](err); {
	case panicked:
		err = ErrPanic
	case errors.Is(err, inflight.ErrNoTurn):
		err = fmt.Errorf("%w: waited %v for those of %s and of other registries", ErrBusy, waitLimit, w.Tenant)
	case errors.Is(err, inflight.ErrFull), errors.Is(err, inflight.ErrClosed):
		err = ErrBusy
	}
	return report, err
}
