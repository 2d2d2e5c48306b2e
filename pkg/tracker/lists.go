package tracker

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Creates may request the images of the runtime listBurst times in succession, and then at most every listEvery.
const (
	listEvery = time.Second
	listBurst = 4
)

// lists requests the images of the runtime and shares each list between the creates that can use it.
type lists struct {
	runtime Runtime
	limit   *rate.Limiter
	turn    chan struct{} // holds one token, which guards the following fields

	asked  time.Time // when the list was requested
	images []Image
	// unchanged reports whether no removal has begun since the list was requested; nil if there is no list.
	unchanged func() bool
}

func newLists(rt Runtime) *lists {
	return &lists{runtime: rt, limit: rate.NewLimiter(rate.Every(listEvery), listBurst), turn: make(chan struct{}, 1)}
}

// since returns a list that was requested at the time or later, and a function that reports whether no removal has
// begun since. It waits if there were too many requests. idle is [Tracker.idle].
func (l *lists) since(ctx context.Context, t time.Time, idle func() (func() bool, bool)) ([]Image, func() bool, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	unchanged, quiet := idle()
	// While an image is being removed, no list says what stays, and a new one is no better.
	if l.unchanged != nil && !l.asked.Before(t) && (l.unchanged() || !quiet) {
		return l.images, l.unchanged, nil
	}
	if err := l.limit.Wait(ctx); err != nil {
		return nil, nil, err
	}
	asked := time.Now()
	unchanged, quiet = idle()
	images, err := l.runtime.Images(ctx)
	l.asked, l.images, l.unchanged = asked, images, func() bool { return quiet && unchanged() }
	if err != nil {
		l.unchanged = nil
	}
	return images, l.unchanged, err
}
