// Command pullgated is a proxy between the kubelet and the container runtime. It lets a pod use an image only if one of
// the pod's credentials has proved access to it.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/daemon"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

const defaultConfig = "/etc/pullgate/config.yaml"

const long = `pullgated is a CRI proxy between the kubelet and the container runtime. It records
which credentials pulled which image, and answers that an image is not present to a
pod that has not proved access to it, so that the kubelet pulls with the
pod's own credentials (imagePullPolicy IfNotPresent) or refuses (Never).

Point the kubelet's containerRuntimeEndpoint at the socket that pullgated listens
on, and pullgated's runtimeEndpoint at the runtime. Without
/etc/pullgate/config.yaml every field has its default; see pullgated-config.yaml(5).
A file that --config names must exist.`

const examples = `  # Check the configuration, and that a start could use the files and addresses in it
  pullgated --check-config

  # Run it by hand, with more log lines, as JSON
  pullgated --config ./config.yaml --logging-format json -v 2

  # After the store was lost: every pod may use the images that are on the node now
  pullgated --accept-present-images`

func main() { os.Exit(program.Run(command())) }

type flags struct {
	program.Flags

	config      string
	configGiven bool // --config is on the command line
	check       bool
	accept      bool
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:     "pullgated",
		Short:   "Verify image pull credentials for each pod of this node",
		Long:    long,
		Example: examples,
		RunE: f.RunE(func(cmd *cobra.Command, log klog.Logger, reload <-chan os.Signal) error {
			f.configGiven = cmd.Flags().Changed("config")
			return start(cmd, f, log, reload)
		}),
	}
	cmd.Flags().StringVar(&f.config, "config", defaultConfig, "configuration `file`; one that is given must exist, "+
		"without the default one every field has its default")
	cmd.Flags().BoolVar(&f.check, "check-config", false, "check the configuration and what a start would do with it, "+
		"print errors and warnings, and exit; safe beside a running daemon")
	cmd.Flags().BoolVar(&f.accept, "accept-present-images", false, "end the distrust of a store that was lost: "+
		"take the images that are on the node now for preloaded")
	f.Add(cmd)
	cmd.AddCommand(providerCommand())
	program.Finish(cmd)
	return cmd
}

func start(cmd *cobra.Command, f flags, log klog.Logger, reload <-chan os.Signal) error {
	load := loader(f.config, f.configGiven)
	if f.check {
		return program.AsUnit(cmd.Context(), nil, "pullgated.service", func() error { return check(cmd, f.config, load) })
	}
	c, found, err := read(f.config, load)
	if err != nil {
		return err
	}
	path, err := filepath.Abs(f.config)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", f.config, err)
	}
	if err := program.CheckConfigAccess(path); err != nil {
		log.Error(err, "Other users can write the configuration", "hint", program.HintOf(err))
	}
	if !found {
		log.Info("Configuration file not found: using defaults", "path", path, "enforcement", c.Enforcement())
	}
	program.BoundMemory()
	return daemon.Run(klog.NewContext(cmd.Context(), log), daemon.Options{
		Config: c, ConfigPath: path, ConfigFound: found, AcceptPresentImages: f.accept, Log: log, Reload: reload, Load: load,
		Version: program.Version, Commit: program.Commit, GoVersion: runtime.Version(),
	})
}

func read(path string, load func() (config.Config, bool, error)) (config.Config, bool, error) {
	c, found, err := load()
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, config.ErrInvalid) {
		return c, found, program.Usagef("configuration %s: %w; "+
			"give --config the path of a file that exists, or no --config for the defaults", path, err)
	}
	if err != nil {
		return c, found, program.Usagef("configuration %s:\n%w", path, err)
	}
	return c, found, nil
}

func check(cmd *cobra.Command, path string, load func() (config.Config, bool, error)) error {
	c, found, err := read(path, load)
	if err != nil {
		return err
	}
	state := "configuration is valid"
	if !found {
		state = "not found: using defaults"
	}
	var warnings []string
	var refused []error
	for _, f := range (doctor.Node{Config: c, ConfigPath: path}).Examine(cmd.Context(), doctor.BeforeStart) {
		if f.Level == doctor.Fail {
			refused = append(refused, errors.New(f.String()))
		} else {
			warnings = append(warnings, f.String())
		}
	}
	if err := program.CheckConfigAccess(path); err != nil {
		warnings = append(warnings, fmt.Sprintf("%v; %s", err, program.HintOf(err)))
	}
	for _, w := range warnings {
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "pullgated: warning: %s\n", w); err != nil {
			return err
		}
	}
	if len(refused) > 0 {
		return program.Usagef("configuration %s: pullgated would not start:\n%w", path, errors.Join(refused...))
	}
	source := c.PodSource.Kubeconfig
	if source == "" {
		source = "none"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s; %s\n"+
		"  kubelet -> %s -> %s\n  state %s, metrics %q, pod source %s, decision log %q\n",
		path, state, c.Enforcement(), c.Listen, c.RuntimeEndpoint, c.StateDir, c.Metrics.Listen, source, c.DecisionLog.Path)
	return err
}

// loader returns a function that reads the configuration on each call, and reports whether its file was found. If the
// file is absent, the function returns the defaults, unless the command line names the file, or the file existed
// before: it may be about to be replaced.
func loader(path string, required bool) func() (config.Config, bool, error) {
	return func() (config.Config, bool, error) {
		c, found, err := config.Load(path, required)
		required = required || found
		return c, found, err
	}
}
