package cli

import (
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// A Console is where a command is run: what it reads and writes, what it is told about that, and how it reaches the
// daemon. Every command is made for one.
type Console struct {
	in io.Reader
	// Out is stdout, for answers, and Err is stderr, for everything else.
	Out, Err io.Writer

	// OutTerminal says whether somebody sits in front of Out; the others say so of the other two.
	OutTerminal             bool
	inTerminal, errTerminal bool

	getenv func(string) string
	// Now is the clock.
	Now func() time.Time

	// Set by the flags that every command has.
	endpoint string
	timeout  time.Duration
}

// System is the console of a process.
func System() *Console {
	return &Console{
		in: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		inTerminal: isTerminal(os.Stdin), OutTerminal: isTerminal(os.Stdout), errTerminal: isTerminal(os.Stderr),
		getenv: os.Getenv,
		Now:    time.Now,
	}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Colours says whether what is printed is painted: on a terminal that can, for somebody who has not refused
// (https://no-color.org).
func (c *Console) Colours() bool {
	return c.OutTerminal && c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb"
}
