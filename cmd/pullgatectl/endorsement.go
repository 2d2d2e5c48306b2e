package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func endorsementCommand(c *cli.Console) *cobra.Command {
	return cli.Group("endorsement", "Show and revoke for which images signatures were verified",
		`Show and revoke endorsements. An endorsement says that the signatures of an image were
verified when it was pulled, and met a requirement of the policies in use. A pod can start with
an image only if there is one for every rule that matches the image; nothing is asked over
the network then. "pullgatectl policy verify IMAGE" verifies an image now and stores nothing.`,
		endorsementListCommand(c), endorsementRevokeCommand(c))
}

func endorsementListCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListEndorsementsRequest
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List endorsements, by image ID, repository and requirement",
		Long: `List endorsements: the images whose signatures were verified, and who had signed them.

RULES are the rules of the policies in use that have the requirement. With "none in use" an
endorsement has no effect, for example because a key in the policy was exchanged; it counts
again if the policy comes back. Endorsements are removed with their image.`,
		Example: `  # Which images run because of this signer?
  pullgatectl endorsement list --signer "key team-a"`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	flags.StringVar(&request.ImageId, "image-id", "", "only those of the image with this `ID`, or with this ID prefix")
	flags.StringVar(&request.Requirement, "requirement", "", "only those for the requirement with this `hash`, or with this prefix of a hash")
	flags.StringVar(&request.Signer, "signer", "", "only those with this `signer`, written as in the list")
	return listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListEndorsements,
		func(v cli.View, p *cli.Page, r *adminv1.ListEndorsementsResponse) {
			v.Endorsements(p, r.GetEndorsements())
		})
}

func endorsementRevokeCommand(c *cli.Console) *cobra.Command {
	var request adminv1.RevokeEndorsementsRequest
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "Revoke endorsements, so that signatures are verified again",
		Long: `Revoke the endorsements that match all selectors. Where a policy requires signatures, the
images are hidden from new pods until they were pulled and verified again, which needs the
registry and pullgate-policyd. Running containers continue.

To distrust a key, remove it from the policies instead: endorsements for a requirement
that no policy has any more have no effect. After --all the store has the format without
endorsements, which earlier versions of pullgated can open.` + cli.Changing,
		Example: `  # Verify the images of a repository again
  pullgatectl endorsement revoke --repository registry.example/team-a/app

  # Before a return to a version that knows no endorsements: first set admission.policies to ""
  pullgatectl endorsement revoke --all`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Repository, "repository", "", "those of this `repository`")
	flags.StringVar(&request.ImageId, "image-id", "", "those of the image with this `ID`, or with this ID prefix")
	flags.StringVar(&request.Requirement, "requirement", "", "those for the requirement with this `hash`, or with this prefix of a hash")
	flags.StringVar(&request.Signer, "signer", "", "those with this `signer`, written as in the list")
	flags.StringVar(&request.Digest, "digest", "", "those for this signed `digest`")
	flags.BoolVar(&request.All, "all", false, "every endorsement")
	for _, other := range []string{"repository", "image-id", "requirement", "signer", "digest"} {
		cmd.MarkFlagsMutuallyExclusive("all", other)
	}
	return cli.ChangeCommand(c, cmd, cli.Change[*adminv1.RevokeEndorsementsResponse]{
		Check: func([]string) error {
			return selected(!proto.Equal(&request, &adminv1.RevokeEndorsementsRequest{}), "give --repository, --image-id, --requirement, --signer, --digest or --all")
		},
		Question: "Revoke these endorsements?",
		Nothing:  "Nothing to revoke: no endorsement matches.",
		Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.RevokeEndorsementsResponse, error) {
			if err := cli.ExpandImageID(ctx, api, &request.ImageId); err != nil {
				return nil, err
			}
			if err := cli.ExpandRequirement(ctx, api, &request.Requirement); err != nil {
				return nil, err
			}
			request.DryRun = dryRun
			return api.RevokeEndorsements(ctx, &request)
		},
		Empty: func(r *adminv1.RevokeEndorsementsResponse) bool { return len(r.GetEndorsements()) == 0 },
		Plan:  cli.View.EndorsementRevocation,
		Done:  cli.View.EndorsementsRevoked,
	})
}
