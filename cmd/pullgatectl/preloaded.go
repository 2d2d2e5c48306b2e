package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	"github.com/pullgate/pullgate/internal/hint"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func preloadedCommand(c *cli.Console) *cobra.Command {
	return cli.Group("preloaded", "Show and correct which images were there before anybody had to prove access",
		`Show and correct the marks of preloaded images, which need no proof under the default
policy. A node that had private images before pullgated came has them all marked:
preloaded list shows them, and preloaded forget closes them.`,
		preloadedListCommand(c), preloadedAcceptCommand(c), preloadedForgetCommand(c))
}

func preloadedListCommand(c *cli.Console) *cobra.Command {
	var repository, image string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the marks of preloaded images",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&repository, "repository", "", "only those of this `repository`")
	cmd.Flags().StringVar(&image, "image-id", "", "only those of the image of this `ID`, or of this beginning of one")
	most := cli.LimitFlag(cmd)
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := most.Check(); err != nil {
			return err
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			all, err := cli.Preloaded(ctx, api, most.N, repository, image)
			if err != nil {
				return err
			}
			c.Cut(all.GetNextPageToken(), len(all.GetMarks()))
			return c.Print(o, all, func(v output.View, p *output.Page) { v.Marks(p, all.GetMarks()) })
		})
	}
	c.CompleteFlags(cmd)
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

// image selects by the argument IMAGE.
func (s *pairSelection) image(args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case s.repository != "" || s.imageID != "" || s.all:
		return cli.Misused("give IMAGE alone, or flags alone", "IMAGE and flags select")
	case cli.IsID(args[0]):
		s.imageID = args[0]
	default:
		s.repository = args[0]
	}
	return nil
}

func (s *pairSelection) check(all string) error {
	if s.repository == "" && s.imageID == "" && !s.all {
		return cli.Misused("give --repository, --image-id, or --"+all, "nothing is selected")
	}
	return nil
}

func preloadedAcceptCommand(c *cli.Console) *cobra.Command {
	var s pairSelection
	var includingProved bool
	cmd := &cobra.Command{
		Use:   "accept [IMAGE]",
		Short: "Mark images that are on the node as preloaded, for every pod",
		Long: `Mark images that are on the node as preloaded: every pod may use them, under a policy
that exempts preloaded images. IMAGE is a name, as for --repository, or an image ID; a name
with a tag or a digest selects the images that have it. What is shown is what is marked:
if it has changed meanwhile, nothing is. In a distrusted store --all-untracked is refused.` + cli.Changing,
		Example: `  # One image after the store was lost
  pullgatectl preloaded accept registry.example/tools/agent:1`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVar(&includingProved, "including-proved", false, "also open images to every pod that credentials proved access to")
	s.flags(cmd, "all-untracked", "every image of the node that nothing is known of")
	how := cli.ConsentFlags(cmd)
	o := cli.OutputFlags(cmd)
	var confirmation string
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.image(args); err != nil {
			return err
		}
		if err := s.check("all-untracked"); err != nil {
			return err
		}
		return cli.CarryOut(cmd.Context(), c, o, how, cli.Change[*adminv1.AcceptPreloadedResponse]{
			Question: "Let every pod use these?",
			Nothing:  "Nothing to accept: what is selected is marked already, or nothing is untracked.",
			Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (_ *adminv1.AcceptPreloadedResponse, err error) {
				if s.imageID, err = imageID(ctx, api, s.imageID); err != nil {
					return nil, err
				}
				r, err := api.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{
					Repository: s.repository, ImageId: s.imageID, AllUntracked: s.all, DryRun: dryRun,
					IncludingProved: includingProved, Confirmation: confirmation,
				})
				confirmation = r.GetConfirmation()
				return r, err
			},
			Refuse: func(r *adminv1.AcceptPreloadedResponse) error {
				if len(r.GetProved()) == 0 || includingProved {
					return nil
				}
				return hint.Errorf("select the others by name or --image-id, or add --including-proved",
					"credentials proved access to some of these images, and accepting opens them to pods that did not")
			},
			Empty: func(r *adminv1.AcceptPreloadedResponse) bool { return len(r.GetAccepted()) == 0 },
			Plan:  output.View.Acceptance,
			Done:  output.View.Accepted,
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

func preloadedForgetCommand(c *cli.Console) *cobra.Command {
	var s pairSelection
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Take marks away, so that the images need proof from now on",
		Long: `Take marks away: the images need proof from now on, no scan marks them again, and the
grants that rest on the marks end at once.` + cli.Changing,
		Example: `  # The node had private images before pullgated came: close all that is of a registry of yours
  pullgatectl preloaded list
  pullgatectl preloaded forget --repository registry.example/team-a/app`,
		Args: cobra.NoArgs,
	}
	s.flags(cmd, "all", "every mark")
	how := cli.ConsentFlags(cmd)
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.check("all"); err != nil {
			return err
		}
		return cli.CarryOut(cmd.Context(), c, o, how, cli.Change[*adminv1.ForgetPreloadedResponse]{
			Question: "Let nobody use these without proof?",
			Nothing:  "Nothing to forget: no mark fits.",
			Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (_ *adminv1.ForgetPreloadedResponse, err error) {
				if s.imageID, err = imageID(ctx, api, s.imageID); err != nil {
					return nil, err
				}
				return api.ForgetPreloaded(ctx, &adminv1.ForgetPreloadedRequest{Repository: s.repository, ImageId: s.imageID, All: s.all, DryRun: dryRun})
			},
			Empty: func(r *adminv1.ForgetPreloadedResponse) bool {
				return len(r.GetForgotten())+len(r.GetGrants()) == 0
			},
			Plan: output.View.Forgetting,
			Done: output.View.Forgotten,
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}
