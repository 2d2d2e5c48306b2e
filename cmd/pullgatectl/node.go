package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/hint"
	"github.com/pullgate/pullgate/internal/nodeenable"
	"github.com/pullgate/pullgate/internal/nodeenable/configured"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const nodeLong = `Point the kubelet of this node at pullgated, take that back, and tell what it dials.

It knows the ways of kubeadm, of a kubelet in a systemd unit of its own, of k3s and of
RKE2. Pods that run go on: the kubelet finds the same containers behind the other socket.`

func nodeCommand(c *cli.Console, pointer nodeenable.Switch) *cobra.Command {
	return cli.Group("node", "Point the kubelet of this node at pullgated, and back", nodeLong,
		nodeEnableCommand(c, pointer), nodeDisableCommand(c, pointer), nodeStatusCommand(c, pointer))
}

func nodeEnableCommand(c *cli.Console, pointer nodeenable.Switch) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "enable",
		Short: "Point the kubelet at pullgated, and take it back if the node does not stay well",
		Long: `Point the kubelet at pullgated.

It looks at how the kubelet of this node is told what to dial, and plans a file of its own
where there is a place for one. It refuses a node that is not well already, a pullgated
that does not run, is not enabled for the next boot or forwards to another runtime than
the kubelet dials, and a node on which something else would have the last word.

What it will do is shown first, on stderr. Then it asks whether to go on; where nobody can
answer, --yes has to say so beforehand. --dry-run stops before that.

Then the kubelet is restarted and watched. If it is not well within --wait, or Ctrl-C is
pressed, all of it is taken back and the kubelet restarted once more. Killed midway, run
it again, or pullgatectl node disable: both get to a whole state.`,
		Example: `  # What would it do?
  pullgatectl node enable --dry-run

  # In a script
  pullgatectl node enable --yes`,
		Args: cobra.NoArgs,
	}
	s := nodeFlags(c, pointer, cmd)
	how := cli.ConsentFlags(cmd)
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := s.running(cmd.Context())
		if err != nil {
			return err
		}
		return s.carryOut(cmd.Context(), o, how, d, "Point the kubelet at pullgated?", nodeenable.Switch.Enable)
	}
	return cmd
}

func nodeDisableCommand(c *cli.Console, pointer nodeenable.Switch) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disable",
		Short: "Take back what node enable did: the kubelet dials the runtime itself",
		Long: `Take back what node enable did, and nothing else: every file is what it was before, but
for what somebody else changed since, which is left as it is and told.

It needs neither pullgated nor its configuration, and does without the journal of node
enable where files tell by themselves who wrote them. Do this before pullgated is removed:
without it a kubelet that is pointed at it reaches no runtime.

What it will do is shown first, on stderr, and asked for; --yes and --dry-run do as they do
with node enable. If the kubelet does not get well it stays disabled.`,
		Example: `  pullgatectl node disable --dry-run
  pullgatectl node disable --yes`,
		Args: cobra.NoArgs,
	}
	s := nodeFlags(c, pointer, cmd)
	how := cli.ConsentFlags(cmd)
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, _ := s.configured() // its defaults do if it cannot be read
		return s.carryOut(cmd.Context(), o, how, d, "Take it back?", nodeenable.Switch.Disable)
	}
	return cmd
}

func nodeStatusCommand(c *cli.Console, pointer nodeenable.Switch) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell what the kubelet dials, and which file says so",
		Args:  cobra.NoArgs,
	}
	s := nodeFlags(c, pointer, cmd)
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, wrong := s.configured()
		if isAbsent(wrong) {
			return wrong
		}
		st, err := s.on(d).Status(cmd.Context())
		if err != nil {
			return nodeFailure(err)
		}
		if wrong != nil {
			st.Wrong = append(st.Wrong, fmt.Sprintf("pullgated's configuration cannot be read, its defaults were taken: %v", wrong))
		}
		return c.Print(o, st, func(_ output.View, p *output.Page) { draw(p, st.Lines()) })
	}
	return cmd
}

// A nodeSwitch is what the flags of a command of node say.
type nodeSwitch struct {
	c            *cli.Console
	cmd          *cobra.Command
	pointer      nodeenable.Switch
	config, unit string
	wait         time.Duration
}

func nodeFlags(c *cli.Console, pointer nodeenable.Switch, cmd *cobra.Command) *nodeSwitch {
	s := &nodeSwitch{c: c, cmd: cmd, pointer: pointer}
	cmd.Flags().StringVar(&s.config, "config", defaultConfig, configUsage)
	cmd.Flags().StringVar(&s.unit, "unit", "", "the systemd `unit` that runs the kubelet; one is looked for if it is not given")
	if cmd.Name() != "status" {
		cmd.Flags().DurationVar(&s.wait, "wait", 2*time.Minute, "how long the kubelet may take to be well after its restart")
	}
	_ = cmd.RegisterFlagCompletionFunc("unit", cobra.FixedCompletions([]string{"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"}, cobra.ShellCompDirectiveNoFileComp))
	return s
}

// on is the switch between the kubelet and a daemon.
func (s *nodeSwitch) on(d nodeenable.Daemon) nodeenable.Switch {
	to := s.pointer
	to.Daemon, to.Unit, to.Wait = d, s.unit, s.wait
	to.Say = func(line string) { _, _ = fmt.Fprintln(s.c.Err, output.Safe(line)) }
	return to
}

// configured is the daemon as its configuration file tells, and as its defaults tell if that cannot be read.
func (s *nodeSwitch) configured() (nodeenable.Daemon, error) {
	loaded, err := loadConfig(s.cmd, s.pointer.Host.Path(s.config))
	if err != nil {
		return configured.File(config.Default()), err
	}
	return configured.File(loaded), nil
}

// running is the daemon as it says itself that it was configured, if its configuration file says the same.
func (s *nodeSwitch) running(ctx context.Context) (nodeenable.Daemon, error) {
	file, err := loadConfig(s.cmd, s.pointer.Host.Path(s.config))
	if isAbsent(err) {
		return nodeenable.Daemon{}, err
	}
	if err != nil {
		return nodeenable.Daemon{}, cli.Misused("mend it, see that pullgated --check-config likes it, then systemctl restart pullgated", "pullgated's configuration %s: %w", s.config, err)
	}
	if file.Admin.Listen == "" {
		return configured.File(file), nil
	}
	var d nodeenable.Daemon
	err = s.c.At(file.Admin.Listen).Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) error {
		status, err := api.GetStatus(ctx, &adminv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if d, err = configured.Running(file, s.config, status); err != nil {
			return nodeFailure(err)
		}
		return nil
	})
	return d, err
}

// carryOut shows a plan, and applies it if that is wanted.
func (s *nodeSwitch) carryOut(ctx context.Context, o *cli.Output, how *cli.Consent, d nodeenable.Daemon, question string,
	plan func(nodeenable.Switch, context.Context) (nodeenable.Plan, error),
) error {
	if s.wait <= 0 {
		return cli.Misused("give it a minute or two", "--wait %s: it is more than 0", s.wait)
	}
	if err := s.c.Answerable(how); err != nil {
		return err
	}
	to := s.on(d)
	p, err := plan(to, ctx)
	if err != nil {
		return nodeFailure(err)
	}
	if how.DryRun || len(p.Steps) == 0 {
		return s.c.Print(o, p, func(_ output.View, page *output.Page) { draw(page, p.Lines()) })
	}
	if err := s.c.Agree(ctx, how, question, func(page *output.Page) { draw(page, p.Lines()) }); err != nil {
		return err
	}
	if err := to.Apply(ctx, p); err != nil {
		return nodeFailure(err)
	}
	st, err := to.Status(ctx)
	if err != nil {
		return nodeFailure(err)
	}
	return s.c.Print(o, st, func(_ output.View, p *output.Page) { draw(p, st.Lines()) })
}

// nodeFailure adds the exit code, or a missing hint, to an error of nodeenable.
func nodeFailure(err error) error {
	switch {
	case errors.Is(err, nodeenable.ErrNotReached):
		return &cli.ExitError{Code: cli.ExitNotReached, Err: err}
	case errors.Is(err, nodeenable.ErrBusy):
		return hint.Wrap(err, "wait for it, then see pullgatectl node status")
	case errors.Is(err, fs.ErrPermission) && hint.Of(err) == "":
		return hint.Wrap(err, "run it as root")
	default:
		return err
	}
}

func draw(p *output.Page, lines []string) {
	for i, line := range lines {
		colour := output.Plain
		switch {
		case i == 0 && strings.HasPrefix(line, "enabled"):
			colour = output.Good
		case strings.HasPrefix(line, "  ! "):
			colour = output.Heed
		}
		p.Paint(colour, "%s", line)
	}
}
