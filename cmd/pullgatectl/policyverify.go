package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
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
registry has for the platform of the node. The registry is asked with --creds; with the
credentials of the node if credentials is Node in the configuration of pullgate-policyd;
otherwise without any. Without a password in --creds, pullgatectl reads it from stdin, so
that it is not in the list of processes or the history of the shell.

Exit codes: 0 every enforced rule for the image is met; 10 one is not; 1 the signatures could
not be verified, because the registry denied access or did not answer, or another failure; 2
and 3 as for every command.`,
		Example: `  pullgatectl policy verify registry.example/team-a/app:1.4 --namespace team-a

  # A private image
  pullgatectl policy verify registry.example/team-a/app:1.4 --creds robot < password.txt`,

		Args:              cli.OneArgument("IMAGE"),
		ValidArgsFunction: c.CompleteImages,
	}
	cmd.Flags().StringVar(&request.Namespace, "namespace", "", "only the rules for pods of this `namespace`; default: those of all")
	var creds string
	cmd.Flags().StringVar(&creds, "creds", "", "the `USER[:PASSWORD]` that the registry is asked with; the password is read from stdin if it is absent")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		request.Image = args[0]
		if cmd.Flags().Changed("creds") {
			if request.Credential, err = loginOf(c, creds); err != nil {
				return err
			}
		}
		c.Patience(cmd, 2*time.Minute)
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.VerifyImage(ctx, request)
			if err != nil {
				return err
			}
			if err := c.Print(o, answer, func(v cli.View, p *cli.Page) { v.VerifiedImage(p, args[0], answer) }); err != nil {
				return err
			}
			return verifiedExit(answer, args[0])
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

// loginOf returns the value of --creds, with a password that it asks for if the value has none.
func loginOf(c *cli.Console, creds string) (*adminv1.RegistryLogin, error) {
	user, password, given := strings.Cut(creds, ":")
	if user == "" {
		return nil, cli.Misused("write it as in --creds robot, with the password on stdin", "--creds: the user is missing")
	}
	if !given {
		var err error
		if password, err = c.Password("Password of " + user); err != nil || password == "" {
			return nil, cli.Misused("write it to stdin, as in --creds robot < password.txt", "--creds: no password on stdin")
		}
	}
	return &adminv1.RegistryLogin{Username: user, Password: password}, nil
}

// verifiedExit returns the error that ends the program with the exit code of a verification.
func verifiedExit(r *adminv1.VerifyImageResponse, image string) error {
	rules := r.GetRules()
	if d := r.GetDefaultRule(); d != nil {
		rules = append(rules, d)
	}
	var unknown error
	for _, rule := range rules {
		switch {
		case rule.GetMet() || rule.GetAudit():
		case rule.GetReason() == "REGISTRY_UNAVAILABLE":
			unknown = fmt.Errorf("the signatures of %s could not be verified: the registry did not answer", image)
		case rule.GetReason() == "REGISTRY_DENIED":
			unknown = program.Hintf("give --creds a user that may read the image", "the signatures of %s could not be verified: the registry denied access", image)
		default:
			return &cli.ExitError{Code: cli.ExitDenied}
		}
	}
	return unknown
}
