package daemon_test

import (
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
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

// The line about a runtime that is not reached says why, and at which socket.
func TestRuntimeNotReachedHasTheCause(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(criproxytest.SocketDir(t), "absent.sock")
	p := prepare(t, "unix://"+absent)
	p.spawn()
	line := regexp.MustCompile(`(?m)^.*"Failed to reach the runtime.*$`)
	eventually(t, "a line about the runtime", func() bool { return line.MatchString(p.out.String()) })
	got := line.FindString(p.out.String())
	for _, want := range []string{"no such file or directory", "unix://" + absent} {
		if !strings.HasPrefix(got, "E") || !strings.Contains(got, want) {
			t.Errorf("%s; want an error with %s", got, want)
		}
	}
}
