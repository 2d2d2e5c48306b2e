package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Changing is part of the help of every command that makes a change.
const Changing = `

The changes are shown on stderr first, with a question whether to make them. Without a
terminal, --yes is needed. --dry-run shows them on stdout and makes none.`

// A Consent contains the flags about confirmation of a change.
type Consent struct {
	// DryRun only shows what would be done.
	DryRun, yes bool
}

// ConsentFlags adds the flags of a consent to a command.
func ConsentFlags(cmd *cobra.Command) *Consent {
	var how Consent
	cmd.Flags().BoolVar(&how.DryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().BoolVarP(&how.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "yes")
	return &how
}

// Answerable refuses a change that needs confirmation if there is no terminal for the question.
func (c *Console) Answerable(how *Consent) error {
	if !how.DryRun && !how.yes && !c.inTerminal {
		return Misused("add --yes to do it, or --dry-run to see what it would do",
			"confirmation needed, and stdin is not a terminal")
	}
	return nil
}

// Agree shows a plan on stderr, and returns nil if the user agrees.
func (c *Console) Agree(ctx context.Context, how *Consent, o *Output, question string, plan func(*Page)) error {
	if err := c.show(o, plan); err != nil {
		return err
	}
	if how.yes {
		return nil
	}
	return c.confirm(ctx, question)
}

func (c *Console) show(o *Output, plan func(*Page)) error {
	p := c.page(c.errTerminal, o)
	plan(p)
	if _, err := c.Err.Write(p.Take()); err != nil {
		return fmt.Errorf("show what would be done: %w", err)
	}
	return nil
}

// A Change describes how a command makes a change to the daemon's state.
type Change[R proto.Message] struct {
	// Check refuses arguments and flags before the daemon is asked; nil refuses none.
	Check    func(args []string) error
	Needs    string // the hint if the request selects nothing; "" means that it need not
	Question string // asked after the plan is shown
	// Nothing is printed if the plan is empty. NoMatch is then the error of the command; nil means that it succeeds.
	Nothing string
	NoMatch error
	// Refuse returns why a plan is not carried out; the plan is still shown. nil refuses no plan.
	Refuse func(R) error
	// Empty reports whether a plan contains no change; nil means that it always contains one.
	Empty func(R) bool
	Plan  func(*Page, R) // shows what would be done
	Done  func(R) string // says in a sentence what was done
}

// ChangeCommand makes cmd show what a call would change, and make it if the user agrees. The field dry_run of the
// request decides what the call does. ChangeCommand adds the flags of consent and output.
func ChangeCommand[Q, R proto.Message](c *Console, cmd *cobra.Command, request Q,
	call func(adminv1.PullRecordsClient, context.Context, Q, ...grpc.CallOption) (R, error), what Change[R],
) *cobra.Command {
	how := ConsentFlags(cmd)
	o := OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if what.Check != nil {
			if err := what.Check(args); err != nil {
				return err
			}
		}
		if what.Needs != "" && proto.Size(request) == 0 {
			return Misused(what.Needs, "nothing is selected")
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			if err := expandIDs(ctx, api, request); err != nil {
				return err
			}
			fields := request.ProtoReflect()
			return carryOut(ctx, c, o, how, what, func(dryRun bool) (R, error) {
				fields.Set(fields.Descriptor().Fields().ByName("dry_run"), protoreflect.ValueOfBool(dryRun))
				return call(api, ctx, request)
			})
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

func carryOut[R proto.Message](
	ctx context.Context, c *Console, o *Output, how *Consent, what Change[R], do func(dryRun bool) (R, error),
) error {
	planned, err := do(true)
	if err != nil {
		return err
	}
	empty := what.Empty != nil && what.Empty(planned)
	plan := func(p *Page) { what.Plan(p, planned) }
	if how.DryRun || empty {
		err := c.Print(o, planned, func(p *Page) {
			plan(p)
			if empty && what.Nothing != "" {
				p.Prose("", "%s", what.Nothing)
			}
		})
		if err == nil && empty {
			err = what.NoMatch
		}
		return err
	}
	if what.Refuse != nil {
		if err := what.Refuse(planned); err != nil {
			return errors.Join(c.show(o, plan), err)
		}
	}
	if err := c.Answerable(how); err != nil { // after the plan has checked the input
		return err
	}
	if err := c.Agree(ctx, how, o, what.Question, plan); err != nil {
		return err
	}
	did, err := do(false)
	if err != nil {
		return err
	}
	return c.Print(o, did, func(p *Page) { p.Prose("", "%s", what.Done(did)) })
}

// Password returns a line of stdin. On a terminal it asks for it, without echo.
func (c *Console) Password(prompt string) (string, error) {
	if f, ok := c.in.(*os.File); ok && c.inTerminal {
		_, _ = fmt.Fprintf(c.Err, "%s: ", Safe(prompt))
		line, err := term.ReadPassword(int(f.Fd()))
		_, _ = fmt.Fprintln(c.Err)
		return string(line), err
	}
	line, err := bufio.NewReader(c.in).ReadString('\n')
	if errors.Is(err, io.EOF) && line != "" {
		err = nil
	}
	return strings.TrimRight(line, "\r\n"), err
}

func (c *Console) confirm(ctx context.Context, question string) error {
	_, _ = fmt.Fprintf(c.Err, "\n%s [y/N] ", Safe(question))
	answers := make(chan string, 1)
	// A read from a terminal cannot be interrupted, so this one runs until the process ends.
	go func() {
		line, _ := bufio.NewReader(c.in).ReadString('\n')
		answers <- line
	}()
	select {
	case <-ctx.Done():
		return errors.New("interrupted, nothing was changed")
	case answer := <-answers:
		if !strings.HasSuffix(answer, "\n") { // Ctrl-D does not move the cursor
			_, _ = fmt.Fprintln(c.Err)
		}
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		default:
			return errors.New("not confirmed, nothing was changed")
		}
	}
}

// Revocation prints what a revocation revokes, or would revoke.
func (p *Page) Revocation(r *adminv1.RevokeResponse) {
	var rows [][]string
	for _, proof := range r.GetProofs() {
		rows = append(rows, []string{
			proof.GetPair().GetRepository(), p.ID(proof.GetPair().GetImageId()), p.ID(proof.GetProof().GetCredentialId()),
			secretNames(proof.GetProof().GetSecrets()), p.age(proof.GetProof().GetLastProved()),
			p.age(proof.GetProof().GetLastUsed()),
		})
	}
	for _, pair := range r.GetClosed() {
		rows = append(rows, []string{pair.GetRepository(), p.ID(pair.GetImageId()), "every pod", "", "", ""})
	}
	if len(rows) > 0 {
		p.Table([]string{"REPOSITORY", "IMAGE ID", "CREDENTIAL", "SECRETS", "LAST PROVED", "LAST USED"}, rows)
	}
	p.ending(r.GetGrants())
	if len(r.GetMarked()) > 0 {
		p.Gap()
		p.PaintProse(Heed, "", "%s preloaded and not touched by this: under a policy that exempts preloaded images every "+
			"pod may still use marked images. `pullgatectl preloaded forget` ends that.",
			Count(len(r.GetMarked()), "pair is", "pairs are"))
		p.marks(r.GetMarked())
	}
}

func (p *Page) ending(grants []*adminv1.Grant) {
	if len(grants) == 0 {
		return
	}
	p.Gap()
	p.Prose("", "Grants that end; running containers continue, and new containers of these pods are judged again:")
	p.grants(grants)
}

// Acceptance prints which pairs are marked preloaded, or would be.
func (p *Page) Acceptance(r *adminv1.AcceptPreloadedResponse) {
	if len(r.GetProved()) == 0 {
		p.pairs(r.GetAccepted())
		return
	}
	proved := map[string]string{}
	for _, rec := range r.GetProved() {
		by := "unreadable record"
		if n := len(rec.GetProofs()); n > 0 {
			by = Count(n, "credential", "credentials")
		}
		proved[rec.GetPair().GetImageId()+" "+rec.GetPair().GetRepository()] = by
	}
	tableOf(p, []string{"REPOSITORY", "IMAGE ID", "PROVED BY"}, r.GetAccepted(), func(pair *adminv1.Pair) []string {
		return []string{pair.GetRepository(), p.ID(pair.GetImageId()), proved[pair.GetImageId()+" "+pair.GetRepository()]}
	})
	p.Gap()
	p.PaintProse(Heed, "", "Access to %s was proved with credentials. Accepting them opens them to every pod, and needs "+
		"--including-proved.", Count(len(r.GetProved()), "of these pairs", "of these pairs"))
}

// Forgetting prints which marks are removed, or would be.
func (p *Page) Forgetting(r *adminv1.ForgetPreloadedResponse) {
	p.marks(r.GetForgotten())
	p.ending(r.GetGrants())
	if len(r.GetStillOpen()) > 0 {
		p.Gap()
		p.PaintProse(Heed, "", "Every pod may still use these names of the same images, because their records are open; "+
			"`pullgatectl revoke --repository` closes them:")
		p.pairs(r.GetStillOpen())
	}
}

// Trusting prints what the end of distrust opens, or would open.
func (p *Page) Trusting(r *adminv1.EndDistrustResponse) {
	p.Prose("", "The store is in distrust since %s: %s.", p.date(r.GetEnded().GetSince()), r.GetEnded().GetReason())
	if len(r.GetAccepted()) == 0 {
		p.Prose("", "No image on the node is untracked: ending distrust marks none preloaded.")
		return
	}
	p.Prose("", "These images become preloaded, for every pod:")
	p.pairs(r.GetAccepted())
}

// Verification prints the result of a verification of the store.
func (p *Page) Verification(r *adminv1.VerifyStoreResponse) {
	took := r.GetTook().AsDuration().Round(time.Millisecond)
	if len(r.GetProblems()) == 0 {
		p.Paint(Good, "%s read in %s: the store is valid.", Count(r.GetValues(), "value", "values"), took)
		return
	}
	p.Paint(Bad, "%s read in %s, %s unreadable. A start removes unreadable values and distrusts the store.",
		Count(r.GetValues(), "value", "values"), took, Count(len(r.GetProblems()), "place", "places"))
	tableOf(p, []string{"WHERE", "WHAT"}, r.GetProblems(), func(problem *adminv1.StoreProblem) []string {
		return []string{problem.GetWhere(), problem.GetWhat()}
	})
}
