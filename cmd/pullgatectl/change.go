package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/ctl/view"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// changing is what the help of every command says that changes something.
const changing = `

What it would do is always asked for first, and shown on stderr. Then it asks whether to
go on; where nobody can answer, --yes has to say so beforehand. --dry-run stops before
that, and shows it on stdout.`

// A consent says how far a change may go.
type consent struct{ dryRun, yes bool }

func consentFlags(cmd *cobra.Command) *consent {
	var how consent
	cmd.Flags().BoolVar(&how.dryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().BoolVarP(&how.yes, "yes", "y", false, "do not ask whether to go on")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "yes")
	return &how
}

// A change is something that a command does to what the daemon knows.
type change[R proto.Message] struct {
	// question is asked once the plan is shown.
	question string
	// nothing is said if the plan is empty.
	nothing string
	do      func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (R, error)
	empty   func(R) bool
	plan    func(view.View, *text.Page, R)
	done    func(view.View, *text.Page, R)
}

// carryOut shows what a change would do, and does it if that is wanted.
func carryOut[R proto.Message](ctx context.Context, c *console, o *output, how *consent, what change[R]) error {
	if !how.dryRun && !how.yes && !c.inTerminal {
		return misused("add --yes to do it, or --dry-run to see what it would do", "nobody can be asked whether to go on: stdin is no terminal")
	}
	return c.ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) error {
		planned, err := what.do(ctx, api, true)
		if err != nil {
			return err
		}
		if how.dryRun || what.empty(planned) {
			return c.print(o, planned, func(v view.View, p *text.Page) {
				what.plan(v, p, planned)
				if what.empty(planned) {
					p.Prose("", "%s", what.nothing)
				}
			})
		}
		p := &text.Page{Colours: c.errTerminal && c.colours()}
		what.plan(o.view(c), p, planned)
		if _, err := c.err.Write(p.Take()); err != nil {
			return fmt.Errorf("show what would be done: %w", err)
		}
		if !how.yes {
			if err := c.confirm(ctx, what.question); err != nil {
				return err
			}
		}
		did, err := what.do(ctx, api, false)
		if err != nil {
			return err
		}
		return c.print(o, did, func(v view.View, p *text.Page) { what.done(v, p, did) })
	})
}

// confirm asks a question on stderr and returns nil if it is answered with yes.
func (c *console) confirm(ctx context.Context, question string) error {
	_, _ = fmt.Fprintf(c.err, "\n%s [y/N] ", text.Safe(question))
	answers := make(chan string, 1)
	// A read from a terminal cannot be broken off, so this one is left to the end of the process.
	go func() {
		line, _ := bufio.NewReader(c.in).ReadString('\n')
		answers <- line
	}()
	select {
	case <-ctx.Done():
		return errors.New("interrupted, nothing was changed")
	case answer := <-answers:
		if !strings.HasSuffix(answer, "\n") { // Ctrl-D leaves the cursor where it is
			_, _ = fmt.Fprintln(c.err)
		}
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		default:
			return &failure{code: exitFailed, err: errors.New("not confirmed, nothing was changed")}
		}
	}
}
