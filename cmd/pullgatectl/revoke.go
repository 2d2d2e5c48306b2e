package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func revokeCommand(c *cli.Console) *cobra.Command {
	var request adminv1.RevokeRequest
	var secretName, secretUID string
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "Revoke proofs, and end the grants that depend on them",
		Long: `Revoke the proofs that match all selectors: pods have to prove access at the registry
again. Grants that depend on them end at once; running containers continue. With
--repository and --image-id alone, images that were open to every pod are closed as well.

If nothing matches, nothing is changed and the exit code is 5, also with --dry-run.` + cli.Changing,
		Example: `  # A credential has leaked
  pullgatectl revoke --secret team-a/regcred

  # Every pod has to prove access to this repository again
  pullgatectl revoke --repository registry.example/team-a/app --yes`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&request.CredentialId, "credential", "", "what the credential with this `ID`, or with this ID prefix, proved")
	flags.StringVar(&request.Repository, "repository", "", "what was proved of this `repository`")
	flags.StringVar(&request.ImageId, "image-id", "", "what was proved of the image with this `ID`, or with this ID prefix")
	flags.StringVar(&secretName, "secret", "", "what this Secret, `namespace/name`, proved")
	flags.StringVar(&secretUID, "secret-uid", "", "what the Secret with this `UID` proved")
	flags.StringVar(&request.Namespace, "namespace", "", "what the Secrets of this `namespace` proved")
	return cli.ChangeCommand(c, cmd, cli.Change[*adminv1.RevokeResponse]{
		Check: func([]string) (err error) {
			if request.Secret, err = secret(secretName, secretUID); err != nil {
				return err
			}
			return selected(!proto.Equal(&request, &adminv1.RevokeRequest{}), "give --credential, --repository, --image-id, --secret, --secret-uid or --namespace")
		},
		Question: "Revoke this?",
		NoMatch: &cli.ExitError{Code: cli.ExitNoMatch, Err: program.Hintf("check the spelling; pullgatectl images list and grants list show what is known",
			"nothing was revoked: no proof, open image or grant matches")},
		Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.RevokeResponse, error) {
			if err := cli.ExpandImageID(ctx, api, &request.ImageId); err != nil {
				return nil, err
			}
			if err := cli.ExpandCredentialID(ctx, api, &request.CredentialId); err != nil {
				return nil, err
			}
			request.DryRun = dryRun
			return api.Revoke(ctx, &request)
		},
		Empty: func(r *adminv1.RevokeResponse) bool {
			return len(r.GetProofs())+len(r.GetClosed())+len(r.GetGrants()) == 0
		},
		Plan: cli.View.Revocation,
		Done: cli.View.Revoked,
	})
}
