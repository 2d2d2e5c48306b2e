package daemon

import (
	"context"
	"time"
)

// stateLogInterval is how often one state of a connection is logged at most.
const stateLogInterval = time.Second

// logStates logs the changes that it receives, until ctx ends: each state at most once in stateLogInterval, and always
// the state that lasts. unlogged is how many changes before this one were not logged since the last line.
func logStates(ctx context.Context, changes <-chan bool, log func(up bool, unlogged int)) {
	var (
		state    bool
		at       = map[bool]time.Time{}
		received int
	)
	due := time.NewTimer(0)
	defer due.Stop()
	<-due.C
	for {
		select {
		case <-ctx.Done():
			return
		case state = <-changes:
			received++
		case <-due.C:
		}
		if received == 0 {
			continue
		}
		if logged, ok := at[state]; ok && time.Since(logged) < stateLogInterval {
			due.Reset(stateLogInterval - time.Since(logged))
			continue
		}
		log(state, received-1)
		at[state], received = time.Now(), 0
	}
}
