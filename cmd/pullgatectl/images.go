package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func imagesCommand(c *cli.Console) *cobra.Command {
	return cli.Group("images", "Show images and who proved access to them", "", imagesListCommand(c), imagesGetCommand(c))
}

func imagesListCommand(c *cli.Console) *cobra.Command {
	var secretName, secretUID, olderThan, unusedFor string
	f := &adminv1.ImageFilter{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List images, by repository, with who may use them",
		Long: `List the images that the runtime has or that the store has a record of, one line for each
repository of an image. An image is listed if it matches all filters.

ACCESS shows which pods may use it:

    open           every pod: it was pulled without a credential, or with the node's
    2 credentials  pods that have one of them
    preloaded      every pod, under a policy that exempts preloaded images
    no proofs      pods that prove access: no access has been proved, or all proofs were revoked
    untracked      the same, without a record
    unreadable     the same under every policy: its record cannot be read`,
		Example: `  # What has Secret team-a/regcred opened?
  pullgatectl images list --secret team-a/regcred

  # Which repositories are known, for a script
  pullgatectl images list -o json | jq -r '.images[].records[].pair.repository' | sort -u`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if f.Secret, err = secret(secretName, secretUID); err != nil {
				return err
			}
			if f.CreatedBefore, err = before(c, "older-than", olderThan); err != nil {
				return err
			}
			f.UnusedSince, err = before(c, "unused-for", unusedFor)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Repository, "repository", "", "only records of this `repository`")
	flags.StringVar(&f.ImageId, "image-id", "", "only the image with this `ID`, or with this ID prefix")
	flags.StringVar(&secretName, "secret", "", "only what this Secret, `namespace/name`, proved access to")
	flags.StringVar(&secretUID, "secret-uid", "", "only what the Secret of this `UID` proved access to")
	flags.StringVar(&f.Namespace, "namespace", "", "only what a Secret of this `namespace` proved access to")
	flags.StringVar(&olderThan, "older-than", "", "only images with a record older than this `age`, as in 30d")
	flags.StringVar(&unusedFor, "unused-for", "", "only what has not been used for this `age`, as in 12h")
	return listing(c, cmd, cli.OutputFlags(cmd), &adminv1.ListImagesRequest{Filter: f}, adminv1.PullRecordsClient.ListImages,
		func(v cli.View, p *cli.Page, r *adminv1.ListImagesResponse) { v.Images(p, r.GetImages()) })
}

// before returns the time that is as long ago as the value of a flag; nil if the flag is not set.
func before(c *cli.Console, flag, age string) (*timestamppb.Timestamp, error) {
	if age == "" {
		return nil, nil
	}
	d, err := cli.ParseAge(age)
	if err != nil {
		return nil, cli.Misused("", "--%s: %w", flag, err)
	}
	return timestamppb.New(c.Now().Add(-d)), nil
}

func imagesGetCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get IMAGE",
		Short: "Show the records of one image",
		Long:  "Show the records, marks and names of one image. IMAGE is a name that the runtime has, an image ID, or at least its first 7 digits.",
		Example: `  pullgatectl images get registry.example/team-a/app:1.4
  pullgatectl images get 3f9a2c81d0be -o yaml`,
		Args:              cli.OneArgument("IMAGE"),
		ValidArgsFunction: c.CompleteImages,
	}
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.GetImage(ctx, &adminv1.GetImageRequest{Image: args[0]})
			if err != nil {
				return err
			}
			return c.Print(o, answer.GetImage(), func(v cli.View, p *cli.Page) { v.Image(p, answer.GetImage()) })
		})
	}
	return cmd
}
