package cli

import (
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// A Console contains the input, the outputs and the environment of a command, and how it connects to the daemon.
type Console struct {
	in io.Reader
	// Out is stdout, for answers; Err is stderr, for everything else.
	Out, Err io.Writer

	// OutTerminal reports whether Out is a terminal; the others report it for the input and Err.
	OutTerminal             bool
	inTerminal, errTerminal bool
	width                   int // of the terminal; 0 if there is none

	getenv func(string) string
	// Now returns the current time.
	Now func() time.Time

	// Set by the flags that every command has.
	endpoint string
	timeout  time.Duration
}

// System returns the console of this process.
func System() *Console {
	width, _, err := term.GetSize(int(os.Stderr.Fd()))
	if err != nil {
		width, _, _ = term.GetSize(int(os.Stdout.Fd()))
	}
	return &Console{
		width: width,
		in:    os.Stdin, Out: os.Stdout, Err: os.Stderr,
		inTerminal: isTerminal(os.Stdin), OutTerminal: isTerminal(os.Stdout), errTerminal: isTerminal(os.Stderr),
		getenv: os.Getenv,
		Now:    time.Now,
	}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Page returns an empty page for Out. It has colours on a terminal that supports them, unless NO_COLOR is set
// (https://no-color.org).
func (c *Console) Page() *Page { return c.page(c.OutTerminal) }

func (c *Console) page(terminal bool) *Page {
	if !terminal {
		return &Page{}
	}
	return &Page{Colours: c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb", Width: c.width}
}
