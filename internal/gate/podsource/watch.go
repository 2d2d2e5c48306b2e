package podsource

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	listTimeout = 30 * time.Second // bounds one list of the node's pods
	// watchTimeout bounds the wait for the answer to a watch: some proxies withhold it until the first bookmark, a minute.
	watchTimeout = 90 * time.Second
	healthy      = 2 * time.Minute // the time without a failure after which the back-off is reset
)

var errSlow = errors.New("podsource: the API server does not respond")

// pause returns the back-off between attempts, with jitter because thousands of nodes may connect at the same time.
func pause() wait.Backoff {
	return wait.Backoff{Duration: 500 * time.Millisecond, Cap: 15 * time.Second, Steps: 20, Factor: 2, Jitter: 1}
}

func (s *Source) noteSynced(log klog.Logger) (watch int) {
	s.mu.Lock()
	first := s.watch == 0 || s.logged
	s.up, s.logged = true, false
	s.watch++
	watch = s.watch
	s.mu.Unlock()
	if first {
		log.Info("Pod source synced")
	}
	return watch
}

// noteWatchEnded notes that a watch has ended, which is not an error; often the next one has already begun.
func (s *Source) noteWatchEnded(watch int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch == watch {
		s.up = false
	}
}

func (s *Source) noteError(ctx context.Context, log klog.Logger, err error) {
	if ctx.Err() != nil {
		return // Run is ending
	}
	s.mu.Lock()
	first := !s.logged
	s.up, s.logged = false, true
	s.mu.Unlock()
	s.options.Failed(reasonOf(err))
	if first {
		log.Info("Failed to sync the pod source: falling back to the pods known so far", "reason", reasonOf(err), "err", err)
	}
}

type podsOf struct {
	*cache.ListWatch
	source *Source
	log    klog.Logger
}

// IsWatchListSemanticsUnSupported prevents a streamed first list, which an API server before 1.27 would never end.
func (p *podsOf) IsWatchListSemanticsUnSupported() bool { return true }

//nolint:ireturn // what client-go wants
func (p *podsOf) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := p.ListWatch.ListWithContext(bounded, o)
	if err != nil {
		p.source.noteError(ctx, p.log, err)
	}
	return list, err
}

//nolint:ireturn // what client-go wants
func (p *podsOf) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	bounded, cancel := context.WithCancelCause(ctx)
	slow := time.AfterFunc(watchTimeout, func() { cancel(errSlow) })
	w, err := p.ListWatch.WatchWithContext(bounded, o)
	slow.Stop()
	if err != nil {
		if errors.Is(context.Cause(bounded), errSlow) {
			err = fmt.Errorf("%w: %w", errSlow, err)
		}
		cancel(nil)
		p.source.noteError(ctx, p.log, err)
		return nil, err
	}
	number := p.source.noteSynced(p.log)
	events := make(chan watch.Event)
	watched := watch.NewProxyWatcher(events)
	go func() { // ends with the watch, which the reflector stops
		defer cancel(nil)
		defer close(events)
		pass(w, events, watched.StopChan(), func(err error) { p.source.noteError(ctx, p.log, err) })
		p.source.noteWatchEnded(number)
	}()
	return watched, nil
}

func pass(in watch.Interface, out chan<- watch.Event, stopped <-chan struct{}, failed func(error)) {
	defer in.Stop()
	for {
		select {
		case <-stopped:
			return
		case event, more := <-in.ResultChan():
			if !more {
				return
			}
			if event.Type == watch.Error {
				failed(apierrors.FromObject(event.Object))
			}
			select {
			case out <- event:
			case <-stopped:
				return
			}
		}
	}
}

func (s *Source) follow(ctx context.Context, c cache.Getter, log klog.Logger) {
	only := fields.OneTermEqualSelector("spec.nodeName", s.NodeName())
	p := &podsOf{cache.NewListWatchFromClient(c, "pods", metav1.NamespaceAll, only), s, log}
	backoff := pause()
	r := cache.NewReflectorWithOptions(p, &corev1.Pod{}, store{s}, cache.ReflectorOptions{
		Logger: &log, Name: "podSource", TypeDescription: "pods", Backoff: &backoff,
	})
	// Like the reflector's own loop, but that would log every failure; noteError logs only the first one.
	again := pause().DelayWithReset(clock.RealClock{}, healthy)
	_ = again.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		for relist := true; relist; {
			attempt, cancel := s.untilRelist(ctx)
			if err := r.ListAndWatchWithContext(attempt); err != nil {
				log.V(2).Info("Pods not listed", "err", err)
			}
			relist = attempt.Err() != nil && ctx.Err() == nil // at once, it is not a failure
			cancel()
		}
		return false, nil
	})
}
