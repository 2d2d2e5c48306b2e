package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/pkg/config"
	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/kubeletnode/pointing"
	"github.com/pullgate/pullgate/pkg/policy"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const nodeLong = `Point the kubelet of this node at pullgated, take that back, and tell what it dials.

It knows the ways of kubeadm, of a kubelet in a systemd unit of its own, of k3s and of
RKE2. Pods that run go on: the kubelet finds the same containers behind the other socket.`

func nodeCommand(c *console) *cobra.Command {
	return groupCommand("node", "Point the kubelet of this node at pullgated, and back", nodeLong,
		nodeEnableCommand(c), nodeDisableCommand(c), nodeStatusCommand(c))
}

func nodeEnableCommand(c *console) *cobra.Command {
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
	s := nodeFlags(c, cmd)
	how := consentFlags(cmd)
	o := formatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := s.running(cmd.Context())
		if err != nil {
			return err
		}
		return s.carryOut(cmd.Context(), o, how, d, "Point the kubelet at pullgated?", pointing.Switch.Enable)
	}
	return cmd
}

func nodeDisableCommand(c *console) *cobra.Command {
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
	s := nodeFlags(c, cmd)
	how := consentFlags(cmd)
	o := formatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, _ := s.configured() // its defaults do if it cannot be read
		return s.carryOut(cmd.Context(), o, how, d, "Take it back?", pointing.Switch.Disable)
	}
	return cmd
}

func nodeStatusCommand(c *console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell what the kubelet dials, and which file says so",
		Args:  cobra.NoArgs,
	}
	s := nodeFlags(c, cmd)
	o := formatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, wrong := s.configured()
		st, err := s.on(d).Status(cmd.Context())
		if err != nil {
			return unpointed(err)
		}
		if wrong != nil {
			st.Wrong = append(st.Wrong, fmt.Sprintf("pullgated's configuration cannot be read, its defaults were taken: %v", wrong))
		}
		return c.printValue(o, st, func(p *text.Page) { drawNode(p, st) })
	}
	return cmd
}

// A nodeSwitch is what the flags of a command of node say.
type nodeSwitch struct {
	c            *console
	config, unit string
	wait         time.Duration
}

func nodeFlags(c *console, cmd *cobra.Command) *nodeSwitch {
	s := &nodeSwitch{c: c}
	cmd.Flags().StringVar(&s.config, "config", "/etc/pullgate/config.yaml", "pullgated's configuration `file`")
	cmd.Flags().StringVar(&s.unit, "unit", "", "the systemd `unit` that runs the kubelet; one is looked for if it is not given")
	if cmd.Name() != "status" {
		cmd.Flags().DurationVar(&s.wait, "wait", 2*time.Minute, "how long the kubelet may take to be well after its restart")
	}
	_ = cmd.RegisterFlagCompletionFunc("unit", cobra.FixedCompletions([]string{"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"}, cobra.ShellCompDirectiveNoFileComp))
	return s
}

// on is the switch between the kubelet and a daemon.
func (s *nodeSwitch) on(d pointing.Daemon) pointing.Switch {
	to := s.c.node
	to.Daemon, to.Unit, to.Wait = d, s.unit, s.wait
	to.Say = func(line string) { _, _ = fmt.Fprintln(s.c.err, text.Safe(line)) }
	return to
}

// configured is the daemon as its configuration file tells, and as its defaults tell if that cannot be read.
func (s *nodeSwitch) configured() (pointing.Daemon, error) {
	loaded, err := config.Load(s.c.node.Host.Path(s.config))
	if err != nil {
		return told(config.Default(), ""), err
	}
	return told(loaded, ""), nil
}

// running is the daemon as it says itself that it was configured, if its configuration file says the same.
func (s *nodeSwitch) running(ctx context.Context) (pointing.Daemon, error) {
	file, err := config.Load(s.c.node.Host.Path(s.config))
	if err != nil {
		return pointing.Daemon{}, misused("mend it, see that pullgated --check-config likes it, then systemctl restart pullgated", "pullgated's configuration %s: %w", s.config, err)
	}
	if file.Admin.Listen == "" {
		return told(file, "does as its configuration says"), nil
	}
	if s.c.endpoint == "" && s.c.getenv(endpointVariable) == "" {
		s.c.endpoint = file.Admin.Listen
	}
	var d pointing.Daemon
	err = s.c.ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) error {
		status, err := api.GetStatus(ctx, &adminv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		var inForce config.Config // pullgated has checked it
		if err := yaml.Unmarshal([]byte(status.GetConfiguration()), &inForce); err != nil {
			return fmt.Errorf("read the configuration that pullgated runs with: %w", err)
		}
		d = told(inForce, enforces(status, inForce))
		want := told(file, d.Enforces)
		if d != want {
			return &failure{
				code: exitFailed, hint: "systemctl restart pullgated, then try again",
				err: fmt.Errorf("pullgated listens on %s and forwards to %s, and by %s it should listen on %s and forward to %s", d.Listen, d.Runtime, s.config, want.Listen, want.Runtime),
			}
		}
		return nil
	})
	return d, err
}

func told(c config.Config, enforces string) pointing.Daemon {
	if c.ImageEndpoint == "" {
		c.ImageEndpoint = c.RuntimeEndpoint
	}
	return pointing.Daemon{
		Listen: c.Listen, Runtime: c.RuntimeEndpoint, Image: c.ImageEndpoint,
		Metrics: c.Metrics.Listen, StateDir: c.StateDir, Enforces: enforces,
	}
}

// enforces says in a few words whether pods will notice.
func enforces(s *adminv1.GetStatusResponse, c config.Config) string {
	switch {
	case c.NoPullImageSecretRecheck:
		return "is in shadow mode: it records and counts, and refuses nothing"
	case c.ImagePullCredentialsVerificationPolicy == string(policy.ModeNeverVerify):
		return "asks for no proof under the policy NeverVerify"
	case s.GetStore().GetDistrust() != nil:
		return "enforces " + c.ImagePullCredentialsVerificationPolicy + ", and distrusts its store: no image is taken for preloaded"
	default:
		return "enforces " + c.ImagePullCredentialsVerificationPolicy
	}
}

// carryOut shows a plan, and applies it if that is wanted.
func (s *nodeSwitch) carryOut(ctx context.Context, o *output, how *consent, d pointing.Daemon, question string,
	plan func(pointing.Switch, context.Context) (pointing.Plan, error),
) error {
	if s.wait <= 0 {
		return misused("give it a minute or two", "--wait %s: it is more than 0", s.wait)
	}
	if !how.dryRun && !how.yes && !s.c.inTerminal {
		return misused("add --yes to do it, or --dry-run to see what it would do", "nobody can be asked whether to go on: stdin is no terminal")
	}
	to := s.on(d)
	p, err := plan(to, ctx)
	if err != nil {
		return unpointed(err)
	}
	if how.dryRun || len(p.Steps) == 0 {
		return s.c.printValue(o, p, func(page *text.Page) { drawPlan(page, p) })
	}
	page := &text.Page{Colours: s.c.errTerminal && s.c.colours()}
	drawPlan(page, p)
	if _, err := s.c.err.Write(page.Take()); err != nil {
		return fmt.Errorf("show what would be done: %w", err)
	}
	if !how.yes {
		if err := s.c.confirm(ctx, question); err != nil {
			return err
		}
	}
	if err := to.Apply(ctx, p); err != nil {
		return unpointed(err)
	}
	st, err := to.Status(ctx)
	if err != nil {
		return unpointed(err)
	}
	return s.c.printValue(o, st, func(p *text.Page) { drawNode(p, st) })
}

// unpointed makes a failure of an error of pointing.
func unpointed(err error) error {
	f := &failure{code: exitFailed, err: err}
	if hint, ok := errors.AsType[*pointing.HintError](err); ok {
		f.hint = hint.Hint
	}
	switch {
	case errors.Is(err, pointing.ErrNotReached):
		f.code = exitNotReached
	case errors.Is(err, pointing.ErrBusy):
		f.hint = "wait for it, then look at pullgatectl node status"
	case errors.Is(err, fs.ErrPermission) && f.hint == "":
		f.hint = "run it as root"
	}
	return f
}

func drawPlan(p *text.Page, plan pointing.Plan) {
	for _, line := range plan.Lines() {
		p.Line("%s", line)
	}
}

func drawNode(p *text.Page, st pointing.Status) {
	colour, state := text.Plain, "disabled: the kubelet dials the runtime itself"
	if st.Enabled {
		colour, state = text.Good, "enabled: the kubelet dials pullgated"
	}
	p.Paint(colour, "%s", state)
	row := func(name, format string, args ...any) { p.Line("  %-12s %s", name, fmt.Sprintf(format, args...)) }
	row("unit", "%s (%s), %s", st.Unit, st.Kind, st.State)
	row("dials", "%s, told by %s", st.Runtime.Endpoint, st.Runtime.From)
	if st.Image != st.Runtime {
		row("for images", "%s, told by %s", st.Image.Endpoint, st.Image.From)
	}
	if st.Without.Endpoint != st.Runtime.Endpoint {
		row("disabled", "it would dial %s, told by %s", st.Without.Endpoint, st.Without.From)
	}
	for _, f := range st.Files {
		row("written", "%s", f)
	}
	if st.Journal != "" {
		row("journal", "%s, in %s", st.Journal, pointing.Journal)
	}
	for _, w := range st.Wrong {
		p.PaintProse(text.Heed, "  ! ", "%s", w)
	}
}

// printValue writes a value to stdout, as text by what draw makes of it. Its JSON names are those of its type.
func (c *console) printValue(o *output, v any, draw func(*text.Page)) error {
	p := &text.Page{Colours: c.colours()}
	if o.format == asTable {
		draw(p)
		return write(c.out, p.Take())
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil && o.format == asYAML {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return err
	}
	p.Text("", string(b))
	return write(c.out, p.Take())
}
