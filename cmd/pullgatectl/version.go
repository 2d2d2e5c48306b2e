package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
)

func versionCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of pullgatectl; status shows that of pullgated",
		Args:  cobra.NoArgs,
	}
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		answer := map[string]any{
			"version": program.Version, "commit": program.Commit, "date": program.Date, "goVersion": runtime.Version(),
		}
		return c.Print(o, answer, func(_ cli.View, p *cli.Page) {
			p.Line("%s", program.VersionLine("pullgatectl"))
		})
	}
	return cmd
}
