package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// listing makes cmd request a list by ask, a method of the API, and print the answer with draw. It adds the flag
// --limit.
func listing[Q proto.Message, A cli.ListPage](c *cli.Console, cmd *cobra.Command, o *cli.Output, request Q,
	ask func(adminv1.PullRecordsClient, context.Context, Q, ...grpc.CallOption) (A, error), draw func(cli.View, *cli.Page, A),
) *cobra.Command {
	var limit int
	cmd.Flags().IntVar(&limit, "limit", 0, "list `N` entries at most; 0 is all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 0 {
			return cli.Misused("0 is all", "--limit %d: it is 0 or more", limit)
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, count, err := cli.List(ctx, api, limit, request, ask)
			if err != nil {
				return err
			}
			if answer.GetNextPageToken() != "" {
				_, _ = fmt.Fprintf(c.Err, "pullgatectl: there are more than these %d, --limit 0 lists all\n", count)
			}
			return c.Print(o, answer, func(v cli.View, p *cli.Page) { draw(v, p, answer) })
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

func intentsCommand(c *cli.Console) *cobra.Command {
	return cli.Group("intents", "Show pulls in progress or with unknown outcome", "", intentsListCommand(c))
}

func intentsListCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListIntentsRequest
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pull intents, by repository",
		Long: `List pull intents (ImagePullIntent): pulls in progress, and pulls with unknown outcome. As
long as a repository has an intent, no image of it is marked preloaded. An intent with
unknown outcome is resolved by a list of images at least an hour later.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	return listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListIntents,
		func(v cli.View, p *cli.Page, r *adminv1.ListIntentsResponse) { v.Intents(p, r.GetIntents()) })
}

func grantsCommand(c *cli.Console) *cobra.Command {
	return cli.Group("grants", "Show which pods may use which images", "", grantsListCommand(c))
}

func grantsListCommand(c *cli.Console) *cobra.Command {
	var pod string
	request := adminv1.ListGrantsRequest{Pod: &adminv1.PodRef{}}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List grants, by pod UID",
		Long: `List grants: which pods may use which image until they end, and why. REASON is the rule,
or "granted" for a grant that was restored from a running container.`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if pod != "" {
				request.Pod.Namespace, request.Pod.Name, err = coordinates("pod", pod)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&pod, "pod", "", "only those of this pod, `namespace/name`")
	cmd.Flags().StringVar(&request.Pod.Uid, "pod-uid", "", "only those of the pod with this `UID`")
	cmd.Flags().StringVar(&request.Pod.Namespace, "namespace", "", "only those of pods of this `namespace`")
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	cmd.MarkFlagsMutuallyExclusive("pod", "namespace")
	return listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListGrants,
		func(v cli.View, p *cli.Page, r *adminv1.ListGrantsResponse) { v.Grants(p, r.GetGrants()) })
}
