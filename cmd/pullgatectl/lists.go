package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// listing makes cmd request a list by ask, a method of the API, and print it. It adds the flag --limit.
func listing[Q proto.Message, A cli.ListPage](c *cli.Console, cmd *cobra.Command, o *cli.Output, request Q,
	ask func(adminv1.PullRecordsClient, context.Context, Q, ...grpc.CallOption) (A, error),
	draw func(*cli.Page, A), then ...func(A) error,
) *cobra.Command {
	limit := cmd.Flags().Uint("limit", 0, "list `N` entries at most; 0 is all")
	return cli.ShowCommand(c, cmd, o, func(ctx context.Context, api adminv1.PullRecordsClient, _ []string) (A, error) {
		answer, count, err := cli.List(ctx, api, int(min(*limit, math.MaxInt32)), request, ask)
		if err == nil && answer.GetNextPageToken() != "" {
			_, _ = fmt.Fprintf(c.Err, "pullgatectl: there are more than these %d, --limit 0 lists all\n", count)
		}
		return answer, err
	}, draw, then...)
}

func intentsCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListIntentsRequest
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pull intents, by repository",
		Long: `List pull intents (ImagePullIntent): pulls in progress, and pulls with unknown outcome. As
long as a repository has an intent, no image of it is marked preloaded. An intent with
unknown outcome is resolved by a list of images at least an hour later.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListIntents, (*cli.Page).Intents)
	return cli.Group("intents", "Show pulls in progress or with unknown outcome", "", cmd)
}

func grantsCommand(c *cli.Console) *cobra.Command {
	var pod string
	request := adminv1.ListGrantsRequest{Pod: &adminv1.PodRef{}}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List grants, by pod UID",
		Long: `List grants: which pods may use which image until they end, and why. REASON is the rule,
or "granted" for a grant that was restored from a running container.`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if pod != "" {
				request.Pod.Namespace, request.Pod.Name, err = coordinates("pod", pod)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&pod, "pod", "", "only those of this pod, `namespace/name`")
	cmd.Flags().StringVar(&request.Pod.Uid, "pod-uid", "", "only those of the pod with this `UID`")
	cmd.Flags().StringVar(&request.Pod.Namespace, "namespace", "", "only those of pods of this `namespace`")
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those of this `repository`")
	cmd.MarkFlagsMutuallyExclusive("pod", "namespace")
	listing(c, cmd, cli.OutputFlags(cmd), &request, adminv1.PullRecordsClient.ListGrants, (*cli.Page).Grants)
	return cli.Group("grants", "Show which pods may use which images", "", cmd)
}

func imagesCommand(c *cli.Console) *cobra.Command {
	return cli.Group("images", "Show images and who proved access to them", "", imagesListCommand(c), imagesGetCommand(c))
}

func imagesListCommand(c *cli.Console) *cobra.Command {
	var of secretFlags
	var olderThan, unusedFor string
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
			if f.Secret, err = of.secret(); err != nil {
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
	of.add(flags, "only what", "proved access to")
	flags.StringVar(&f.Namespace, "namespace", "",
		"only what a Secret or a service account of this `namespace` proved access to")
	flags.StringVar(&olderThan, "older-than", "", "only images with a record older than this `age`, as in 30d")
	flags.StringVar(&unusedFor, "unused-for", "", "only what has not been used for this `age`, as in 12h")
	return listing(c, cmd, cli.OutputFlags(cmd), &adminv1.ListImagesRequest{Filter: f},
		adminv1.PullRecordsClient.ListImages, (*cli.Page).Images)
}

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
		Long: "Show the records, marks and names of one image. IMAGE is a name that the runtime has, an image ID, or at " +
			"least its first 7 digits.",
		Example: `  pullgatectl images get registry.example/team-a/app:1.4
  pullgatectl images get 3f9a2c81d0be -o yaml`,
		Args:              cli.OneArgument("IMAGE"),
		ValidArgsFunction: c.CompleteImages,
	}
	get := func(ctx context.Context, api adminv1.PullRecordsClient, args []string) (*adminv1.Image, error) {
		answer, err := api.GetImage(ctx, &adminv1.GetImageRequest{Image: args[0]})
		return answer.GetImage(), err
	}
	return cli.ShowCommand(c, cmd, cli.OutputFlags(cmd), get, (*cli.Page).Image)
}

func podsCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListPodsRequest
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List the images of pending and running pods, and which pods would be denied",
		Long: `List the images of pending and running pods, each with what would happen if its container
were created now:

  runs            the container may start
  needs proof     no credential of the pod has proved access to the image, or its
                  signatures are not verified; a pull may bring what is missing
  denied by NAME  the policy or image review backend NAME denies it
  unknown         the image is not on the node, or something is not known before the
                  kubelet's call; without a pod source, most pods

In shadow mode the states are those of an enforcing node, so that pullgatectl pods --denied
lists what enforcing would stop. Image review backends are not asked. pullgatectl explain
shows why. Nothing is changed.

With --denied, the exit code is 4 if a pod needs proof or is denied, and 0 if none is.`,
		Example: `  # Which pods would be denied if this node enforced?
  pullgatectl pods --denied

  # In a script: may enforcing begin?
  pullgatectl pods --denied -o json && echo yes`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&request.Denied, "denied", false,
		"only what needs proof or is denied; exit code 4 if there is any")
	return listing(c, cmd, cli.FormatFlag(cmd), &request, adminv1.PullRecordsClient.ListPods, (*cli.Page).Pods,
		func(r *adminv1.ListPodsResponse) error {
			if request.GetDenied() && len(r.GetImages()) > 0 {
				return &cli.ExitError{Code: cli.ExitNeedsProof}
			}
			return nil
		})
}

func watchCommand(c *cli.Console) *cobra.Command {
	var request adminv1.WatchDecisionsRequest
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print decisions as they are made",
		Long: `Print decisions as they are made, as the decision log has them, until Ctrl-C. With
-o json each is a line, with -o yaml a document. If they come faster than they are
read some are left out, and stderr has their number.`,
		Example: `  pullgatectl watch --namespace team-a

  # Who is kept from an image?
  pullgatectl watch -o json | jq -r 'select(.verdict == "VERDICT_REVERIFY") |
    "\(.pod.namespace)/\(.pod.name) \(.image) \(.reason)"'`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Namespace, "namespace", "", "only those about pods of this `namespace`")
	cmd.Flags().StringVar(&request.Repository, "repository", "", "only those about this `repository`")
	limit := cmd.Flags().Uint("limit", 0, "end after `N` decisions; 0 is never")
	o := cli.OutputFlags(cmd)
	o.Stream = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		interrupted := cmd.Context()
		err := c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := api.WatchDecisions(ctx, &request)
			if err != nil {
				return err
			}
			return follow(c, o, *limit, stream.Recv)
		})
		if interrupted.Err() != nil {
			err = nil // Ctrl-C is the normal end
		}
		return err
	}
	c.CompleteFlags(cmd)
	return cmd
}

func follow(c *cli.Console, o *cli.Output, limit uint, next func() (*adminv1.WatchDecisionsResponse, error)) error {
	if o.Format == cli.AsTable {
		if err := c.Print(o, nil, (*cli.Page).DecisionHead); err != nil {
			return err
		}
	}
	for n := uint(0); limit == 0 || n < limit; n++ {
		d, err := next()
		if errors.Is(err, io.EOF) {
			return program.Hintf("pullgated is stopping or restarting; see systemctl status pullgated",
				"pullgated has ended the watch")
		}
		if err != nil {
			return err
		}
		if d.GetDropped() > 0 {
			_, _ = fmt.Fprintf(c.Err, "pullgatectl: %d decisions are missing here, they came faster than they were read\n",
				d.GetDropped())
		}
		if err := c.Print(o, d, func(p *cli.Page) { p.Decision(d) }); err != nil {
			return err
		}
	}
	return nil
}
