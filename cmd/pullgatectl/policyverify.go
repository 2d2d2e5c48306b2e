package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func policyVerifyCommand(c *cli.Console) *cobra.Command {
	request := &adminv1.VerifyImageRequest{}
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Verify the signatures of an image now, and show each one and why it counts or not",
		Long: `Have pullgate-policyd look for the signatures of an image at its registry now, and show which
rules of the policies in use they meet, which signatures were found, and why each counts or
does not. Nothing is stored, and no pod may use the image because of it.

The image of the node is verified if it has one under this name, otherwise the one that the
registry has for the platform of the node. The registry is asked with the credentials of the
node if credentials is Node in the configuration of pullgate-policyd, otherwise without any.

Exit codes: 0 every enforced rule for the image is met; 10 one is not; 1 the signatures could
not be verified, or another failure; 2 and 3 as for every command.`,
		Example: `  pullgatectl policy verify registry.example/team-a/app:1.4 --namespace team-a`,

		Args:              cli.OneArgument("IMAGE"),
		ValidArgsFunction: c.CompleteImages,
	}
	cmd.Flags().StringVar(&request.Namespace, "namespace", "", "only the rules for pods of this `namespace`; default: those of all")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request.Image = args[0]
		c.Patience(cmd, 2*time.Minute)
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.VerifyImage(ctx, request)
			if err != nil {
				return err
			}
			if err := c.Print(o, answer, func(v output.View, p *output.Page) { v.VerifiedImage(p, args[0], answer) }); err != nil {
				return err
			}
			return verifiedExit(answer)
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

// verifiedExit returns the error that ends the program with the exit code of a verification.
func verifiedExit(r *adminv1.VerifyImageResponse) error {
	rules := r.GetRules()
	if d := r.GetDefaultRule(); d != nil {
		rules = append(rules, d)
	}
	unknown := false
	for _, rule := range rules {
		switch {
		case rule.GetMet() || rule.GetAudit():
		case rule.GetReason() == "REGISTRY_UNAVAILABLE":
			unknown = true
		default:
			return &cli.ExitError{Code: cli.ExitDenied}
		}
	}
	if unknown {
		return &cli.ExitError{Code: 1}
	}
	return nil
}
