package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/text"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func watchCommand(c *console) *cobra.Command {
	var request adminv1.WatchDecisionsRequest
	var limit int
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print decisions as they are made",
		Long: `Print decisions as they are made, as the decision log has them, until Ctrl-C. With
-o json each is a line, with -o yaml a document. If they come faster than they are
read some are left out, and stderr says how many.`,
		Example: `  pullgatectl watch --namespace team-a

  # Who is kept from an image?
  pullgatectl watch -o json | jq -r 'select(.verdict == "VERDICT_REVERIFY") | "\(.pod.namespace)/\(.pod.name) \(.image) \(.reason)"'`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Namespace, "namespace", "", "only those about pods of this `namespace`")
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those about this `repository`")
	cmd.Flags().IntVar(&limit, "limit", 0, "end after `N` decisions; 0 is never")
	o := outputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 0 {
			return misused("0 is never", "--limit %d: it is 0 or more", limit)
		}
		interrupted := cmd.Context()
		err := c.ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := api.WatchDecisions(ctx, &request)
			if err != nil {
				return err
			}
			return c.follow(o, limit, stream.Recv)
		})
		if interrupted.Err() != nil {
			err = nil // Ctrl-C is how it ends
		}
		return err
	}
	c.completeFlags(cmd)
	return cmd
}

// follow prints what comes until there are limit decisions, or it fails.
func (c *console) follow(o *output, limit int, next func() (*adminv1.WatchDecisionsResponse, error)) error {
	p := &text.Page{Colours: c.colours()}
	if o.format == asTable {
		o.view(c).DecisionHead(p)
		if err := write(c.out, p.Take()); err != nil {
			return err
		}
	}
	for n := 0; limit == 0 || n < limit; n++ {
		d, err := next()
		if errors.Is(err, io.EOF) {
			return &failure{code: exitFailed, err: errors.New("pullgated has ended the watch"), hint: "it stops or starts anew; see systemctl status pullgated"}
		}
		if err != nil {
			return err
		}
		if d.GetDropped() > 0 {
			_, _ = fmt.Fprintf(c.err, "pullgatectl: %d decisions are missing here, they came faster than they were read\n", d.GetDropped())
		}
		b, err := c.line(o, p, d)
		if err != nil {
			return err
		}
		if err := write(c.out, b); err != nil {
			return err
		}
	}
	return nil
}

func (c *console) line(o *output, p *text.Page, d *adminv1.WatchDecisionsResponse) ([]byte, error) {
	switch o.format {
	case asJSON:
		return text.JSONLine(d)
	case asYAML:
		b, err := text.YAML(d)
		return append([]byte("---\n"), b...), err
	case asTable:
	}
	o.view(c).Decision(p, d)
	return p.Take(), nil
}
