package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// The scripts of cmd/pullgatectl test how commands use a console. The tests here cover the cases that scripts cannot
// reach.

// consoleWith returns a console without a terminal.
func consoleWith(environment map[string]string) (c *Console, out, err *bytes.Buffer) {
	out, err = &bytes.Buffer{}, &bytes.Buffer{}
	return &Console{
		in: strings.NewReader(""), Out: out, Err: err, Now: time.Now,
		getenv: func(name string) string { return environment[name] },
	}, out, err
}

func TestAtYieldsToTheCallersEndpoint(t *testing.T) {
	for name, test := range map[string]struct {
		flag, variable, want string
	}{
		"nothing":  {want: "/run/own.sock"},
		"flag":     {flag: "unix:///run/flag.sock", want: "/run/flag.sock"},
		"variable": {variable: "unix:///run/variable.sock", want: "/run/variable.sock"},
		"both":     {flag: "unix:///run/flag.sock", variable: "unix:///run/variable.sock", want: "/run/flag.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, _ := consoleWith(map[string]string{EndpointVariable: test.variable})
			c.endpoint = test.flag
			got, err := c.At("unix:///run/own.sock").socket()
			if err != nil || got != test.want {
				t.Errorf("socket() = %q, %v; want %q", got, err, test.want)
			}
			if c.endpoint != test.flag {
				t.Errorf("the console itself was moved to %q", c.endpoint)
			}
		})
	}
}

func TestAgreeShowsBeforeItReturns(t *testing.T) {
	for name, test := range map[string]struct {
		how    Consent
		answer string
		agreed bool
	}{
		"--yes":   {how: Consent{yes: true}, agreed: true},
		"yes":     {answer: "Yes\n", agreed: true},
		"no":      {answer: "n\n"},
		"nothing": {answer: "\n"},
		"the end": {},
	} {
		t.Run(name, func(t *testing.T) {
			c, out, shown := consoleWith(nil)
			c.in = strings.NewReader(test.answer)
			err := c.Agree(t.Context(), &test.how, &Output{}, "Do it?", func(p *Page) { p.Line("the plan") })
			if (err == nil) != test.agreed {
				t.Errorf("Agree() = %v; want agreed: %t", err, test.agreed)
			}
			if !strings.HasPrefix(shown.String(), "the plan\n") || out.Len() > 0 {
				t.Errorf("stderr shows %q and stdout %q; want the plan on stderr alone", shown, out)
			}
		})
	}
}

// If a plan could not be shown, it is not agreed to, whatever the flags are.
func TestAgreeFailsIfThePlanIsNotShown(t *testing.T) {
	c, _, _ := consoleWith(nil)
	c.Err = broken{}
	plan := func(p *Page) { p.Line("the plan") }
	if err := c.Agree(t.Context(), &Consent{yes: true}, &Output{}, "Do it?", plan); !errors.Is(err, errBroken) {
		t.Errorf("Agree() = %v; want %v", err, errBroken)
	}
}

func TestRunPrintsTheErrorOnALineOfStderr(t *testing.T) {
	c, out, stderr := consoleWith(nil)
	root := c.Root("pullgatectl", "", "", &cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error {
		return &ExitError{Code: ExitNeedsProof, Err: program.Hintf("look\x1b[2J", "read a\nb")}
	}})
	if code := c.Run(root, []string{"fail"}); code != ExitNeedsProof {
		t.Errorf("Run() = %d; want %d", code, ExitNeedsProof)
	}
	want := "pullgatectl: read a\\u000ab\npullgatectl: hint: look\\u001b[2J\n"
	if stderr.String() != want || out.Len() > 0 {
		t.Errorf("stderr has %q and stdout %q; want %q and nothing", stderr, out, want)
	}
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// If an interrupted command has changed something, its error describes the state that results.
func TestInterruptedCommandKeepsItsHint(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"no change": {fmt.Errorf("ask: %w", context.Canceled), "interrupted"},
		"a hint": {
			program.Hintf("run pullgatectl node disable", "not enabled: %w", context.Canceled), "not enabled: context canceled",
		},
	} {
		if got := exitError(tc.err); got.Error() != tc.want || got.Code != ExitFailed {
			t.Errorf("%s: exitError = %v, code %d; want %q, code %d", name, got, got.Code, tc.want, ExitFailed)
		}
	}
}

func TestAnsweredAdvisesByWhatIsExhausted(t *testing.T) {
	for text, want := range map[string]string{
		"grpc: received message larger than max (2000000 vs. 1048576)": "a request has at most 1 MiB: send less at once",
		"too many watchers": "end one of the others, or try again later",
	} {
		if got := program.HintOf(answered(status.Error(codes.ResourceExhausted, text))); got != want {
			t.Errorf("%s: hint %q; want %q", text, got, want)
		}
	}
}
