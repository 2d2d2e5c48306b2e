package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func explainCommand(c *cli.Console) *cobra.Command {
	var pod, uid, namespace string
	cmd := &cobra.Command{
		Use:   "explain IMAGE (--pod NAMESPACE/NAME | --pod-uid UID | --namespace NAMESPACE)",
		Short: "Tell whether a pod may use an image, why, and what would change that",
		Long: `Tell whether a pod may use an image now, by which rule, on what evidence, what it meets
with each imagePullPolicy, and what would change the verdict. It changes nothing itself.
Give IMAGE as the pod's spec has it. With --namespace it is told for a pod that has yet
to be created, and of whose credentials nothing is known.

Exit codes: 0 the pod may use it; 4 it would need proof; 1 the image is not on this node,
or anything else failed; 2 and 3 as ever.`,
		Example: `  pullgatectl explain registry.example/team-a/app:1.4 --pod team-a/web-0

  # In a script: may every pod of team-b use it?
  pullgatectl explain registry.example/team-a/app:1.4 --namespace team-b -o json | jq -r .reason`,
		DisableFlagsInUseLine: true,
		Args:                  cli.OneArgument("IMAGE"),
		ValidArgsFunction:     c.CompleteImages,
	}
	cmd.Flags().StringVar(&pod, "pod", "", "explain it for this pod, `namespace/name`")
	cmd.Flags().StringVar(&uid, "pod-uid", "", "explain it for the pod of this `UID`")
	cmd.Flags().StringVar(&namespace, "namespace", "", "explain it for a new pod of this `namespace`")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &adminv1.ExplainRequest{Image: args[0]}
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
			return cli.Misused("an image may be for one pod and not for another", "give one of --pod, --pod-uid and --namespace")
		}
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.Explain(ctx, request)
			if err != nil {
				return err
			}
			if err := c.Print(o, answer, func(v output.View, p *output.Page) { v.Explanation(p, args[0], answer) }); err != nil {
				return err
			}
			return toldBy(answer.GetVerdict(), args[0])
		})
	}
	c.CompleteFlags(cmd)
	return cmd
}

// toldBy is how a verdict ends the program.
func toldBy(v adminv1.Verdict, image string) error {
	switch v {
	case adminv1.Verdict_VERDICT_ALLOW:
		return nil
	case adminv1.Verdict_VERDICT_REVERIFY:
		return &cli.ExitError{Code: cli.ExitNeedsProof}
	case adminv1.Verdict_VERDICT_UNSPECIFIED:
	}
	return fmt.Errorf("explain %s: the image is not on this node", image)
}
