package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const policyLong = `Write, test and show policies, which restrict the fields of pods (PodRestriction), have
images reviewed by a backend (ImagePolicy), or require signatures of images (ClusterPolicy,
ClusterImagePolicy). pullgated reads them from the folder
admission.policies and enforces them at each creation of a sandbox or container.

A first policy: print a preset into an empty folder, test it with the pods that you have,
set admission.policies to the folder, and begin with admission.enforce: false, which only
reports.`

func policyCommand(c *cli.Console) *cobra.Command {
	return cli.Group("policy", "Write, test and show policies for the fields of pods", policyLong,
		policyListCommand(c), policyPresetCommand(c), policyTestCommand(c), policyVerifyCommand(c))
}

func policyListCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the policies that pullgated uses, what they are bound to, and what it cannot judge",
		Long: `List the policies that pullgated uses: for each its mode, the namespaces that it is bound to,
and the restrictions that this node cannot judge because no message to it carries the
field. Such a restriction never matches in a policy with the mode Accept; in the others,
admission.unjudged says whether it is ignored or denies.

A pod is admitted if it matches a bound policy with the mode Accept, or all bound policies
with the mode Drop. A policy with "audit" only reports.

For each image review backend (ImagePolicy) the list has the effective defaultAllow, which
says whether images are admitted if the backend does not answer, and how long answers are
kept. All backends of a namespace must allow an image.

For each rule about signatures (ClusterPolicy, ClusterImagePolicy) the list has the images
and namespaces that it is for, and who must have signed. All rules that match an image must
be met.`,
		Args: cobra.NoArgs,
	}
	return listing(c, cmd, cli.FormatFlag(cmd), &adminv1.ListPoliciesRequest{}, adminv1.PullRecordsClient.ListPolicies, cli.View.Policies)
}

func policyPresetCommand(c *cli.Console) *cobra.Command {
	names := restriction.Presets()
	return &cobra.Command{
		Use:   "preset " + strings.Join(names, "|"),
		Short: "Print a policy to start from",
		Long: `Print a policy to start from, as a file for the folder admission.policies:

    baseline         the level Baseline of the Pod Security Standards
    restricted       the level Restricted of the Pod Security Standards
    runtime-sockets  no hostPath to the sockets of container runtimes, or to the state of
                     pullgate

Each is bound to every namespace and denies (mode Drop). To exempt namespaces, add their
names to admission.exempt.namespaces; to bind a policy to some, add binding.namespaces to
its file. Comments in a preset name what it cannot express.`,
		Example: `  pullgatectl policy preset runtime-sockets > /etc/pullgate/policies/runtime-sockets.yaml
  pullgated --check-config`,
		Args:              cli.OneArgument("the name of a preset: " + strings.Join(names, ", ")),
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			policy, err := restriction.Preset(args[0])
			if err != nil {
				return cli.Misused("see pullgatectl policy preset --help", "%w", err)
			}
			return c.Emit(policy)
		},
	}
}

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
	cmd.PreRunE = func(cmd *cobra.Command, args []string) (err error) {
		request.Image = args[0]
		if cmd.Flags().Changed("creds") {
			request.Credential, err = loginOf(c, creds)
		}
		c.Patience(cmd, 2*time.Minute)
		return err
	}
	verify := func(ctx context.Context, api adminv1.PullRecordsClient, _ []string) (*adminv1.VerifyImageResponse, error) {
		return api.VerifyImage(ctx, request)
	}
	return cli.ShowCommand(c, cmd, cli.OutputFlags(cmd), verify, func(v cli.View, p *cli.Page, r *adminv1.VerifyImageResponse) {
		v.VerifiedImage(p, request.GetImage(), r)
	}, func(r *adminv1.VerifyImageResponse) error { return verifiedExit(r, request.GetImage()) })
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
