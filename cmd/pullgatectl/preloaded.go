package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
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
		func(v cli.View, p *cli.Page, r *adminv1.ListPreloadedResponse) { v.Marks(p, r.GetMarks()) })
}

// pairFlags adds the flags of accept and forget that select pairs; all is the name of the flag of whole.
func pairFlags(cmd *cobra.Command, repository, imageID *string, whole *bool, all, meaning string) {
	cmd.Flags().StringVar(repository, "repository", "", "those of this `repository`")
	cmd.Flags().StringVar(imageID, "image-id", "", "those of the image with this `ID`, or with this ID prefix")
	cmd.Flags().BoolVar(whole, all, false, meaning)
	cmd.MarkFlagsMutuallyExclusive(all, "repository")
	cmd.MarkFlagsMutuallyExclusive(all, "image-id")
}

func preloadedAcceptCommand(c *cli.Console) *cobra.Command {
	var request adminv1.AcceptPreloadedRequest
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
	cmd.Flags().BoolVar(&request.IncludingProved, "including-proved", false, "also images to which credentials proved access")
	pairFlags(cmd, &request.Repository, &request.ImageId, &request.AllUntracked, "all-untracked", "every image on the node that has no record")
	return cli.ChangeCommand(c, cmd, cli.Change[*adminv1.AcceptPreloadedResponse]{
		Check: func(args []string) error {
			anything := func() bool {
				return request.GetRepository() != "" || request.GetImageId() != "" || request.GetAllUntracked()
			}
			switch {
			case len(args) == 0:
			case anything():
				return cli.Misused("give either IMAGE or flags", "IMAGE and flags cannot be combined")
			case cli.IsID(args[0]):
				request.ImageId = args[0]
			default:
				request.Repository = args[0]
			}
			return selected(anything(), "give --repository, --image-id, or --all-untracked")
		},
		Question: "Let every pod use these?",
		Nothing:  "Nothing to accept: the selected images are marked already, or no image is untracked.",
		Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.AcceptPreloadedResponse, error) {
			if err := cli.ExpandImageID(ctx, api, &request.ImageId); err != nil {
				return nil, err
			}
			request.DryRun = dryRun
			r, err := api.AcceptPreloaded(ctx, &request)
			request.Confirmation = r.GetConfirmation()
			return r, err
		},
		Refuse: func(r *adminv1.AcceptPreloadedResponse) error {
			if len(r.GetProved()) == 0 || request.GetIncludingProved() {
				return nil
			}
			return program.Hintf("select the others by name or --image-id, or add --including-proved",
				"credentials proved access to some of these images, and accepting opens them to pods that did not")
		},
		Empty: func(r *adminv1.AcceptPreloadedResponse) bool { return len(r.GetAccepted()) == 0 },
		Plan:  cli.View.Acceptance,
		Done:  cli.View.Accepted,
	})
}

func preloadedForgetCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ForgetPreloadedRequest
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
	pairFlags(cmd, &request.Repository, &request.ImageId, &request.All, "all", "every mark")
	return cli.ChangeCommand(c, cmd, cli.Change[*adminv1.ForgetPreloadedResponse]{
		Check: func([]string) error {
			return selected(!proto.Equal(&request, &adminv1.ForgetPreloadedRequest{}), "give --repository, --image-id, or --all")
		},
		Question: "Require proof for these images?",
		Nothing:  "Nothing to forget: no mark matches.",
		Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.ForgetPreloadedResponse, error) {
			if err := cli.ExpandImageID(ctx, api, &request.ImageId); err != nil {
				return nil, err
			}
			request.DryRun = dryRun
			return api.ForgetPreloaded(ctx, &request)
		},
		Empty: func(r *adminv1.ForgetPreloadedResponse) bool {
			return len(r.GetForgotten())+len(r.GetGrants()) == 0
		},
		Plan: cli.View.Forgetting,
		Done: cli.View.Forgotten,
	})
}
