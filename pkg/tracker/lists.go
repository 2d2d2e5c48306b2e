package tracker

import (
	"context"
	"time"
)

// Creates may request the images of the runtime listBurst times in succession, and then at most every listEvery.
const (
	listEvery = time.Second
	listBurst = 4
)

// lists requests the images of the runtime and shares each list between the creates that can use it.
type lists struct {
	runtime Runtime
	turn    chan struct{} // holds one token, which guards the following fields

	due    time.Time // when the next request is due at one request every listEvery
	asked  time.Time // when the list was requested
	images []Image
	// unchanged reports whether no removal has begun since the list was requested; nil if there is no list.
	unchanged func() bool
}

func newLists(rt Runtime) *lists { return &lists{runtime: rt, turn: make(chan struct{}, 1)} }

// since returns a list that was requested at the time or later, and a function that reports whether no removal has
// begun since the request. It waits if there were too many requests. idle is [Tracker.idle].
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
	now := time.Now()
	if l.due.Before(now) {
		l.due = now
	}
	if wait := l.due.Sub(now) - (listBurst-1)*listEvery; wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	l.due = l.due.Add(listEvery)
	asked := time.Now()
	unchanged, quiet = idle()
	images, err := l.runtime.Images(ctx)
	l.asked, l.images, l.unchanged = asked, images, func() bool { return quiet && unchanged() }
	if err != nil {
		l.unchanged = nil
	}
	return images, l.unchanged, err
}
