package main

import (
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pullgate/pullgate/pkg/ctl/console"
	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/ctl/view"
)

func versionCommand(c *console.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of pullgatectl; status tells that of pullgated",
		Args:  cobra.NoArgs,
	}
	o := console.OutputFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		told, err := structpb.NewStruct(map[string]any{
			"version": version, "commit": commit, "date": date, "goVersion": runtime.Version(),
		})
		if err != nil {
			return err
		}
		return c.Print(o, told, func(_ view.View, p *text.Page) {
			p.Line("pullgatectl %s (commit %s, %s, %s)", version, commit, date, runtime.Version())
		})
	}
	return cmd
}
