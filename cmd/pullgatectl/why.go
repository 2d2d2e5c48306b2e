package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/pullsecrets"
)

const tenantLong = `kubectl pullgate shows owners of pods why a pod waits on a node that checks pull credentials,
and operators whether their nodes would refuse pods. It asks the API server with your
kubeconfig, and needs no access to a node.

It is the program pullgatectl under another name. Operators run pullgatectl on a node; its
explain shows what the node knows.`

const tenantExample = `  # Which pull secrets are sent for the images of this pod?
  kubectl pullgate why job-1 --namespace team-b

  # For operators: would any node refuse a pod?
  kubectl pullgate report`

// tenantCommand is the root if the program is called kubectl-pullgate: the commands that need no node.
func tenantCommand(c *cli.Console, _ machine) *cobra.Command {
	root := c.Root("kubectl pullgate", "Show why a pod waits for its image, and what nodes would refuse", tenantLong,
		whyCommand(c), reportCommand(c), versionCommand(c, "Print the version"))
	root.Example = tenantExample
	_ = root.PersistentFlags().MarkHidden("endpoint")
	return versioned(root)
}

func whyCommand(c *cli.Console) *cobra.Command {
	var o apiserver.Options
	var namespace string
	cmd := &cobra.Command{
		Use:   "why POD",
		Short: "Show which pull secrets are sent for the images of a pod, and what is wrong with others",
		Long: `Show for each image of a pod (containers, init and ephemeral containers, image volumes)
which of the pod's imagePullSecrets the kubelet sends, and which Secrets do not exist, have
another type than a pull secret, are malformed, or have no login for the image.

The API server is asked with your kubeconfig, for the pod, its service account, the Secrets
that it names, and Events of pullgate. No more rights are needed than get on pods,
serviceaccounts and secrets of the namespace. A Secret that you may not read is listed, and
what depends on it is unknown. Nothing of the content of a Secret is printed, and nothing is
changed.

It does not ask the registry: a login that is sent can still be denied, because it has
expired or may not pull the image.

Exit codes: 0 a login is sent for each image; 4 for one none is; 1 for one it is not known,
or another failure; 2 as for every command.`,
		Example: `  kubectl pullgate why job-1 --namespace team-b

  # The same on a machine without the plugin
  pullgatectl why job-1 -n team-b --kubeconfig ~/.kube/config

  # In a script: images without a login
  kubectl pullgate why job-1 -o json | jq -r '.images[] | select(.credentials == "none").image'`,
		Args: cli.OneArgument("POD"),
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "the `namespace` of the pod; default: that of the context")
	apiFlags(cmd, &o)
	output := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := strings.TrimPrefix(args[0], "pod/") // as kubectl prints it
		if name == "" || strings.Contains(name, "/") {
			return cli.Misused("write it as in why job-1 --namespace team-b", "%q is not the name of a pod", args[0])
		}
		api, err := openAPI(c, cmd, o)
		if err != nil {
			return err
		}
		defer api.Close()
		r, err := pullsecrets.Explain(cmd.Context(), api, cmp.Or(namespace, api.Namespace), name)
		if err != nil {
			return err
		}
		if err := c.Print(output, r, func(p *cli.Page) { printWhy(p, r) }); err != nil {
			return err
		}
		return whyExit(r)
	}
	return cmd
}

// apiFlags gives a command the flags about the API server.
func apiFlags(cmd *cobra.Command, o *apiserver.Options) {
	cmd.Flags().StringVar(&o.Kubeconfig, "kubeconfig", "",
		"the `file` with the identity that the API server is asked with; default: $KUBECONFIG, else ~/.kube/config")
	cmd.Flags().StringVar(&o.Context, "context", "", "the `context` of the kubeconfig; default: the current one")
}

// openAPI returns a client of the API server. It makes no connection yet.
func openAPI(c *cli.Console, cmd *cobra.Command, o apiserver.Options) (api *apiserver.Client, err error) {
	c.Patience(cmd, time.Minute) // a plugin of the kubeconfig may have to ask its user
	if o.Timeout, err = c.Limit(); err != nil {
		return nil, err
	}
	if api, err = apiserver.New(o); err != nil {
		return nil, program.Hintf(cmp.Or(program.HintOf(err), "kubectl must work with the same kubeconfig and context"),
			"read the kubeconfig: %w", err)
	}
	return api, nil
}

func whyExit(r *pullsecrets.Report) error {
	if r.Count(pullsecrets.None) > 0 {
		return &cli.ExitError{Code: cli.ExitNeedsProof}
	}
	if n := r.Count(pullsecrets.Unknown); n > 0 {
		return program.Hintf("the list of pull secrets says whom to ask",
			"not known for %s, because pull secrets were not read", cli.Count(n, "image", "images"))
	}
	return nil
}

func printWhy(p *cli.Page, r *pullsecrets.Report) {
	none, unknown := r.Count(pullsecrets.None), r.Count(pullsecrets.Unknown)
	pod := fmt.Sprintf("Pod %s/%s: ", r.Namespace, r.Pod)
	of := fmt.Sprintf("of %s", cli.Count(len(r.Images), "image", "images"))
	switch {
	case none > 0:
		p.PaintProse(cli.Heed, "", "%sno pull secret is sent for %d %s.", pod, none, of)
	case unknown > 0:
		p.PaintProse(cli.Heed, "", "%sit is not known whether a pull secret is sent for %d %s.", pod, unknown, of)
	default:
		p.PaintProse(cli.Good, "", "%sa pull secret is sent for each %s.", pod, of)
	}
	p.Gap()
	var images [][]string
	for _, i := range r.Images {
		sent := cmp.Or(strings.Join(i.Secrets, ", "), "("+i.Credentials+")")
		images = append(images, []string{cmp.Or(i.Container, "(volume)"), i.Image, i.PullPolicy, sent})
	}
	p.Table([]string{"CONTAINER", "IMAGE", "PULL POLICY", "SENT"}, images)
	p.Gap()
	p.Line("Pull secrets that the pod names:")
	for _, s := range r.Secrets {
		p.Prose("  - ", "%s: %s", s.Name, cmp.Or(s.Text, "has a login for each image"))
	}
	if len(r.Secrets) == 0 {
		p.Line("  - none (imagePullSecrets)")
	}
	p.Gap()
	p.Line("What else decides:")
	for _, n := range r.Notes {
		p.Prose("  - ", "%s", n)
	}
	for _, e := range r.Events {
		p.Prose("  - ", "Event %s: %s", e.Reason, e.Message)
	}
}
