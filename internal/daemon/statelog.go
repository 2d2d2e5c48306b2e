package daemon

import (
	"context"
	"time"
)

// stateLogInterval is the minimum time between two log lines of the same state of a connection.
const stateLogInterval = time.Second

// logStates logs the changes that it receives, until ctx ends: each state at most once in stateLogInterval, and always
// the final state. unlogged is the number of changes since the last line. The initial state, down, is logged if it
// lasts.
func logStates(ctx context.Context, changes <-chan bool, log func(up bool, unlogged int)) {
	var (
		state    bool
		at       = map[bool]time.Time{false: time.Now()}
		received int
		begins   = true // no change has been received
		pending  bool   // only the initial state has been received, and it was not logged
	)
	due := time.NewTimer(0)
	defer due.Stop()
	<-due.C
	for {
		select {
		case <-ctx.Done():
			return
		case state = <-changes:
			if pending = begins && !state; !pending {
				received++
			}
			begins = false
		case <-due.C:
		}
		if received == 0 && !pending {
			continue
		}
		if logged, ok := at[state]; ok && time.Since(logged) < stateLogInterval {
			due.Reset(stateLogInterval - time.Since(logged))
			continue
		}
		log(state, max(received-1, 0))
		at[state], received, pending = time.Now(), 0, false
	}
}
