package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A listing is the request of a command that lists entries E, and how the command prints the answer L.
type listing[L interface {
	proto.Message
	GetNextPageToken() string
}, E any] struct {
	ask     func(ctx context.Context, api adminv1.PullRecordsClient, limit int) (L, error)
	entries func(L) []E
	print   func(output.View, *output.Page, []E)
}

// command adds the flags of a list to cmd, and makes it run the listing.
func (l listing[L, E]) command(c *cli.Console, cmd *cobra.Command) *cobra.Command {
	limit := cli.LimitFlag(cmd)
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := limit.Check(); err != nil {
			return err
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := l.ask(ctx, api, limit.N)
			if err != nil {
				return err
			}
			entries := l.entries(answer)
			c.Cut(answer.GetNextPageToken(), len(entries))
			return c.Print(o, answer, func(v output.View, p *output.Page) { l.print(v, p, entries) })
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

func intentsCommand(c *cli.Console) *cobra.Command {
	return cli.Group("intents", "Show pulls in progress or with unknown outcome", "", intentsListCommand(c))
}

func intentsListCommand(c *cli.Console) *cobra.Command {
	var repository string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pull intents, by repository",
		Long: `List pull intents (ImagePullIntent): pulls in progress, and pulls with unknown outcome. As
long as a repository has an intent, no image of it is marked preloaded. An intent with
unknown outcome is resolved by a list of images at least an hour later.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&repository, "repository", "", "only those of this `repository`")
	return listing[*adminv1.ListIntentsResponse, *adminv1.Intent]{
		ask: func(ctx context.Context, api adminv1.PullRecordsClient, limit int) (*adminv1.ListIntentsResponse, error) {
			return cli.Intents(ctx, api, limit, repository)
		},
		entries: (*adminv1.ListIntentsResponse).GetIntents,
		print:   output.View.Intents,
	}.command(c, cmd)
}

func grantsCommand(c *cli.Console) *cobra.Command {
	return cli.Group("grants", "Show which pods may use which images", "", grantsListCommand(c))
}

func grantsListCommand(c *cli.Console) *cobra.Command {
	var pod string
	var ref adminv1.PodRef
	var repository string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List grants, by pod UID",
		Long: `List grants: which pods may use which image until they end, and why. REASON is the rule,
or "granted" for a grant that was restored from a running container.`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if pod != "" {
				ref.Namespace, ref.Name, err = coordinates("pod", pod)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&pod, "pod", "", "only those of this pod, `namespace/name`")
	cmd.Flags().StringVar(&ref.Uid, "pod-uid", "", "only those of the pod with this `UID`")
	cmd.Flags().StringVar(&ref.Namespace, "namespace", "", "only those of pods of this `namespace`")
	cmd.Flags().StringVar(&repository, "repository", "", "only those of this `repository`")
	cmd.MarkFlagsMutuallyExclusive("pod", "namespace")
	return listing[*adminv1.ListGrantsResponse, *adminv1.Grant]{
		ask: func(ctx context.Context, api adminv1.PullRecordsClient, limit int) (*adminv1.ListGrantsResponse, error) {
			return cli.Grants(ctx, api, limit, &ref, repository)
		},
		entries: (*adminv1.ListGrantsResponse).GetGrants,
		print:   output.View.Grants,
	}.command(c, cmd)
}
