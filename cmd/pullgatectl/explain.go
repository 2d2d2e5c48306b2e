package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func explainCommand(c *cli.Console) *cobra.Command {
	var pod, uid, namespace, container string
	var ask bool
	cmd := &cobra.Command{
		Use:   "explain IMAGE (--pod NAMESPACE/NAME | --pod-uid UID | --namespace NAMESPACE)",
		Short: "Show whether a pod may use an image, why, and what would change that",
		Long: `Show whether a pod may use an image now, by which rule, on what evidence, what will happen
with each imagePullPolicy, and what would change the verdict. Nothing is changed.
Give IMAGE as in the pod's spec. --namespace asks about a pod that does not exist yet,
and whose credentials are unknown.

If policies are in use (admission.policies), explain also shows their answer for the
sandbox of the pod and for its containers with IMAGE, by what the pod source has. Values
that only a call of the kubelet has, such as the user of an image, are shown as not known;
without a pod source these are almost all. See also pullgatectl policy test. Image review
backends are asked only with --ask, over the network.

Exit codes, the first that applies: 10 policies deny it, also if it needs proof; 4 it needs
proof; 1 the image is not on this node, or another failure; 0 the pod may use it, and
policies do not deny it, as far as is known; 2 and 3 as for every command.`,
		Example: `  pullgatectl explain registry.example/team-a/app:1.4 --pod team-a/web-0

  # In a script: may every pod of team-b use it?
  pullgatectl explain registry.example/team-a/app:1.4 --namespace team-b -o json | jq -r .reason`,
		DisableFlagsInUseLine: true,
		Args:                  cli.OneArgument("IMAGE"),
		ValidArgsFunction:     c.CompleteImages,
	}
	cmd.Flags().StringVar(&pod, "pod", "", "the pod, `namespace/name`")
	cmd.Flags().StringVar(&uid, "pod-uid", "", "the pod with this `UID`")
	cmd.Flags().StringVar(&namespace, "namespace", "", "a new pod of this `namespace`")
	cmd.Flags().StringVar(&container, "container", "", "the `name` of the container that policies are compared with; default: each one with IMAGE")
	cmd.Flags().BoolVar(&ask, "ask", false, "ask image review backends, which is not done otherwise")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &adminv1.ExplainRequest{Image: args[0], Container: container, Ask: ask}
		given := 0
		if pod != "" {
			given++
			ns, name, err := coordinates("pod", pod)
			if err != nil {
				return err
			}
			request.Who = &adminv1.ExplainRequest_Pod{Pod: &adminv1.PodRef{Namespace: ns, Name: name}}
		}
		if uid != "" {
			given++
			request.Who = &adminv1.ExplainRequest_Pod{Pod: &adminv1.PodRef{Uid: uid}}
		}
		if namespace != "" {
			given++
			request.Who = &adminv1.ExplainRequest_Namespace{Namespace: namespace}
		}
		if given != 1 {
			return cli.Misused("the verdict depends on the pod", "give one of --pod, --pod-uid and --namespace")
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.Explain(ctx, request)
			if status.Code(err) == codes.NotFound {
				return program.WithHint(err, "to ask about a pod that has no sandbox yet, use --namespace")
			}
			if err != nil {
				return err
			}
			if err := c.Print(o, answer, func(v cli.View, p *cli.Page) { v.Explanation(p, answer) }); err != nil {
				return err
			}
			return exitOf(answer, args[0])
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

// exitOf returns the error that ends the program with the exit code of an explanation. A denial of policies comes
// before a missing proof, which would not help, and both before an absent image.
func exitOf(e *adminv1.ExplainResponse, image string) error {
	switch {
	case cli.PoliciesDeny(e):
		return &cli.ExitError{Code: cli.ExitDenied}
	case e.GetVerdict() == adminv1.Verdict_VERDICT_ALLOW:
		return nil
	case e.GetVerdict() == adminv1.Verdict_VERDICT_REVERIFY:
		return &cli.ExitError{Code: cli.ExitNeedsProof}
	}
	return fmt.Errorf("explain %s: the image is not on this node", image)
}
