package daemon

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/pullgate/pullgate/internal/nodecreds/report"
)

// runNode keeps the node's own credentials in step with their files and with what credential providers
// report, until ctx ends.
func runNode(ctx context.Context, p parts) error {
	var g errgroup.Group
	g.Go(func() error { return p.node.Run(ctx) })
	if p.on.reports != nil {
		g.Go(func() error {
			l := p.on.reports.wait(ctx)
			if l == nil {
				return nil
			}
			return report.Serve(ctx, l, p.key.Fingerprint(), p.node)
		})
	}
	return g.Wait()
}
