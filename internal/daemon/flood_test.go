package daemon_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
)

// If a runtime closes each connection that it accepts, as CRI-O does with a client that it does not understand, the
// daemon logs each state at most once a second.
func TestRuntimeThatClosesEveryConnectionDoesNotFloodTheLog(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "runtime.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	testkit.Must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // empty SETTINGS
			time.Sleep(time.Millisecond)                      // so that the daemon sees the connection up
			_ = c.Close()
		}
	}()
	p := prepare(t, "unix://"+socket)
	p.spawn()
	began := time.Now()
	eventually(t, "a state that is logged a second later",
		func() bool { return strings.Count(p.out.String(), "Failed to reach the runtime") > 1 })
	log := p.out.String()
	seconds := int(time.Since(began).Seconds()) + 1
	for _, message := range []string{"Runtime reached", "Failed to reach the runtime", "Failed to sync"} {
		if n := strings.Count(log, message); n > seconds {
			t.Errorf("%q is logged %d times in %d seconds; want once a second at most", message, n, seconds)
		}
	}
	if n := strings.Count(log, "\n"); n > 4*seconds+20 {
		t.Errorf("%d lines in %d seconds:\n%.2000s", n, seconds, log)
	}
	_ = l.Close()
	<-ended
}
