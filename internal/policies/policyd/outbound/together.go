package outbound

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Together calls ask for each number below n at the same time, with 0 in the goroutine of the caller, and returns when
// all have returned. If one panics, Together does then.
func Together(n int, ask func(i int)) {
	var all sync.WaitGroup
	panics := make(chan string, n)
	guarded := func(i int) {
		defer func() {
			if p := recover(); p != nil {
				panics <- fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		ask(i)
	}
	for i := 1; i < n; i++ {
		all.Go(func() { guarded(i) })
	}
	if n > 0 { // with one, thousands of calls that wait need no further goroutines
		guarded(0)
	}
	all.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
	}
}
