package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const defaultConfig = "/etc/pullgate/config.yaml"

const configUsage = "pullgated's configuration `file`; one that is given must exist"

// loadConfig reads pullgated's configuration from a path. An absent file is an error (see isAbsent) if --config names
// it; otherwise the defaults are returned.
func loadConfig(cmd *cobra.Command, path string) (config.Config, error) {
	if !cmd.Flags().Changed("config") {
		c, _, err := config.Load(path)
		return c, err
	}
	c, err := config.LoadPresent(path)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, config.ErrInvalid) {
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
runtime is asked once, without credentials, and each webhook, unless --no-network is given.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&node.ConfigPath, "config", defaultConfig, configUsage)
	cmd.Flags().BoolVar(&node.NoNetwork, "no-network", false, "ask no mirror and no webhook")
	cmd.Flags().StringVar(&node.Kubeconfig, "kubeconfig", "", "kubeconfig `file` for the check of webhooks; its identity must be allowed to list validatingwebhookconfigurations")
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
		if err := c.Print(o, answer, func(_ cli.View, p *cli.Page) { showFindings(p, found) }); err != nil {
			return err
		}
		if doctor.Failed(found) {
			return program.Hintf("see the remediation of each failed check", "not all checks passed")
		}
		return nil
	}
	return cmd
}

// statusFor asks the daemon for its status, on the socket of its configuration unless a flag gives another.
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

// showFindings prints each finding with its remediation below it.
func showFindings(p *cli.Page, found []doctor.Finding) {
	colours := map[doctor.Level]cli.Colour{doctor.OK: cli.Good, doctor.Warn: cli.Heed, doctor.Fail: cli.Bad, doctor.Unknown: cli.Heed}
	for _, f := range found {
		first := fmt.Sprintf("%-8s %-14s ", f.Level, f.Check)
		p.PaintProse(colours[f.Level], first, "%s", f.Found)
		if f.Remediation != "" {
			p.Prose(strings.Repeat(" ", len(first))+"-> ", "%s", f.Remediation)
		}
	}
}
