package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func watchCommand(c *cli.Console) *cobra.Command {
	var request adminv1.WatchDecisionsRequest
	var limit int
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print decisions as they are made",
		Long: `Print decisions as they are made, as the decision log has them, until Ctrl-C. With
-o json each is a line, with -o yaml a document. If they come faster than they are
read some are left out, and stderr has their number.`,
		Example: `  pullgatectl watch --namespace team-a

  # Who is kept from an image?
  pullgatectl watch -o json | jq -r 'select(.verdict == "VERDICT_REVERIFY") | "\(.pod.namespace)/\(.pod.name) \(.image) \(.reason)"'`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Namespace, "namespace", "", "only those about pods of this `namespace`")
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those about this `repository`")
	cmd.Flags().IntVar(&limit, "limit", 0, "end after `N` decisions; 0 is never")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 0 {
			return cli.Misused("0 is never", "--limit %d: it is 0 or more", limit)
		}
		interrupted := cmd.Context()
		err := c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := api.WatchDecisions(ctx, &request)
			if err != nil {
				return err
			}
			return follow(c, o, limit, stream.Recv)
		})
		if interrupted.Err() != nil {
			err = nil // Ctrl-C is the normal end
		}
		return err
	}
	c.CompleteFlags(cmd)
	return cmd
}

// follow prints decisions until there are limit of them, or next fails.
func follow(c *cli.Console, o *cli.Output, limit int, next func() (*adminv1.WatchDecisionsResponse, error)) error {
	p := c.Page()
	if o.Format == cli.AsTable {
		o.View(c).DecisionHead(p)
		if err := c.Emit(p.Take()); err != nil {
			return err
		}
	}
	for n := 0; limit == 0 || n < limit; n++ {
		d, err := next()
		if errors.Is(err, io.EOF) {
			return program.Hintf("pullgated is stopping or restarting; see systemctl status pullgated", "pullgated has ended the watch")
		}
		if err != nil {
			return err
		}
		if d.GetDropped() > 0 {
			_, _ = fmt.Fprintf(c.Err, "pullgatectl: %d decisions are missing here, they came faster than they were read\n", d.GetDropped())
		}
		b, err := line(c, o, p, d)
		if err != nil {
			return err
		}
		if err := c.Emit(b); err != nil {
			return err
		}
	}
	return nil
}

func line(c *cli.Console, o *cli.Output, p *cli.Page, d *adminv1.WatchDecisionsResponse) ([]byte, error) {
	switch o.Format {
	case cli.AsJSON:
		return cli.JSONLine(d)
	case cli.AsYAML:
		b, err := cli.YAML(d)
		return append([]byte("---\n"), b...), err
	case cli.AsTable:
	}
	o.View(c).Decision(p, d)
	return p.Take(), nil
}
