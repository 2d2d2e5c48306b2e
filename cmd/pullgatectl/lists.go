package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func intentsCommand(c *cli.Console) *cobra.Command {
	return cli.Group("intents", "Show pulls that are under way, or whose end nobody knows", "", intentsListCommand(c))
}

func intentsListCommand(c *cli.Console) *cobra.Command {
	var repository string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pull intents, by repository",
		Long: `List pull intents: pulls that are under way, and pulls whose answer was lost. As long as
a repository has one, nothing of it is taken for preloaded. One whose answer was lost is
settled by a list of images at least an hour later.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&repository, "repository", "", "only those of this `repository`")
	most := cli.LimitFlag(cmd)
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := most.Check(); err != nil {
			return err
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			all, err := cli.Intents(ctx, api, most.N, repository)
			if err != nil {
				return err
			}
			c.Cut(all.GetNextPageToken(), len(all.GetIntents()))
			return c.Print(o, all, func(v output.View, p *output.Page) { v.Intents(p, all.GetIntents()) })
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

func grantsCommand(c *cli.Console) *cobra.Command {
	return cli.Group("grants", "Show which pods were let in", "", grantsListCommand(c))
}

func grantsListCommand(c *cli.Console) *cobra.Command {
	var pod, uid, namespace, repository string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List grants, by pod UID",
		Long: `List grants: which pods may use which image until they end, and what that rests on.
REASON is the rule, or "granted" of a grant that was restored from a running container.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&pod, "pod", "", "only those of this pod, `namespace/name`")
	cmd.Flags().StringVar(&uid, "pod-uid", "", "only those of the pod of this `UID`")
	cmd.Flags().StringVar(&namespace, "namespace", "", "only those of pods of this `namespace`")
	cmd.Flags().StringVar(&repository, "repository", "", "only those of this `repository`")
	cmd.MarkFlagsMutuallyExclusive("pod", "namespace")
	most := cli.LimitFlag(cmd)
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := most.Check(); err != nil {
			return err
		}
		who := &adminv1.PodRef{Uid: uid, Namespace: namespace}
		if pod != "" {
			var err error
			if who.Namespace, who.Name, err = coordinates("pod", pod); err != nil {
				return err
			}
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			all, err := cli.Grants(ctx, api, most.N, who, repository)
			if err != nil {
				return err
			}
			c.Cut(all.GetNextPageToken(), len(all.GetGrants()))
			return c.Print(o, all, func(v output.View, p *output.Page) { v.Grants(p, all.GetGrants()) })
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}
