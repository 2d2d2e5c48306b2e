package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

type nodeInstall struct {
	c       *cli.Console
	enabler nodeenable.Enabler
	folder  string
	unit    string
}

func installFlags(c *cli.Console, enabler nodeenable.Enabler, cmd *cobra.Command) *nodeInstall {
	n := &nodeInstall{c: c, enabler: enabler}
	cmd.Flags().StringVar(&n.folder, "folder", nodeinstall.DefaultFolder,
		"the `folder` of versions and of the state of the installation")
	return n
}

func (n *nodeInstall) installer() nodeinstall.Installer {
	e := n.enabler
	e.Unit = n.unit
	return nodeinstall.Installer{
		Host: e.Host, Folder: n.folder, Enabler: e, Compare: nodeinstall.CompareCRI,
		Ask: func(ctx context.Context, listen string) (*adminv1.GetStatusResponse, error) {
			return statusFor(ctx, n.c, listen)
		},
		Progress: func(line string) { _, _ = fmt.Fprintln(n.c.Err, cli.Safe(line)) },
	}
}

// hostname is how messages name the node where no Rollout does; "" if the host does not say it.
func (n *nodeInstall) hostname() string {
	name, _ := n.enabler.Host.ReadFile("/proc/sys/kernel/hostname")
	return strings.TrimSpace(string(name))
}

// ended prints how an attempt ended.
func (n *nodeInstall) ended(o *cli.Output, s nodeinstall.Status, err error) error {
	if s == (nodeinstall.Status{}) {
		return nodeFailure(err)
	}
	printErr := n.c.Print(o, s, func(p *cli.Page) { drawInstallation(p, s) })
	return errors.Join(nodeFailure(err), printErr)
}

func drawInstallation(p *cli.Page, s nodeinstall.Status) {
	outcome, colour := string(s.Outcome), cli.Good
	switch {
	case outcome == "":
		outcome, colour = "in progress", cli.Heed
	case !s.Good():
		colour = cli.Bad
	}
	p.Paint(colour, "%s: attempt %s, stage %s", outcome, s.Attempt, s.Stage)
	p.Prose("  ", "%s", s.Message)
	if s.Version != "" {
		p.Line("  version %s", s.Version)
	}
	if s.Former != "" {
		p.Line("  former version %s, kept for pullgatectl node rollback", s.Former)
	}
}

func nodeInstallCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install",
		Short: "In the pod of pullgate-dispatcher: install the version of this image on the node",
		Long: `Carry out the request in the annotations of this pod: copy the programs of the image into
a folder of the host, verify their signatures there, and let systemd of the host apply the
request. Then follow that until it has ended, and pass a confirmation on.

pullgate-dispatcher makes the pod. It needs the folder and the socket of the system bus as
hostPaths, and the annotations as a file of a downward API volume. It needs neither
privileges nor capabilities, and no program but this one.

The exit code is 0 if the request was carried out. The termination message of the container
is the same as that of -o json.`,
		Args: cobra.NoArgs,
	}
	n := installFlags(c, enabler, cmd)
	var pod nodeinstall.Pod
	var bus, last string
	cmd.Flags().StringVar(&pod.Annotations, "annotations", "/podinfo/annotations", "`file` with the pod's annotations")
	cmd.Flags().StringVar(&pod.Programs, "programs", "/usr/bin", "`folder` of the programs and their signatures")
	cmd.Flags().StringVar(&bus, "bus", nodeinstall.DefaultBus, "`socket` of the host's system bus")
	cmd.Flags().StringVar(&last, "termination-log", "/dev/termination-log",
		"`file` for the termination message; \"\" writes none")
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		pod.Installer, pod.Version = n.installer(), program.Version
		b := nodeinstall.Bus{Socket: bus}
		pod.Start, pod.Runs = b.Start, b.Runs
		s, err := pod.Run(cmd.Context())
		if last != "" {
			if wordsErr := nodeinstall.LastWords(last, s); wordsErr != nil {
				err = errors.Join(err, fmt.Errorf("write the termination message: %w", wordsErr))
			}
		}
		return n.ended(o, s, err)
	}
	return cmd
}

func nodeInstallStatusCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install-status",
		Short: "Show the stage of an installation, or how the last one ended",
		Long: `Show the stage of an installation on this node, or how the last one ended.

With --attempt the exit code is 0 if that attempt waits for its confirmation, has it, or was
successful, and 1 otherwise. This is the readiness probe of the installing pod.`,
		Args: cobra.NoArgs,
	}
	n := installFlags(c, enabler, cmd)
	attempt := cmd.Flags().String("attempt", "", "the `name` of an attempt")
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		s, err := n.installer().Status()
		switch {
		case err != nil:
			return nodeFailure(err)
		case s.Attempt == "":
			return program.Hintf("give --folder if another one was used", "no installation has been tried on this node")
		}
		if err := c.Print(o, s, func(p *cli.Page) { drawInstallation(p, s) }); err != nil {
			return err
		}
		if *attempt != "" && !s.Reached(*attempt) {
			return fmt.Errorf("attempt %s does not wait for its confirmation", *attempt)
		}
		return nil
	}
	return cmd
}

func nodeApplyCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	var stages strings.Builder
	for _, s := range nodeinstall.Stages() {
		_, _ = fmt.Fprintf(&stages, "    %-21s %s\n", s.Name, s.Text)
	}
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Apply a request on this node, or take everything back",
		Long: `Apply a request to install a version whose programs are in the folder, to roll back or to
remove pullgate, in these stages:

` + stages.String() + `
If a stage fails, or the confirmation does not come in time, everything is taken back: every
file is byte for byte as before. If this command is killed, the dead-man's switch does that:
a timer of systemd, and after a reboot a unit that runs before the kubelet.

The same attempt can be applied again. It goes on where it was killed, and is not run again
if it has ended.`,
		Example: `  # What would it do?
  pullgatectl node apply --request request.json --dry-run`,
		Args: cobra.NoArgs,
	}
	n := installFlags(c, enabler, cmd)
	request := cmd.Flags().String("request", "", "`file` with the request")
	_ = cmd.MarkFlagRequired("request")
	kubeletUnit(n, cmd)
	dry := cmd.Flags().Bool("dry-run", false, "show what would be done, and do nothing")
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := nodeinstall.LoadRequest(n.enabler.Host.Path(*request))
		if err != nil {
			return nodeFailure(err)
		}
		if *dry {
			return n.plan(o, r)
		}
		r.NodeName = cmp.Or(r.NodeName, n.hostname())
		s, err := n.installer().Apply(cmd.Context(), r)
		return n.ended(o, s, err)
	}
	return cmd
}

func kubeletUnit(n *nodeInstall, cmd *cobra.Command) {
	cmd.Flags().StringVar(&n.unit, "unit", "", "the systemd `unit` that runs the kubelet; found automatically if not "+
		"given")
}

func (n *nodeInstall) plan(o *cli.Output, r nodeinstall.Request) error {
	lines, err := n.installer().Plan(r)
	if err != nil {
		return nodeFailure(err)
	}
	return n.c.Print(o, map[string]any{"plan": lines}, func(p *cli.Page) { draw(p, lines) })
}

func nodeConfirmCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "confirm",
		Short: "Confirm that the node works with the version that is being installed",
		Long: `Confirm that the node works with the version that is being installed, so that it is not
taken back in time. pullgate-dispatcher does this once the API server sees the node Ready.

The change must be in stage AwaitingConfirmation, see pullgatectl node install-status.`,
		Args: cobra.NoArgs,
	}
	n := installFlags(c, enabler, cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		i := n.installer()
		attempt, err := i.Awaiting()
		if err == nil {
			err = i.Confirm(attempt)
		}
		return nodeFailure(err)
	}
	return cmd
}

func nodeRevertCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revert",
		Short: "Take back an installation that is in progress",
		Long: `Take back an installation that is in progress: end it if it runs, point the kubelet at the
runtime if that is what it used before, and restore every file. A removal that was
interrupted is completed.

systemd runs this command too, as the dead-man's switch of an installation: with --timer once
the time for its confirmation is over, and with --boot before the kubelet starts. Both
finish a confirmed installation instead.`,
		Args: cobra.NoArgs,
	}
	n := installFlags(c, enabler, cmd)
	timer := cmd.Flags().Bool("timer", false, "called by the timer: finish a confirmed installation")
	boot := cmd.Flags().Bool("boot", false, "called before the kubelet starts: finish a confirmed installation, watch "+
		"nothing")
	cmd.MarkFlagsMutuallyExclusive("timer", "boot")
	kubeletUnit(n, cmd)
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		by := nodeinstall.ByHand
		switch {
		case *timer:
			by = nodeinstall.ByTimer
		case *boot:
			by = nodeinstall.ByBoot
		}
		s, err := n.installer().Revert(cmd.Context(), by)
		return n.ended(o, s, err)
	}
	return cmd
}

func nodeRollbackCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Return to the version before the installed one, with its mode and configuration",
		Long: `Return to the version before the installed one, with its mode and configuration. Its programs
are still on the node. No call of the kubelet fails.

The stages are those of an installation, see pullgatectl node apply --help, and end with
its confirmation by this command. If one fails, the installed version stays.`,
		Args: cobra.NoArgs,
	}
	return nodeDecision(c, enabler, cmd, nodeinstall.Rollback, "Return to the former version?", nil)
}

func nodeRemoveCommand(c *cli.Console, enabler nodeenable.Enabler) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Take a pullgate that was installed by node apply off this node",
		Long: `Point the kubelet at the runtime, wait until it is healthy, stop pullgated, and remove its
units, configuration and programs. Every file that pullgate did not own is byte for byte as it
was before the first installation. Records and logs stay, unless --purge is given.

If the command is killed, the node works, and the rest is done by a timer or at the next boot.
A pullgate that a package has installed is removed by the package manager.`,
		Args: cobra.NoArgs,
	}
	purge := cmd.Flags().Bool("purge", false, "remove records and logs too")
	return nodeDecision(c, enabler, cmd, nodeinstall.Remove, "Take pullgate off this node?", purge)
}

// nodeDecision is a command of an operator who is on the node, and confirms it.
func nodeDecision(c *cli.Console, enabler nodeenable.Enabler, cmd *cobra.Command, action nodeinstall.Action,
	question string, purge *bool,
) *cobra.Command {
	n := installFlags(c, enabler, cmd)
	kubeletUnit(n, cmd)
	how := cli.ConsentFlags(cmd)
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r := nodeinstall.Request{
			Attempt: "by-hand-" + c.Now().UTC().Format("20060102T150405"), Action: action, Purge: purge != nil && *purge,
			NodeName: n.hostname(), Probation: (10 * time.Second).String(),
		}
		if how.DryRun {
			return n.plan(o, r)
		}
		if err := c.Answerable(how); err != nil {
			return err
		}
		i := n.installer()
		i.ConfirmItself = true
		lines, err := i.Plan(r)
		if err != nil {
			return nodeFailure(err)
		}
		if err := c.Agree(cmd.Context(), how, o, question, func(p *cli.Page) { draw(p, lines) }); err != nil {
			return err
		}
		s, err := i.Apply(cmd.Context(), r)
		return n.ended(o, s, err)
	}
	return cmd
}
