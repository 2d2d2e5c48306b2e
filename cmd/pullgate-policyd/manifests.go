package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

const manifestsLong = `Print the Kubernetes objects with which a cluster uses pullgate-policyd as its
admission webhook, as YAML documents in the order in which they are created:

  Namespace                       with the Pod Security Standard restricted
  ServiceAccount                  its token is mounted only with the ClusterRole
  ClusterRole, ClusterRoleBinding get, list and watch of namespaces, and nothing
                                  else; left out if --policies has no policy with
                                  a namespaceSelector
  ConfigMap pullgate-policyd      the PolicydConfiguration
  ConfigMap pullgate-policies     the policy files of --policies; without the flag
                                  make it yourself, it is mounted when it exists
  Deployment                      two replicas, without root and capabilities
  PodDisruptionBudget, Service
  MutatingWebhookConfiguration    only if a policy of --policies has mutateDigest
                                  or completes new pods
  ValidatingWebhookConfiguration

The Deployment needs the Secret pullgate-policyd-tls (kubernetes.io/tls) with a
certificate for pullgate-policyd.NAMESPACE.svc. Put the kubeconfigs of image
review backends into the Secret pullgate-backends, which is mounted in
/etc/pullgate/backends. The nodes have to be of version 1.30 or later.

With --url, only the webhook configurations are printed, for a pullgate-policyd
outside of the cluster. They have the form that kube-apiserver 1.37 reads from its
own disk, from a folder for each kind: the name ends with .static.k8s.io, and they
have a URL. With --cluster, they are for one of several clusters: that with the
name in kubeconfigs of the PolicydConfiguration.

Policies of --policies can have a failurePolicy and webhookTimeoutSeconds. All of
them share the webhooks: without --failure-policy these have Fail if one of the
policies has it, and without --timeout the longest timeout. --failure-policy is
about a webhook that does not answer. The failurePolicy of a policy also decides
about an image whose digest cannot be read: absent means Ignore, unlike in Kyverno.
The validating webhook is also registered for the kinds of custom resources that
they name.

The failure policy Ignore is recommended: the nodes enforce the same policies, and
the webhook only reports earlier. With Fail, no pod is created while no
pullgate-policyd answers.`

const manifestsExamples = `  # Everything that a cluster needs, with the policy files of the nodes
  pullgate-policyd manifests --image registry.example.com/pullgate-policyd:v1.0.0 \
    --ca-file ca.crt --policies /etc/pullgate/policies | kubectl apply -f -

  # A file for kube-apiserver's own disk; podTemplates are those of the configuration
  pullgate-policyd manifests --url https://10.0.0.10:9443 --ca-file ca.crt \
    --config /etc/pullgate/policyd.yaml > /etc/kubernetes/admission/webhooks/pullgate.yaml`

type manifestsFlags struct {
	webhook.ManifestOptions
	caFile, config, policies, trustedRoot string
}

func manifestsCommand() *cobra.Command {
	var f manifestsFlags
	cmd := &cobra.Command{
		Use:     "manifests",
		Short:   "Print the Kubernetes objects of the admission webhook",
		Long:    manifestsLong,
		Example: manifestsExamples,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.print(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Namespace, "namespace", "pullgate", "`namespace` of the objects")
	flags.StringVar(&f.Image, "image", "", "`image` whose entry point is pullgate-policyd (required without --url)")
	flags.StringVar(&f.policies, "policies", "", "`folder` of policy files: that of the nodes")
	flags.StringVar(&f.trustedRoot, "trusted-root", "",
		"`file` for the ConfigMap pullgate-trusted-root: the trusted_root.json of the nodes")
	flags.StringVar(&f.caFile, "ca-file", "", "`file` with the PEM certificates of the authority that signs the "+
		"certificate of pullgate-policyd (required without --url)")
	flags.StringVar(&f.URL, "url", "", "https `URL` of a pullgate-policyd outside of the cluster")
	flags.StringVar(&f.Cluster, "cluster", "", "`name` of the cluster in kubeconfigs of the PolicydConfiguration (only "+
		"with --url); without the flag, it is the cluster of kubeconfig")
	flags.StringVar(&f.config, "config", "", "`file` with a PolicydConfiguration, of which podTemplates are used")
	flags.StringVar(&f.FailurePolicy, "failure-policy", "Ignore",
		"`policy` of kube-apiserver if the webhook does not answer: Ignore or Fail; without the flag, that of the policies")
	flags.StringSliceVar(&f.Exclude, "exclude-namespaces", []string{"kube-system"},
		"`namespaces` that the webhook does not judge, besides that of --namespace; the nodes judge them")
	flags.DurationVar(&f.Timeout, "timeout", 10*time.Second,
		"`time` that kube-apiserver waits for an answer, 1s to 30s; without the flag, that of the policies")
	return cmd
}

func (f *manifestsFlags) print(cmd *cobra.Command) error {
	var errs []error
	if f.URL != "" {
		for _, flag := range []string{"namespace", "image", "trusted-root"} {
			if cmd.Flags().Changed(flag) {
				errs = append(errs, fmt.Errorf("--%s: has no effect with --url, which prints no object of the cluster", flag))
			}
		}
	} else if f.Cluster != "" {
		errs = append(errs, errors.New("--cluster: has no effect without --url"))
	}
	errs = append(errs, f.read()...)
	if f.Policies != nil {
		w := f.Policies.Webhook
		if w.FailurePolicy != "" && !cmd.Flags().Changed("failure-policy") {
			f.FailurePolicy = w.FailurePolicy
		}
		if w.TimeoutSeconds != 0 && !cmd.Flags().Changed("timeout") {
			f.Timeout = time.Duration(w.TimeoutSeconds) * time.Second
		}
	}
	if len(errs) > 0 {
		return program.Usagef("invalid flags:\n%w", errors.Join(errs...))
	}
	var text strings.Builder
	if err := webhook.WriteManifests(&text, f.ManifestOptions); err != nil {
		return program.Usagef("invalid flags:\n%w", err)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text.String())
	return err
}

func (f *manifestsFlags) read() (errs []error) {
	file := func(flag, path string, limit int64, hint string) []byte {
		if path == "" {
			return nil
		}
		data, err := disk.Read(path, limit)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w%s", flag, err, hint))
		}
		return data
	}
	f.CA = file("ca-file", f.caFile, webhook.MaxCA,
		"; give the file with the certificate of the authority that signs the one of pullgate-policyd")
	f.TrustedRoot = file("trusted-root", f.trustedRoot, webhook.MaxTrustedRoot, "")
	if f.config != "" {
		c, err := config.LoadPolicyd(f.config)
		if err != nil {
			errs = append(errs, fmt.Errorf("--config %s: %w", f.config, err))
		}
		f.Templates = c.PodTemplates
		if _, ok := c.Kubeconfigs[f.Cluster]; err == nil && f.Cluster != "" && !ok {
			errs = append(errs, fmt.Errorf("--cluster %q: not in kubeconfigs of %s", f.Cluster, f.config))
		}
	}
	if f.policies != "" {
		policies, err := webhook.ReadManifestPolicies(f.policies)
		if err != nil {
			errs = append(errs, fmt.Errorf("--policies:\n%w", err))
		}
		f.Policies = policies
	}
	return errs
}
