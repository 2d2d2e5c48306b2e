package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// A Console contains the input, the outputs and the environment of a command, and how it connects to the daemon.
type Console struct {
	in       io.Reader
	Out, Err io.Writer // stdout, for answers; Err is stderr, for everything else

	// OutTerminal reports whether Out is a terminal; the others report it for the input and Err.
	OutTerminal, inTerminal, errTerminal bool
	width                                int // of the terminal; 0 if there is none

	getenv func(string) string
	// Now returns the current time.
	Now func() time.Time

	program string // as its messages begin, set by Root

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
		width: width, in: os.Stdin, Out: os.Stdout, Err: os.Stderr, inTerminal: isTerminal(os.Stdin),
		OutTerminal: isTerminal(os.Stdout), errTerminal: isTerminal(os.Stderr), getenv: os.Getenv, Now: time.Now,
	}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// page returns an empty page, with colours on a terminal unless NO_COLOR is set (https://no-color.org).
func (c *Console) page(terminal bool, o *Output) *Page {
	p := &Page{Now: c.Now(), WholeIDs: o.wholeIDs, AbsoluteTimes: o.absoluteTimes}
	if terminal {
		p.Colours, p.Width = c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb", c.width
	}
	return p
}

// Run runs a root command with the arguments and returns the exit code.
func (c *Console) Run(root *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The first signal ends the command in order; a second one ends the process.
	defer context.AfterFunc(ctx, stop)()
	begun := false
	note(root, &begun)
	root.SetArgs(args)
	root.SetIn(c.in)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if ctx.Err() != nil && c.errTerminal {
		_, _ = fmt.Fprintln(c.Err) // the terminal has just shown ^C
	}
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[*ExitError](err); !ok && !begun {
		// An error before a command begins is about the command line.
		return c.complain(wrongUsage(cmd, err))
	}
	return c.complain(exitError(err))
}

func note(cmd *cobra.Command, begun *bool) {
	if do := cmd.RunE; do != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*begun = true
			return do(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		note(sub, begun)
	}
}

// Root makes the command that contains all others, with the flags of every command. use is how it is called.
func (c *Console) Root(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	root := Group(strings.ReplaceAll(use, " ", "-"), short, long, commands...)
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: use}
	root.SilenceUsage, root.SilenceErrors = true, true
	c.program = use
	root.PersistentFlags().StringVar(&c.endpoint, "endpoint", "",
		"`socket` of pullgated's admin API, else $"+EndpointVariable+", else "+Default)
	root.PersistentFlags().DurationVar(&c.timeout, "timeout", 10*time.Second,
		"how long to wait for one answer; 0 is without end, and so are watch and backup")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return wrongUsage(cmd, err) })
	// A group can run only to return an error, so that is not a usage.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}",
		"{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))

	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			asGroup(cmd)
		}
	}
	return root
}

// OneArgument accepts exactly one argument; name describes it, for example IMAGE.
func OneArgument(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return fmt.Errorf("%s needs one argument, %s", cmd.CommandPath(), name)
		case 1:
			return nil
		default:
			return fmt.Errorf("%s takes one argument, %s, and not %d: %q", cmd.CommandPath(), name, len(args), args)
		}
	}
}

// Group makes a command that only contains others. Without one of them it is wrong usage, for scripts.
func Group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long}
	cmd.AddCommand(commands...)
	asGroup(cmd)
	return cmd
}

func asGroup(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs // cobra's own check accepts unknown words below a group
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		hint := "see " + cmd.CommandPath() + " --help"
		if len(args) == 0 {
			return Misused(hint, "%s needs a command: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("is it %s? See %s --help", strings.Join(near, " or "), cmd.CommandPath())
		}
		return Misused(hint, "%s has no command %q", cmd.CommandPath(), args[0])
	}
}

// helpCommand is cobra's own, except that an unknown command is wrong usage.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Explain a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if of, _, err := cmd.Root().Find(args); err == nil {
				return names(of), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return Misused("see "+cmd.Root().CommandPath()+" --help", "unknown command %q", strings.Join(args, " "))
			}
			return of.Help()
		},
	}
}

func names(cmd *cobra.Command) (all []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			all = append(all, sub.Name())
		}
	}
	return all
}

// Exit codes. With every one except ExitDone, ExitNeedsProof and ExitDenied there is a line on stderr.
const (
	ExitDone       = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitNotReached = 3
	ExitNeedsProof = 4
	ExitNoMatch    = 5
	ExitDenied     = 10
)

// An ExitError ends the program with a code, and with Err on stderr unless it is nil. Other errors are ExitFailed.
type ExitError struct {
	Code int
	Err  error
}

// Error returns what failed and why.
func (f *ExitError) Error() string {
	if f.Err == nil {
		return fmt.Sprintf("exit code %d", f.Code)
	}
	return f.Err.Error()
}

// Unwrap returns Err.
func (f *ExitError) Unwrap() error { return f.Err }

func (c *Console) complain(f *ExitError) int {
	if f.Err != nil {
		_, _ = fmt.Fprintf(c.Err, "%s: %s\n", c.program, Safe(f.Err.Error()))
	}
	if advice := program.HintOf(f.Err); advice != "" {
		_, _ = fmt.Fprintf(c.Err, "%s: hint: %s\n", c.program, Safe(advice))
	}
	return f.Code
}

// Misused returns an error about the command line, with a hint.
func Misused(advice, format string, args ...any) *ExitError {
	return &ExitError{Code: ExitUsage, Err: program.Hintf(advice, format, args...)}
}

func wrongUsage(cmd *cobra.Command, err error) *ExitError {
	// cobra prints suggestions on separate lines.
	what := strings.Join(strings.Fields(err.Error()), " ")
	return Misused("see "+cmd.CommandPath()+" --help", "%s", what)
}

func exitError(err error) *ExitError {
	if f, ok := errors.AsType[*ExitError](err); ok {
		return f
	}
	// with a hint it describes the state after the interruption
	if errors.Is(err, context.Canceled) && program.HintOf(err) == "" {
		return &ExitError{Code: ExitFailed, Err: errors.New("interrupted")}
	}
	return &ExitError{Code: ExitFailed, Err: err}
}
