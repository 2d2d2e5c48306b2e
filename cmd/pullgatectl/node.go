package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const nodeLong = `Configure the kubelet of this node to use pullgated, revert that, and show what it dials.

kubeadm, a kubelet in a systemd unit, k3s and RKE2 are supported. Running pods are not
affected: the kubelet finds the same containers behind the other socket.

install, apply and what follows them install pullgate itself, for a fleet: with a dead-man's
switch, so that a node that nobody confirms is as before.`

func nodeCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	return cli.Group("node", "Install pullgate on this node, make its kubelet use pullgated, or revert that", nodeLong,
		nodeEnableCommand(c, enabler), nodeDisableCommand(c, enabler), nodeStatusCommand(c, enabler),
		nodeInstallCommand(c, enabler), nodeInstallStatusCommand(c, enabler), nodeApplyCommand(c, enabler),
		nodeConfirmCommand(c, enabler), nodeRevertCommand(c, enabler), nodeRollbackCommand(c, enabler),
		nodeRemoveCommand(c, enabler))
}

func nodeEnableCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "enable",
		Short: "Make the kubelet use pullgated, and revert that if the node does not stay healthy",
		Long: `Make the kubelet use pullgated.

The command reads how the endpoint of the kubelet is configured, and plans a drop-in file
where that is possible. It refuses an unhealthy node, a pullgated that does not run, is
not enabled at boot or forwards to another runtime than the kubelet dials, and a node on
which another file would override the change.

If pullgated has no pod source, its configuration file gets a line with the kubelet's
kubeconfig, which node disable leaves there.

The plan is shown on stderr before a question whether to continue; without a terminal,
--yes is needed. --dry-run prints the plan and ends.

Then the kubelet is restarted and watched. If it is not healthy within --wait, or on
Ctrl-C, all changes are reverted and the kubelet is restarted again. If the command is
killed, run it again, or pullgatectl node disable: each leaves a consistent state.`,
		Example: `  # What would it do?
  pullgatectl node enable --dry-run

  # In a script
  pullgatectl node enable --yes`,
		Args: cobra.NoArgs,
	}
	return nodeChange(c, enabler, cmd, true)
}

func nodeDisableCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disable",
		Short: "Revert node enable: the kubelet dials the runtime itself",
		Long: `Revert the changes of node enable and nothing else. A file that was changed since is left
as it is and named. The list of node credentials of pullgated is removed: credential
provider plugins that run through pullgated then withhold nothing.

The command needs neither pullgated nor its configuration. It works without the journal of
node enable if the files are complete. Run it before you remove pullgated: without
pullgated a kubelet that uses it reaches no runtime.

The plan is shown first, as with node enable. If the kubelet does not become healthy, the
changes stay reverted.`,
		Example: `  pullgatectl node disable --dry-run
  pullgatectl node disable --yes`,
		Args: cobra.NoArgs,
	}
	return nodeChange(c, enabler, cmd, false)
}

func nodeStatusCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the kubelet dials, and which file sets it",
		Long: `Show what the kubelet dials, and which file sets it. A line that begins with ! describes a
problem; the exit code is 1 then.`,
		Args: cobra.NoArgs,
	}
	s := nodeFlags(c, enabler, cmd)
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
			st.Wrong = append(st.Wrong, fmt.Sprintf("cannot read pullgated's configuration, using the defaults: %v",
				safetext.OneLine(wrong)))
		}
		if err := c.Print(o, st, func(p *cli.Page) { draw(p, st.Lines()) }); err != nil {
			return err
		}
		if len(st.Wrong) > 0 {
			return program.Hintf("see the lines that begin with !", "the kubelet's settings have problems")
		}
		return nil
	}
	return cmd
}

type nodeSwitch struct {
	c            *cli.Console
	cmd          *cobra.Command
	enabler      nodeenable.Enabler
	config, unit string
	wait         time.Duration
}

func nodeFlags(c *cli.Console, enabler nodeenable.Enabler, cmd *cobra.Command) *nodeSwitch {
	s := &nodeSwitch{c: c, cmd: cmd, enabler: enabler}
	cmd.Flags().StringVar(&s.config, "config", defaultConfig, configUsage)
	cmd.Flags().StringVar(&s.unit, "unit", "", "the systemd `unit` that runs the kubelet; found automatically if not "+
		"given")
	_ = cmd.RegisterFlagCompletionFunc("unit", cobra.FixedCompletions([]string{
		"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
	}, cobra.ShellCompDirectiveNoFileComp))
	return s
}

func (s *nodeSwitch) on(d nodeenable.Daemon) nodeenable.Enabler {
	to := s.enabler
	to.Daemon, to.Unit, to.Wait = d, s.unit, s.wait
	to.Daemon.Path = s.config
	to.Progress = func(line string) { _, _ = fmt.Fprintln(s.c.Err, cli.Safe(line)) }
	return to
}

func (s *nodeSwitch) configured() (nodeenable.Daemon, error) {
	loaded, err := loadConfig(s.cmd, s.enabler.Host.Path(s.config))
	if err != nil {
		return nodeenable.DaemonOf(config.Default()), err
	}
	return nodeenable.DaemonOf(loaded), nil
}

func (s *nodeSwitch) running(ctx context.Context) (nodeenable.Daemon, error) {
	file, err := loadConfig(s.cmd, s.enabler.Host.Path(s.config))
	if isAbsent(err) {
		return nodeenable.Daemon{}, err
	}
	if err != nil {
		return nodeenable.Daemon{}, cli.Misused("correct it, check it with pullgated --check-config, then systemctl "+
			"restart pullgated", "pullgated's configuration %s: %w", s.config, err)
	}
	if file.Admin.Listen == "" {
		return nodeenable.DaemonOf(file), nil
	}
	status, err := statusFor(ctx, s.c, file.Admin.Listen)
	if err != nil {
		return nodeenable.Daemon{}, err
	}
	d, err := nodeenable.RunningDaemon(file, s.config, status)
	return d, nodeFailure(err)
}

func nodeChange(c *cli.Console, enabler nodeenable.Enabler, cmd *cobra.Command, enable bool) *cobra.Command {
	s := nodeFlags(c, enabler, cmd)
	cmd.Flags().DurationVar(&s.wait, "wait", 2*time.Minute,
		"how long the kubelet may take to become healthy after its restart")
	how := cli.ConsentFlags(cmd)
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		plan, question := nodeenable.Enabler.Disable, "Revert this?"
		d, _ := s.configured() // for disable the defaults suffice if it cannot be read
		if enable {
			plan, question = nodeenable.Enabler.Enable, "Make the kubelet use pullgated?"
			var err error
			if d, err = s.running(ctx); err != nil {
				return err
			}
		}
		if s.wait <= 0 {
			return cli.Misused("give it a minute or two", "--wait %s: it is more than 0", s.wait)
		}
		if err := c.Answerable(how); err != nil {
			return err
		}
		to := s.on(d)
		p, err := plan(to, ctx)
		if err != nil {
			return nodeFailure(err)
		}
		if how.DryRun || len(p.Steps) == 0 {
			return c.Print(o, p, func(page *cli.Page) { draw(page, p.Lines()) })
		}
		if err := c.Agree(ctx, how, o, question, func(page *cli.Page) { draw(page, p.Lines()) }); err != nil {
			return err
		}
		if err := to.Apply(ctx, p); err != nil {
			return nodeFailure(err)
		}
		if !enable { // the credential provider must not wait for pullgated
			path := s.enabler.Host.Path(filepath.Join(d.StateDir, nodecreds.File))
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nodeFailure(err)
			}
		}
		st, err := to.Status(ctx)
		if err != nil {
			return nodeFailure(err)
		}
		return c.Print(o, st, func(p *cli.Page) { draw(p, st.Lines()) })
	}
	return cmd
}

func nodeFailure(err error) error {
	switch {
	case errors.Is(err, nodeenable.ErrNotReached):
		return &cli.ExitError{Code: cli.ExitNotReached, Err: err}
	case errors.Is(err, nodeenable.ErrBusy):
		return program.WithHint(err, "wait for it, then see pullgatectl node status")
	case errors.Is(err, fs.ErrPermission) && program.HintOf(err) == "":
		return program.WithHint(err, "run it as root")
	}
	return err
}

func draw(p *cli.Page, lines []string) {
	for i, line := range lines {
		colour := cli.Plain
		switch {
		case i == 0 && strings.HasPrefix(line, "enabled"):
			colour = cli.Good
		case strings.HasPrefix(line, "  ! "):
			colour = cli.Heed
		}
		p.Paint(colour, "%s", line)
	}
}

const defaultConfig = "/etc/pullgate/config.yaml"

const configUsage = "pullgated's configuration `file`; one that is given must exist"

// loadConfig reads a configuration. An absent file is an error if --config names it, see isAbsent.
func loadConfig(cmd *cobra.Command, path string) (config.Config, error) {
	named := cmd.Flags().Changed("config")
	c, _, err := config.Load(path, named)
	if named && errors.Is(err, fs.ErrNotExist) && !errors.Is(err, config.ErrInvalid) {
		err = cli.Misused("give --config the path of the file that pullgated reads, see pullgatectl status", "%w", err)
	}
	return c, err
}

// isAbsent reports whether an error of loadConfig means that the file named by --config is absent.
func isAbsent(err error) bool {
	_, misused := errors.AsType[*cli.ExitError](err)
	return misused
}

func doctorCommand(c *cli.Console, node doctor.Node) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the node from outside pullgated, and show what is wrong and what to do",
		Long: `Check this node, also while pullgated does not run: the owner of each socket and the
process that answers there, what the kubelet dials and whether that is pullgated, the
versions of kubelet and runtime, mirrors that may answer without credentials, files and
their modes, free disk space, the clock, and the status of pullgated. If a policy file needs
pullgate-policyd: whether it answers with the same policy files and can read what it needs.
With --kubeconfig also whether the webhooks of pullgate in the cluster can be reached.

Each finding is ok, warn, fail or unknown, with a remediation unless it is ok. Nothing is
changed. The exit code is 1 if a finding is fail. Run it as root on the node; each mirror of the
runtime is asked once, without credentials, and each webhook, unless --no-network is given. If
the pod source does not sync and its kubeconfig runs a program for a token, that is run too, in
transient units of systemd, to find what the sandbox of pullgated.service forbids.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&node.ConfigPath, "config", defaultConfig, configUsage)
	cmd.Flags().BoolVar(&node.NoNetwork, "no-network", false,
		"ask no mirror and no webhook, and run no program of a kubeconfig")
	cmd.Flags().StringVar(&node.Kubeconfig, "kubeconfig", "",
		"kubeconfig `file` for the check of webhooks; its identity must be allowed to list webhook configurations")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n := node
		n.Config, n.ConfigErr = loadConfig(cmd, filepath.Join("/", n.Root, n.ConfigPath))
		if isAbsent(n.ConfigErr) {
			return n.ConfigErr
		}
		if n.ConfigErr != nil {
			n.Config = config.Default()
		}
		n.Status, n.StatusErr = statusFor(cmd.Context(), c, n.Config.Admin.Listen)
		found := n.Examine(cmd.Context(), doctor.OnRequest)
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		answer := struct {
			Findings []doctor.Finding `json:"findings"`
		}{found}
		if err := c.Print(o, answer, func(p *cli.Page) { showFindings(p, found) }); err != nil {
			return err
		}
		if doctor.Failed(found) {
			return program.Hintf("see the remediation of each failed check", "not all checks passed")
		}
		return nil
	}
	return cmd
}

func statusFor(ctx context.Context, c *cli.Console, listen string) (status *adminv1.GetStatusResponse, err error) {
	if listen == "" && !c.HasEndpoint() {
		return nil, errors.New("it has no admin API: admin.listen is empty")
	}
	err = c.At(listen).Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) (err error) {
		status, err = api.GetStatus(ctx, &adminv1.GetStatusRequest{})
		return err
	})
	return status, err
}

func showFindings(p *cli.Page, found []doctor.Finding) {
	colours := map[doctor.Level]cli.Colour{
		doctor.OK: cli.Good, doctor.Warn: cli.Heed, doctor.Fail: cli.Bad, doctor.Unknown: cli.Heed,
	}
	for _, f := range found {
		first := fmt.Sprintf("%-8s %-14s ", f.Level, f.Check)
		p.PaintProse(colours[f.Level], first, "%s", f.Found)
		if f.Remediation != "" {
			p.Prose(strings.Repeat(" ", len(first))+"-> ", "%s", f.Remediation)
		}
	}
}
