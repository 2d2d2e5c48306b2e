package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func revokeCommand(c *cli.Console) *cobra.Command {
	var request adminv1.RevokeRequest
	var of secretFlags
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
	flags.StringVar(&request.CredentialId, "credential", "",
		"what the credential with this `ID`, or with this ID prefix, proved")
	flags.StringVar(&request.Repository, "repository", "", "what was proved of this `repository`")
	flags.StringVar(&request.ImageId, "image-id", "",
		"what was proved of the image with this `ID`, or with this ID prefix")
	of.add(flags, "what", "proved")
	flags.StringVar(&request.Namespace, "namespace", "",
		"what the Secrets and service accounts of this `namespace` proved")
	return cli.ChangeCommand(c, cmd, &request, adminv1.PullRecordsClient.Revoke, cli.Change[*adminv1.RevokeResponse]{
		Check: func([]string) (err error) {
			request.Secret, err = of.secret()
			return err
		},
		Needs:    "give --credential, --repository, --image-id, --secret, --service-account, --secret-uid or --namespace",
		Question: "Revoke this?",
		NoMatch: &cli.ExitError{Code: cli.ExitNoMatch, Err: program.Hintf("check the spelling; pullgatectl images list "+
			"and grants list show what is known", "nothing was revoked: no proof, open image or grant matches")},
		Empty: func(r *adminv1.RevokeResponse) bool {
			return len(r.GetProofs())+len(r.GetClosed())+len(r.GetGrants()) == 0
		},
		Plan: (*cli.Page).Revocation,
		Done: func(r *adminv1.RevokeResponse) string {
			return fmt.Sprintf("Revoked %s, closed %s, ended %s.", cli.Count(len(r.GetProofs()), "proof", "proofs"),
				cli.Count(len(r.GetClosed()), "open image", "open images"), cli.Count(len(r.GetGrants()), "grant", "grants"))
		},
	})
}

func preloadedCommand(c *cli.Console) *cobra.Command {
	return cli.Group("preloaded", "Show and change which images are marked preloaded",
		`Show and change the marks of preloaded images, which need no proof under the default
policy. Private images that were on the node before pullgated was installed are marked as
well: preloaded list shows them, and preloaded forget removes their marks.`,
		preloadedListCommand(c), preloadedAcceptCommand(c), preloadedForgetCommand(c))
}

func preloadedListCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListPreloadedRequest
	cmd := &cobra.Command{Use: "list", Short: "List the marks of preloaded images", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	cmd.Flags().StringVar(&request.ImageId, "image-id", "",
		"only those of the image with this `ID`, or with this ID prefix")
	return listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListPreloaded, (*cli.Page).Preloaded)
}

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
	cmd.Flags().BoolVar(&request.IncludingProved, "including-proved", false,
		"also images to which credentials proved access")
	pairFlags(cmd, &request.Repository, &request.ImageId, &request.AllUntracked, "all-untracked",
		"every image on the node that has no record")
	return cli.ChangeCommand(c, cmd, &request, adminv1.PullRecordsClient.AcceptPreloaded,
		cli.Change[*adminv1.AcceptPreloadedResponse]{
			Check: func(args []string) error {
				anything := request.GetRepository() != "" || request.GetImageId() != "" || request.GetAllUntracked()
				switch {
				case len(args) > 0 && anything:
					return cli.Misused("give either IMAGE or flags", "IMAGE and flags cannot be combined")
				case len(args) == 0 && !anything:
					return cli.Misused("give --repository, --image-id, or --all-untracked", "nothing is selected")
				case len(args) == 0:
				case cli.IsID(args[0]):
					request.ImageId = args[0]
				default:
					request.Repository = args[0]
				}
				return nil
			},
			Question: "Let every pod use these?",
			Nothing:  "Nothing to accept: the selected images are marked already, or no image is untracked.",
			Refuse: func(r *adminv1.AcceptPreloadedResponse) error {
				request.Confirmation = r.GetConfirmation()
				if len(r.GetProved()) == 0 || request.GetIncludingProved() {
					return nil
				}
				return program.Hintf("select the others by name or --image-id, or add --including-proved",
					"credentials proved access to some of these images, and accepting opens them to pods that did not")
			},
			Empty: func(r *adminv1.AcceptPreloadedResponse) bool { return len(r.GetAccepted()) == 0 },
			Plan:  (*cli.Page).Acceptance,
			Done: func(r *adminv1.AcceptPreloadedResponse) string {
				return fmt.Sprintf("Marked %s as preloaded.", cli.Count(len(r.GetAccepted()), "pair", "pairs"))
			},
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
	return cli.ChangeCommand(c, cmd, &request, adminv1.PullRecordsClient.ForgetPreloaded,
		cli.Change[*adminv1.ForgetPreloadedResponse]{
			Needs:    "give --repository, --image-id, or --all",
			Question: "Require proof for these images?",
			Nothing:  "Nothing to forget: no mark matches.",
			Empty:    func(r *adminv1.ForgetPreloadedResponse) bool { return len(r.GetForgotten())+len(r.GetGrants()) == 0 },
			Plan:     (*cli.Page).Forgetting,
			Done: func(r *adminv1.ForgetPreloadedResponse) string {
				return fmt.Sprintf("Forgot %s, ended %s. The images need proof from now on.",
					cli.Count(len(r.GetForgotten()), "mark", "marks"), cli.Count(len(r.GetGrants()), "grant", "grants"))
			},
		})
}

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
	flags.StringVar(&request.Requirement, "requirement", "",
		"only those for the requirement with this `hash`, or with this prefix of a hash")
	flags.StringVar(&request.Signer, "signer", "", "only those with this `signer`, written as in the list")
	flags.BoolVar(&request.Drift, "drift", false,
		"only those whose image no longer meets the requirement, as admission.recheckEndorsements found")
	return listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListEndorsements,
		func(p *cli.Page, r *adminv1.ListEndorsementsResponse) { p.Endorsements(r) })
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
	flags.StringVar(&request.Requirement, "requirement", "",
		"those for the requirement with this `hash`, or with this prefix of a hash")
	flags.StringVar(&request.Signer, "signer", "", "those with this `signer`, written as in the list")
	flags.StringVar(&request.Digest, "digest", "", "those for this signed `digest`")
	flags.BoolVar(&request.All, "all", false, "every endorsement")
	for _, other := range []string{"repository", "image-id", "requirement", "signer", "digest"} {
		cmd.MarkFlagsMutuallyExclusive("all", other)
	}
	return cli.ChangeCommand(c, cmd, &request, adminv1.PullRecordsClient.RevokeEndorsements,
		cli.Change[*adminv1.RevokeEndorsementsResponse]{
			Needs:    "give --repository, --image-id, --requirement, --signer, --digest or --all",
			Question: "Revoke these endorsements?",
			Nothing:  "Nothing to revoke: no endorsement matches.",
			Empty:    func(r *adminv1.RevokeEndorsementsResponse) bool { return len(r.GetEndorsements()) == 0 },
			Plan:     func(p *cli.Page, r *adminv1.RevokeEndorsementsResponse) { p.Endorsements(r) },
			Done: func(r *adminv1.RevokeEndorsementsResponse) string {
				return fmt.Sprintf("Revoked %s. Where a policy requires it, the images are pulled and verified again before a "+
					"new pod can use them.", cli.Count(len(r.GetEndorsements()), "endorsement", "endorsements"))
			},
		})
}

func distrustCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end",
		Short: "Trust the store again, and mark images without a record preloaded",
		Long: `End the distrust of a store that was lost and created again: images that are on the node
now and have no record are marked preloaded, for every pod. First check the list with
--dry-run, and remove images from the node that not every pod may use.` + cli.Changing,
		Args: cobra.NoArgs,
	}
	cli.ChangeCommand(c, cmd, &adminv1.EndDistrustRequest{}, adminv1.PullRecordsClient.EndDistrust,
		cli.Change[*adminv1.EndDistrustResponse]{
			Question: "End distrust?",
			Plan:     (*cli.Page).Trusting,
			Done: func(r *adminv1.EndDistrustResponse) string {
				return fmt.Sprintf("Distrust has ended; the next scan marks %s preloaded.",
					cli.Count(len(r.GetAccepted()), "pair", "pairs"))
			},
		})
	return cli.Group("distrust", "End the distrust of a store that was lost and created again", "", cmd)
}

func coordinates(flag, value string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", cli.Misused("write it as in --"+flag+" team-a/app", "--%s %q is not NAMESPACE/NAME", flag, value)
	}
	return namespace, name, nil
}

// secretFlags are the flags that select a Secret or a service account.
type secretFlags struct{ name, uid, account string }

func (f *secretFlags) add(flags *pflag.FlagSet, what, proved string) {
	flags.StringVar(&f.name, "secret", "", what+" this Secret, `namespace/name`, "+proved)
	flags.StringVar(&f.account, "service-account", "", what+" this service account, `namespace/name`, "+proved)
	flags.StringVar(&f.uid, "secret-uid", "", what+" the Secret or service account with this `UID` "+proved)
}

func (f *secretFlags) secret() (*adminv1.SecretRef, error) {
	s := &adminv1.SecretRef{Uid: f.uid}
	var err error
	switch {
	case f.name != "" && f.account != "":
		return nil, cli.Misused("give one of them", "--secret and --service-account exclude each other")
	case f.name != "":
		s.Namespace, s.Name, err = coordinates("secret", f.name)
	case f.account != "":
		s.Namespace, s.Name, err = coordinates("service-account", f.account)
		s.Name = cli.ServiceAccountPrefix + s.Name
	case f.uid == "":
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}
