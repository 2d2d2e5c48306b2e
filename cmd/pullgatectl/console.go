package main

import (
	"context"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/pullgate/pullgate/pkg/doctor"
	"github.com/pullgate/pullgate/pkg/kubeletnode/pointing"
)

// A console is where a command is run: what it reads and writes, what it is told about that, and how it reaches the
// daemon. Every command is made for one.
type console struct {
	in       io.Reader
	out, err io.Writer

	// Whether somebody sits in front of each.
	inTerminal, outTerminal, errTerminal bool

	getenv func(string) string
	now    func() time.Time
	// dial connects to the socket at the path; nil is as the system does.
	dial func(ctx context.Context, path string) (net.Conn, error)
	// pointer points the kubelet of a machine; the zero value is this one.
	pointer pointing.Switch

	// patience is how long somebody who has pressed Tab waits for the daemon.
	patience time.Duration

	// node is where doctor looks.
	node doctor.Node

	// Set by the flags that every command has.
	endpoint string
	timeout  time.Duration
}

// system is the console of a process.
func system() *console {
	return &console{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		inTerminal: isTerminal(os.Stdin), outTerminal: isTerminal(os.Stdout), errTerminal: isTerminal(os.Stderr),
		getenv: os.Getenv,
		now:    time.Now,

		patience: time.Second,
	}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// colours says whether what is printed is painted: on a terminal that can, for somebody who has not refused
// (https://no-color.org).
func (c *console) colours() bool {
	return c.outTerminal && c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb"
}
