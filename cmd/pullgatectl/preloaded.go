package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/catalog"
	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/ctl/view"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func preloadedCommand(c *console) *cobra.Command {
	return groupCommand("preloaded", "Show and correct which images were there before anybody had to prove access",
		`Show and correct the marks of preloaded images, which need no proof under the default
policy. A node that had private images before pullgated came has them all marked:
preloaded list shows them, and preloaded forget closes them.`,
		preloadedListCommand(c), preloadedAcceptCommand(c), preloadedForgetCommand(c))
}

func preloadedListCommand(c *console) *cobra.Command {
	var repository, image string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the marks of preloaded images",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&repository, "repository", "", "only those of this `repository`")
	cmd.Flags().StringVar(&image, "image-id", "", "only those of the image of this `ID`, or of this beginning of one")
	most := limitFlag(cmd)
	o := outputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := most.check(); err != nil {
			return err
		}
		return c.ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			all, err := catalog.Preloaded(ctx, api, most.n, repository, image)
			if err != nil {
				return err
			}
			c.cut(all.GetNextPageToken(), len(all.GetMarks()))
			return c.print(o, all, func(v view.View, p *text.Page) { v.Marks(p, all.GetMarks()) })
		})
	}
	c.completeFlags(cmd)
	return cmd
}

// pairSelection is what the flags of accept and forget select.
type pairSelection struct {
	repository, imageID string
	all                 bool
}

func (s *pairSelection) flags(cmd *cobra.Command, all, meaning string) {
	cmd.Flags().StringVar(&s.repository, "repository", "", "those of this `repository`")
	cmd.Flags().StringVar(&s.imageID, "image-id", "", "those of the image of this `ID`, or of this beginning of one")
	cmd.Flags().BoolVar(&s.all, all, false, meaning)
	cmd.MarkFlagsMutuallyExclusive(all, "repository")
	cmd.MarkFlagsMutuallyExclusive(all, "image-id")
}

func (s *pairSelection) check(all string) error {
	if s.repository == "" && s.imageID == "" && !s.all {
		return misused("give --repository, --image-id, or --"+all, "nothing is selected")
	}
	return nil
}

func preloadedAcceptCommand(c *console) *cobra.Command {
	var s pairSelection
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Mark images that are on the node as preloaded, for every pod",
		Long:  "Mark images that are on the node as preloaded: every pod may use them, under a policy that exempts preloaded images." + changing,
		Args:  cobra.NoArgs,
	}
	s.flags(cmd, "all-untracked", "every image of the node that nothing is known of")
	how := consentFlags(cmd)
	o := outputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.check("all-untracked"); err != nil {
			return err
		}
		return carryOut(cmd.Context(), c, o, how, change[*adminv1.AcceptPreloadedResponse]{
			question: "Let every pod use these?",
			nothing:  "Nothing to accept: what is selected is marked already, or nothing is untracked.",
			do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (_ *adminv1.AcceptPreloadedResponse, err error) {
				if s.imageID, err = imageID(ctx, api, s.imageID); err != nil {
					return nil, err
				}
				return api.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{Repository: s.repository, ImageId: s.imageID, AllUntracked: s.all, DryRun: dryRun})
			},
			empty: func(r *adminv1.AcceptPreloadedResponse) bool { return len(r.GetAccepted()) == 0 },
			plan:  view.View.Acceptance,
			done:  view.View.Accepted,
		})
	}
	c.completeFlags(cmd)
	return cmd
}

func preloadedForgetCommand(c *console) *cobra.Command {
	var s pairSelection
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Take marks away, so that the images need proof from now on",
		Long: `Take marks away: the images need proof from now on, no scan marks them again, and the
grants that rest on the marks end at once.` + changing,
		Example: `  # The node had private images before pullgated came: close all that is of a registry of yours
  pullgatectl preloaded list
  pullgatectl preloaded forget --repository registry.example/team-a/app`,
		Args: cobra.NoArgs,
	}
	s.flags(cmd, "all", "every mark")
	how := consentFlags(cmd)
	o := outputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.check("all"); err != nil {
			return err
		}
		return carryOut(cmd.Context(), c, o, how, change[*adminv1.ForgetPreloadedResponse]{
			question: "Let nobody use these without proof?",
			nothing:  "Nothing to forget: no mark fits.",
			do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (_ *adminv1.ForgetPreloadedResponse, err error) {
				if s.imageID, err = imageID(ctx, api, s.imageID); err != nil {
					return nil, err
				}
				return api.ForgetPreloaded(ctx, &adminv1.ForgetPreloadedRequest{Repository: s.repository, ImageId: s.imageID, All: s.all, DryRun: dryRun})
			},
			empty: func(r *adminv1.ForgetPreloadedResponse) bool {
				return len(r.GetForgotten())+len(r.GetGrants()) == 0
			},
			plan: view.View.Forgetting,
			done: view.View.Forgotten,
		})
	}
	c.completeFlags(cmd)
	return cmd
}
