// Command pullgate-dispatcher installs pullgate on the nodes of a cluster, in waves.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/fleet/dispatcher"
	"github.com/pullgate/pullgate/internal/mechanics/program"
)

const name = "pullgate-dispatcher"

const long = `pullgate-dispatcher installs pullgate on the nodes that Rollouts select, in waves.
It runs in a cluster, as a Deployment of the Helm chart with two replicas, of
which one leads. It makes a pod on one node after the other, watches whether the
node works, and confirms it. A node that is not confirmed takes everything back
by itself.

  kubectl get rollouts          what is installed, and what has failed
  kubectl describe rollout NAME which nodes, why, and what to do

https://github.com/pullgate/pullgate/blob/main/docs/fleet.md explains Rollouts.`

const examples = `  # In a cluster, as the chart runs it
  pullgate-dispatcher --namespace pullgate --image registry.example.com/pullgate:v1.0.0

  # Outside of it, with the identity of a kubeconfig
  pullgate-dispatcher --kubeconfig ./kubeconfig --namespace pullgate --image registry.example.com/pullgate:v1.0.0`

func main() { os.Exit(program.Run(command())) }

type flags struct {
	program.Flags
	dispatcher.Options

	kubeconfig string
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:     name,
		Short:   "Install pullgate on the nodes of a cluster, in waves",
		Long:    long,
		Example: examples,
		RunE: f.RunE(func(cmd *cobra.Command, log klog.Logger, _ <-chan os.Signal) error {
			return f.start(cmd, log)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"`file` to reach the API server by; without it, the pod's own identity")
	flags.StringVar(&f.Namespace, "namespace", "",
		"`namespace` of this program, of its Lease and of the pods that it makes")
	flags.StringVar(&f.Identity, "identity", "",
		"`name` of this replica, unlike that of the others; default: the host name")
	flags.StringVar(&f.Image, "image", "", "`image` of this program, for Rollouts of its version that name none")
	flags.StringSliceVar(&f.PullSecrets, "image-pull-secrets", nil,
		"`names` of Secrets in the namespace with which kubelets pull the image")
	flags.StringVar(&f.Listen, "metrics", ":9473", "`address` of /metrics, /healthz and /readyz; \"\" for none")
	f.Add(cmd)
	program.Finish(cmd)
	return cmd
}

func (f *flags) start(cmd *cobra.Command, log klog.Logger) (err error) {
	if details := validation.IsDNS1123Label(f.Namespace); len(details) > 0 {
		return program.Usagef("--namespace %q: %s; give the namespace that this program runs in", f.Namespace, details[0])
	}
	if f.Image == "" {
		return program.Usagef("--image: required; give the image that this program is from, with a tag or a digest")
	}
	if f.Identity == "" {
		if f.Identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("host name: %w", err)
		}
	}
	if f.API, err = apiServer(f.kubeconfig); err != nil {
		return err
	}
	f.Version, f.Log = program.Version, log
	program.BoundMemory()
	return dispatcher.Run(klog.NewContext(cmd.Context(), log), f.Options)
}

func apiServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, program.Hintf("give --kubeconfig a file, outside of a cluster", "identity of the pod: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, program.Usagef("--kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
