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
	return cli.Group("preloaded", "Show and change which images are marked preloaded",
		`Show and change the marks of preloaded images, which need no proof under the default
policy. Private images that were on the node before pullgated was installed are marked as
well: preloaded list shows them, and preloaded forget removes their marks.`,
		preloadedListCommand(c), preloadedAcceptCommand(c), preloadedForgetCommand(c))
}

func preloadedListCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListPreloadedRequest
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the marks of preloaded images",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	cmd.Flags().StringVar(&request.ImageId, "image-id", "", "only those of the image with this `ID`, or with this ID prefix")
	return listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListPreloaded,
		func(v output.View, p *output.Page, r *adminv1.ListPreloadedResponse) { v.Marks(p, r.GetMarks()) })
}

// pairSelection contains the flags of accept and forget that select pairs.
type pairSelection struct {
	repository, imageID string
	all                 bool
}

func (s *pairSelection) flags(cmd *cobra.Command, all, meaning string) {
	cmd.Flags().StringVar(&s.repository, "repository", "", "those of this `repository`")
	cmd.Flags().StringVar(&s.imageID, "image-id", "", "those of the image with this `ID`, or with this ID prefix")
	cmd.Flags().BoolVar(&s.all, all, false, meaning)
	cmd.MarkFlagsMutuallyExclusive(all, "repository")
	cmd.MarkFlagsMutuallyExclusive(all, "image-id")
}

// image sets the selection from the argument IMAGE.
func (s *pairSelection) image(args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case s.repository != "" || s.imageID != "" || s.all:
		return cli.Misused("give either IMAGE or flags", "IMAGE and flags cannot be combined")
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
with a tag or a digest selects the images that have it. Exactly the images shown are
marked; if they change meanwhile, none is. In a distrusted store --all-untracked is refused.` + cli.Changing,
		Example: `  # One image after the store was lost
  pullgatectl preloaded accept registry.example/tools/agent:1`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVar(&includingProved, "including-proved", false, "also images to which credentials proved access")
	s.flags(cmd, "all-untracked", "every image on the node that has no record")
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
			Nothing:  "Nothing to accept: the selected images are marked already, or no image is untracked.",
			Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.AcceptPreloadedResponse, error) {
				if err := cli.ExpandImageID(ctx, api, &s.imageID); err != nil {
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
		Short: "Remove preloaded marks, so that the images need proof from now on",
		Long: `Remove preloaded marks: the images need proof from now on, no scan marks them again, and
grants that depend on the marks end at once.` + cli.Changing,
		Example: `  # Private images were on the node before pullgated was installed: require proof for them
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
			Question: "Require proof for these images?",
			Nothing:  "Nothing to forget: no mark matches.",
			Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.ForgetPreloadedResponse, error) {
				if err := cli.ExpandImageID(ctx, api, &s.imageID); err != nil {
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
