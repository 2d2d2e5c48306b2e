// Command pullgate-policyd verifies image signatures and asks image review backends for pullgated, and is the admission
// webhook of a cluster.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/policies/policyd"
)

const name = "pullgate-policyd"

const defaultConfig = "/etc/pullgate/policyd.yaml"

const long = `pullgate-policyd does what pullgated leaves to a process without privileges,
because it needs the network: it verifies image signatures, asks image review
backends, and serves the admission webhook for kube-apiserver.

On a node, enable pullgate-policyd.socket and set policies to the folder that
pullgated's admission.policies names. pullgated connects when a policy needs it.
In a cluster, it is a Deployment: see pullgate-policyd manifests --help.

A configuration for a node:

  apiVersion: config.pullgate.dev/v1alpha1
  kind: PolicydConfiguration
  policies: /etc/pullgate/policies`

const examples = `  # Check the configuration, the policy files and the certificate
  pullgate-policyd --check-config

  # Run it by hand, without the socket of systemd: set node.listen in the file
  pullgate-policyd --config ./policyd.yaml --logging-format json -v 2`

func main() { os.Exit(program.Run(command())) }

type flags struct {
	program.Flags

	config string
	check  bool
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:     name,
		Short:   "Verify image signatures, ask image review backends, and serve the admission webhook",
		Long:    long,
		Example: examples,
		RunE: f.RunE(func(cmd *cobra.Command, log klog.Logger, reload <-chan os.Signal) error {
			return start(cmd, f, log, reload)
		}),
	}
	cmd.Flags().StringVar(&f.config, "config", defaultConfig, "configuration `file`; it must exist")
	cmd.Flags().BoolVar(&f.check, "check-config", false,
		"check the configuration and the files that it names, print all errors, and exit; safe beside a running "+
			"pullgate-policyd")
	f.Add(cmd)
	manifests := manifestsCommand()
	program.Finish(manifests)
	cmd.AddCommand(manifests)
	program.Finish(cmd)
	return cmd
}

func start(cmd *cobra.Command, f flags, log klog.Logger, reload <-chan os.Signal) error {
	if f.check {
		return program.AsUnit(cmd.Context(), nil, name+".service", func() error { return check(cmd, f.config) })
	}
	c, err := read(f.config)
	if err != nil {
		return err
	}
	if err := program.CheckConfigAccess(f.config); err != nil {
		log.Error(err, "Other users can write the configuration", "hint", program.HintOf(err))
	}
	program.BoundMemory()
	return policyd.Run(klog.NewContext(cmd.Context(), log), policyd.Options{
		Config: c, Log: log, Reload: reload, Version: program.Version,
	})
}

func read(path string) (config.Policyd, error) {
	c, err := config.LoadPolicyd(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, program.Usagef("configuration %s: %w; give --config the path of a file that exists", path, err)
	}
	if err != nil {
		return c, program.Usagef("configuration %s:\n%w", path, err)
	}
	return c, nil
}

func check(cmd *cobra.Command, path string) error {
	c, err := read(path)
	if err != nil {
		return err
	}
	warnings, err := policyd.Examine(cmd.Context(), c)
	if err != nil {
		return program.Usagef("configuration %s: %s would not start:\n%w", path, name, err)
	}
	node := c.Node.Listen
	if node == "" {
		node = "the socket of " + name + ".socket"
	}
	if err := program.CheckConfigAccess(path); err != nil {
		warnings = append(warnings, err.Error()+"; "+program.HintOf(err))
	}
	for _, w := range warnings {
		cmd.PrintErrln("Warning: " + w)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: configuration is valid\n  policies %q, pullgated -> %s, https %q, "+
		"metrics %q\n", path, c.Policies, node, c.HTTPS.Listen, c.Metrics.Listen)
	return err
}
