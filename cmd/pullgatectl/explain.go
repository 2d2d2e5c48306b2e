package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func explainCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ExplainRequest
	var pod adminv1.PodRef
	var namespace string
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
	cmd.Flags().StringVar(&pod.Name, "pod", "", "the pod, `namespace/name`")
	cmd.Flags().StringVar(&pod.Uid, "pod-uid", "", "the pod with this `UID`")
	cmd.Flags().StringVar(&namespace, "namespace", "", "a new pod of this `namespace`")
	cmd.Flags().StringVar(&request.Container, "container", "",
		"the `name` of the container that policies are compared with; default: each one with IMAGE")
	cmd.Flags().BoolVar(&request.Ask, "ask", false, "ask image review backends, which is not done otherwise")
	explain := func(ctx context.Context, api adminv1.PullRecordsClient, _ []string) (*adminv1.ExplainResponse, error) {
		answer, err := api.Explain(ctx, &request)
		if status.Code(err) == codes.NotFound {
			err = program.WithHint(err, "to ask about a pod that has no sandbox yet, use --namespace")
		}
		return answer, err
	}
	cmd.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		request.Image, request.Who = args[0], &adminv1.ExplainRequest_Pod{Pod: &pod}
		given := []string{pod.GetName(), pod.GetUid(), namespace}
		if len(slices.DeleteFunc(given, func(s string) bool { return s == "" })) != 1 {
			return cli.Misused("the verdict depends on the pod", "give one of --pod, --pod-uid and --namespace")
		}
		if namespace != "" {
			request.Who = &adminv1.ExplainRequest_Namespace{Namespace: namespace}
		}
		if pod.GetName() == "" {
			return nil
		}
		pod.Namespace, pod.Name, err = coordinates("pod", pod.GetName())
		return err
	}
	return cli.ShowCommand(c, cmd, cli.OutputFlags(cmd), explain, (*cli.Page).Explanation,
		func(e *adminv1.ExplainResponse) error { return exitOf(e, request.GetImage()) })
}

// exitOf returns the exit code: a denial of policies before a missing proof, and both before an absent image.
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
