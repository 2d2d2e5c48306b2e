package tracker

import (
	"context"
	"time"
)

// The runtime is asked for its images because containers are created listBurst times at once and then every listEvery, at most.
const (
	listEvery = time.Second
	listBurst = 4
)

// lists asks the runtime for its images and shares each list between the creates that can use it.
type lists struct {
	runtime Runtime
	turn    chan struct{} // holds one token, which guards the fields that follow

	due    time.Time // when the next request is due if they are made every listEvery
	asked  time.Time // when the list was requested
	images []Image
	ok     bool
}

func newLists(rt Runtime) *lists { return &lists{runtime: rt, turn: make(chan struct{}, 1)} }

// since returns a list that was requested at the time or later. It waits where too many have
// been requested.
func (l *lists) since(ctx context.Context, t time.Time) ([]Image, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l.ok && !l.asked.Before(t) {
		return l.images, nil
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
			return nil, ctx.Err()
		}
	}
	l.due = l.due.Add(listEvery)
	asked := time.Now()
	images, err := l.runtime.Images(ctx)
	l.asked, l.images, l.ok = asked, images, err == nil
	return images, err
}
