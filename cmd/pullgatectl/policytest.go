package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

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
image review backends (ImagePolicy). They can deny what is admitted here. Rules about images
that need no signature, such as a required digest or default: deny, are judged.

Policies, unjudged, namespaceLabels and the pod source come from --config; --policies and
--namespace-labels take precedence.

The exit code is 0 if every pod is admitted, also if something is not judged, 10 if at least
one pod is denied, and 2 if a file is invalid; then no pod is tested.`

// Values of --at.
const (
	atNode      = "node"
	atAdmission = "admission"
)

type policyTest struct {
	c        *cli.Console
	pods     []string
	policies string
	labels   string
	at       string
	config   string
	user     int64
}

func policyTestCommand(c *cli.Console) *cobra.Command {
	t := policyTest{c: c}
	cmd := &cobra.Command{
		Use:   "test -f FILE",
		Short: "Evaluate pod manifests against policies offline",
		Long:  policyTestLong,
		Example: `  # Would the policies of this node admit these pods?
  pullgatectl policy test -f pod.yaml

  # In CI: policies and manifests of a repository
  pullgatectl policy test --policies policies/ -f deployment.yaml -f cronjob.yaml --image-user 1000

  # What would a new policy deny of what runs?
  kubectl get pods -A -o yaml | pullgatectl policy test --policies policies/ -f -`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringArrayVarP(&t.pods, "filename", "f", nil, "`file` with Pods or workloads, or - for stdin; may be given several times")
	cmd.Flags().StringVar(&t.policies, "policies", "", "`folder` of policy files; default: admission.policies of --config")
	cmd.Flags().StringVar(&t.labels, "namespace-labels", "", "YAML `file` with labels by namespace; default: admission.namespaceLabels of --config")
	cmd.Flags().StringVar(&t.at, "at", atNode, "who judges: node or admission")
	cmd.Flags().Int64Var(&t.user, "image-user", 0, "the `UID` that containers run as if their pods set none; not known if it is not given")
	cmd.Flags().StringVar(&t.config, "config", defaultConfig, configUsage)
	_ = cmd.MarkFlagRequired("filename")
	_ = cmd.MarkFlagDirname("policies")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{atNode, atAdmission}, cobra.ShellCompDirectiveNoFileComp))
	o := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings, err := t.settings(cmd)
		if err != nil {
			return err
		}
		policies, err := policyfiles.NewTester(settings)
		if err != nil {
			return t.invalid(err)
		}
		if len(policies.Ignored) > 0 {
			_, _ = fmt.Fprintf(c.Err, "pullgatectl: %s: not policy files: %s\n", cli.Safe(settings.Folder), cli.Safe(strings.Join(policies.Ignored, ", ")))
		}
		pods, err := t.read(cmd.InOrStdin())
		if err != nil {
			return t.invalid(err)
		}
		result := policies.Test(pods)
		if err := c.Print(o, result, func(_ cli.View, p *cli.Page) { printTest(p, result, settings.RefuseUnjudged) }); err != nil {
			return err
		}
		if result.Denied() > 0 {
			return &cli.ExitError{Code: cli.ExitDenied}
		}
		return nil
	}
	return cmd
}

// settings returns what is tested, by the flags and the configuration.
func (t *policyTest) settings(cmd *cobra.Command) (policyfiles.TestSettings, error) {
	var s policyfiles.TestSettings
	if t.at != atNode && t.at != atAdmission {
		return s, cli.Misused("see pullgatectl policy test --help", "--at %q: allowed are %s and %s", t.at, atNode, atAdmission)
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

// invalid prints each error of files on a line, and returns the error for the exit code.
func (t *policyTest) invalid(err error) error {
	all := safetext.Split(err)
	for _, e := range all {
		_, _ = fmt.Fprintf(t.c.Err, "pullgatectl: %s\n", cli.Safe(safetext.OneLine(e).Error()))
	}
	return cli.Misused("correct the files", "no pod was tested: %s", cli.Count(len(all), "error", "errors"))
}

// read returns the pods of all files. The error joins those of all files.
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

// printTest prints a result. refuse is whether a restriction that the node cannot judge denies.
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
