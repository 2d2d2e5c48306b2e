package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const policyLong = `Write, test and show policies, which restrict the fields of pods (PodRestriction), have
images reviewed by a backend (ImagePolicy), have pods judged by a hook
(ValidatingWebhookConfiguration), complete new pods (PodDefaults,
MutatingWebhookConfiguration, in the webhook alone), or require signatures of images (ClusterPolicy,
ClusterImagePolicy, ImageValidatingPolicy). pullgated reads them from the folder
admission.policies and enforces them at each creation of a sandbox or container.

A first policy: print a preset into an empty folder, test it with the pods that you have,
set admission.policies to the folder, and begin with admission.enforce: false, which only
reports.`

func policyCommand(c *cli.Console) *cobra.Command {
	return cli.Group("policy", "Write, test and show policies for the fields of pods", policyLong,
		policyListCommand(c), policyPresetCommand(c), policyTestCommand(c), policyVerifyCommand(c),
		policyConvertCommand(c))
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

For each rule about signatures (ClusterPolicy, ClusterImagePolicy, ImageValidatingPolicy)
the list has the images and namespaces that it is for, and who must have signed. All rules
that match an image must be met.

For each hook (ValidatingWebhookConfiguration) the list has where and when it is asked, and
what a failure does. All hooks that are asked about a pod must allow it. Initialisers
(MutatingWebhookConfiguration) and PodDefaults are used by the webhook alone.`,
		Args: cobra.NoArgs,
	}
	return listing(c, cmd, cli.FormatFlag(cmd), &adminv1.ListPoliciesRequest{}, adminv1.PullRecordsClient.ListPolicies,
		(*cli.Page).Policies)
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
	cmd.Flags().StringVar(&request.Namespace, "namespace", "",
		"only the rules for pods of this `namespace`; default: those of all")
	var creds string
	cmd.Flags().StringVar(&creds, "creds", "", "the `USER[:PASSWORD]` that the registry is asked with; the password is "+
		"read from stdin if it is absent")
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
	return cli.ShowCommand(c, cmd, cli.OutputFlags(cmd), verify,
		func(p *cli.Page, r *adminv1.VerifyImageResponse) {
			p.VerifiedImage(request.GetImage(), r)
		}, func(r *adminv1.VerifyImageResponse) error { return verifiedExit(r, request.GetImage()) })
}

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
			unknown = program.Hintf("give --creds a user that may read the image",
				"the signatures of %s could not be verified: the registry denied access", image)
		default:
			return &cli.ExitError{Code: cli.ExitDenied}
		}
	}
	return unknown
}

const policyTestLong = `Evaluate pods in files against policies, and print which pods the policies admit. The command
needs no pullgated and no cluster, so it can run where policies and manifests are reviewed.

Each file has Pods, Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs,
ReplicationControllers or PodTemplates, as YAML or JSON documents or in a List; "-" is
stdin. Of a workload, the pod template is judged. Defaults of the API server are added, and
the volume with the token of the service account.

--at says who judges:

    node       a node, at the creation of the sandbox and of each container, by what the
               CRI carries. Fields that no message carries are listed and treated as
               admission.unjudged says. Some values are known only on the node: the user
               of an image, which --image-user sets, and the volume driver of a claim,
               which is taken for csi.
    admission  an admission webhook, by the whole Pod

A field that is restricted and not known denies. Policies that only report (audit) deny
nothing, but what they report is printed. Exemptions and admission.enforce have no effect
here, and the owner and mode of the policy files are not checked.

What needs a registry or a hook is listed as not judged: rules that signatures decide, and
image review backends (ImagePolicy). They can deny what is admitted here. So are PodDefaults
and initialisers, which change new pods: write pods as they are after that. Rules about images
that need no signature, such as a required digest or default: deny, are judged.

Policies, unjudged, namespaceLabels and the pod source come from --config; --policies and
--namespace-labels take precedence.

With --images, the pullgated of this node is asked what the files of kind ImageAccess in the
folder would change if they were in use: which rights to images on the node would begin (+) or
end (-), and for which pods the state in pullgatectl pods would change. Nothing is changed.

The exit code is 0 if every pod is admitted, also if something is not judged, 10 if at least
one pod is denied (with --images, if one that is not denied would be denied or need proof), and
2 if a file is invalid; then no pod is tested.`

// Values of --at.
const (
	atNode      = "node"
	atAdmission = "admission"
)

type policyTest struct {
	c                            *cli.Console
	pods                         []string
	policies, labels, at, config string
	user                         int64
	images                       bool
}

func policyTestCommand(c *cli.Console) *cobra.Command {
	t := policyTest{c: c}
	cmd := &cobra.Command{
		Use:   "test -f FILE|--images",
		Short: "Evaluate pod manifests against policies offline",
		Long:  policyTestLong,
		Example: `  # Would the policies of this node admit these pods?
  pullgatectl policy test -f pod.yaml

  # In CI: policies and manifests of a repository
  pullgatectl policy test --policies policies/ -f deployment.yaml -f cronjob.yaml --image-user 1000

  # What would a changed ImageAccess change on this node?
  pullgatectl policy test --images --policies new-policies/

  # What would a new policy deny of what runs?
  kubectl get pods -A -o yaml | pullgatectl policy test --policies policies/ -f -`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringArrayVarP(&t.pods, "filename", "f", nil,
		"`file` with Pods or workloads, or - for stdin; may be given several times")
	cmd.Flags().StringVar(&t.policies, "policies", "", "`folder` of policy files; default: admission.policies of --config")
	cmd.Flags().StringVar(&t.labels, "namespace-labels", "",
		"YAML `file` with labels by namespace; default: admission.namespaceLabels of --config")
	cmd.Flags().StringVar(&t.at, "at", atNode, "who judges: node or admission")
	cmd.Flags().Int64Var(&t.user, "image-user", 0, "the `UID` that containers run as if their pods set none; not known "+
		"if it is not given")
	cmd.Flags().StringVar(&t.config, "config", defaultConfig, configUsage)
	cmd.Flags().BoolVar(&t.images, "images", false,
		"ask pullgated what the files of kind ImageAccess would change on this node, instead of testing pods in files")
	cmd.MarkFlagsOneRequired("filename", "images")
	for _, other := range []string{"filename", "at", "image-user", "namespace-labels"} {
		cmd.MarkFlagsMutuallyExclusive(other, "images")
	}
	_ = cmd.MarkFlagDirname("policies")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{atNode, atAdmission},
		cobra.ShellCompDirectiveNoFileComp))
	o := cli.FormatFlag(cmd)
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if t.images {
			c.Patience(cmd, time.Minute)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings, err := t.settings(cmd)
		if err != nil {
			return err
		}
		settings.MayBeEmpty = t.images
		policies, err := policyfiles.NewTester(settings)
		if err == nil {
			err = condition.Check(policyfiles.Conditions(policies.Set))
		}
		if err != nil {
			return t.invalid(err)
		}
		if len(policies.Ignored) > 0 {
			_, _ = fmt.Fprintf(c.Err, "pullgatectl: %s: not policy files: %s\n", cli.Safe(settings.Folder),
				cli.Safe(strings.Join(policies.Ignored, ", ")))
		}
		if t.images {
			return t.testImages(cmd.Context(), o, policies.Access)
		}
		pods, err := t.read(cmd.InOrStdin())
		if err != nil {
			return t.invalid(err)
		}
		result := policies.Test(pods)
		if err := c.Print(o, result, func(p *cli.Page) {
			printTest(p, result, settings.RefuseUnjudged)
		}); err != nil {
			return err
		}
		if result.Denied() > 0 {
			return &cli.ExitError{Code: cli.ExitDenied}
		}
		return nil
	}
	return cmd
}

// testImages prints what files of kind ImageAccess would change on the node.
func (t *policyTest) testImages(ctx context.Context, o *cli.Output, files []policyfiles.File) error {
	request := &adminv1.TestImageAccessRequest{}
	for _, f := range files {
		request.Files = append(request.Files, &adminv1.PolicyFile{Name: f.Name, Data: f.Data})
	}
	return t.c.Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) error {
		r, err := api.TestImageAccess(ctx, request)
		if err != nil {
			return err
		}
		if err := t.c.Print(o, r, func(p *cli.Page) { p.ImageAccess(r) }); err != nil {
			return err
		}
		denied := func(state string) bool { return strings.HasPrefix(state, "denied by ") || state == "needs proof" }
		if slices.ContainsFunc(r.GetPods(), func(c *adminv1.PodImageChange) bool {
			return denied(c.GetState()) && !denied(c.GetNow().GetState())
		}) || r.GetMore() > 0 {
			return &cli.ExitError{Code: cli.ExitDenied}
		}
		return nil
	})
}

func (t *policyTest) settings(cmd *cobra.Command) (policyfiles.TestSettings, error) {
	var s policyfiles.TestSettings
	if t.at != atNode && t.at != atAdmission {
		return s, cli.Misused("see pullgatectl policy test --help", "--at %q: allowed are %s and %s", t.at, atNode,
			atAdmission)
	}
	if t.user < 0 {
		return s, cli.Misused("see pullgatectl policy test --help", "--image-user %d: it is 0 or more", t.user)
	}
	c, err := loadConfig(cmd, t.config)
	switch {
	case isAbsent(err):
		return s, err
	case err != nil:
		return s, t.invalid(fmt.Errorf("pullgated's configuration %s: %w", t.config, err))
	}
	s = policyfiles.TestSettings{
		Folder: cmp.Or(t.policies, c.Admission.Policies), NamespaceLabels: cmp.Or(t.labels, c.Admission.NamespaceLabels),
		AtAdmission: t.at == atAdmission, RefuseUnjudged: c.Admission.Unjudged == config.UnjudgedRefuse,
		Node: podfile.Node{PodSource: c.PodSource.Kubeconfig != ""},
	}
	if cmd.Flags().Changed("image-user") {
		s.Node.ImageUser = &t.user
	}
	if s.Folder == "" {
		return s, cli.Misused("give --policies a folder", "no policies: admission.policies of %s is \"\"", t.config)
	}
	return s, nil
}

func (t *policyTest) invalid(err error) error {
	all := safetext.Split(err)
	for _, e := range all {
		_, _ = fmt.Fprintf(t.c.Err, "pullgatectl: %s\n", cli.Safe(safetext.OneLine(e).Error()))
	}
	return cli.Misused("correct the files", "no pod was tested: %s", cli.Count(len(all), "error", "errors"))
}

func (t *policyTest) read(stdin io.Reader) ([]policyfiles.TestPod, error) {
	var workloads []podfile.Workload // that the webhook judges too
	for _, w := range config.BuiltInPodTemplates() {
		workloads = append(workloads, podfile.Workload(w))
	}
	var pods []policyfiles.TestPod
	var errs []error
	for _, name := range t.pods {
		var data []byte
		var err error
		if name == "-" {
			data, err = io.ReadAll(stdin)
		} else {
			data, err = os.ReadFile(name)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found, err := podfile.Read(data, workloads...)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		for _, p := range found {
			pods = append(pods, policyfiles.TestPod{Pod: p, File: name})
		}
	}
	return pods, errors.Join(errs...)
}

func printTest(p *cli.Page, r *policyfiles.TestResult, refuse bool) {
	for _, pod := range r.Pods {
		name := pod.Namespace + "/" + pod.Name
		if pod.Kind != "Pod" {
			name = pod.Kind + " " + name
		}
		if pod.Admitted {
			p.Paint(cli.Good, "%s: admitted", name)
		} else {
			p.Paint(cli.Heed, "%s: denied", name)
		}
		for _, name := range pod.AcceptedBy {
			p.Line("  accepted by policy %s", name)
		}
		for _, v := range pod.Violations {
			if v.Audit {
				p.Line("  audit: %s", v.Message)
			} else {
				p.Line("  %s", v.Message)
			}
		}
		for _, rule := range pod.NotJudged {
			p.Line("  not judged: %s", rule)
		}
	}
	if len(r.NotAsked) > 0 {
		p.Gap()
		p.Prose("", "Not judged, image review backends: %s.", strings.Join(r.NotAsked, ", "))
	}
	if len(r.Unjudged) == 0 {
		return
	}
	p.Gap()
	p.Prose("", "%s", cli.Unjudged("A", refuse))
	for _, f := range r.Unjudged {
		p.Line("  policy %s: %s", f.Policy, f.Path)
	}
}
