// Command pullgated is a proxy between the kubelet and the container runtime. It lets a pod use an image only if one of the pod's
// credentials has proved access to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/daemon"
	"github.com/pullgate/pullgate/internal/hint"
)

// The linker sets these variables; see the Makefile.
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

// Exit codes, the same for every program of the project.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const defaultConfig = "/etc/pullgate/config.yaml"

const long = `pullgated stands between the kubelet and the container runtime. It records which
credentials pulled which image, and hides an image that is already on the node
from a pod that has not proved access to it, so that the kubelet pulls with the
pod's own credentials (imagePullPolicy IfNotPresent) or refuses (Never).

Point the kubelet's containerRuntimeEndpoint at the socket that pullgated listens
on, and pullgated's runtimeEndpoint at the runtime. Without
/etc/pullgate/config.yaml every field has its default; see pullgated-config.yaml(5).
A file that --config names must exist.`

const examples = `  # Check the configuration, and that a start could use the files and addresses in it
  pullgated --check-config

  # Run it by hand, talkative, with JSON log lines
  pullgated --config ./config.yaml --logging-format json -v 2

  # After the store was lost: every pod may use the images that are on the node now
  pullgated --accept-present-images`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// A usageError is an error of the command line or the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if child, ok := errors.AsType[childError](err); ok {
		return child.code
	}
	complain(stderr, err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// complain prints an error for an operator: what and why, then what to do.
func complain(w io.Writer, err error) {
	_, _ = fmt.Fprintf(w, "pullgated: %v\n", err)
	if advice := hint.Of(err); advice != "" {
		_, _ = fmt.Fprintf(w, "pullgated: hint: %s\n", advice)
	}
}

type flags struct {
	config      string
	configGiven bool // --config is on the command line
	check       bool
	accept      bool
	logFormat   string
	verbosity   int
	showVersion bool
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:           "pullgated",
		Short:         "Judge who may use the images of this node",
		Long:          long,
		Example:       examples,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.configGiven = cmd.Flags().Changed("config")
			return start(cmd, f)
		},
		// Otherwise cobra would accept a command "completion", which --help does not list.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	cmd.Flags().StringVar(&f.config, "config", defaultConfig, "configuration `file`; one that is given must exist, without the default one every field has its default")
	cmd.Flags().BoolVar(&f.check, "check-config", false, "check the configuration and what a start would do with it, print errors and warnings, and exit; safe beside a running daemon")
	cmd.Flags().BoolVar(&f.accept, "accept-present-images", false, "end the distrust of a store that was lost: take the images that are on the node now for preloaded")
	cmd.Flags().StringVar(&f.logFormat, "logging-format", "text", "`format` of log lines: text or json")
	cmd.Flags().IntVarP(&f.verbosity, "v", "v", 0, "log `level`: 0 for an operator, 2 and above for a developer")
	cmd.Flags().BoolVar(&f.showVersion, "version", false, "print version, commit and date, and exit")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	cmd.AddCommand(providerCommand())
	// Otherwise cobra would add a command "help" beside --help. Under another name it is not listed either, and accepts as few
	// arguments as pullgated does.
	cmd.SetHelpCommand(&cobra.Command{
		Use: "no-help", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return noArguments(nil, []string{"no-help"}) },
	})
	return cmd
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q; pullgated takes flags only, see pullgated --help", args[0])}
	}
	return nil
}

func start(cmd *cobra.Command, f flags) error {
	if f.showVersion {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "pullgated %s (commit %s, %s, %s)\n", version, commit, date, runtime.Version())
		return err
	}
	// From here on a SIGHUP does not end the process; a SIGHUP before the daemon has started is handled after the start.
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	log, err := logger(f, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	load := loader(f.config, f.configGiven)
	c, found, err := load()
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, config.ErrInvalid) {
		return usageError{fmt.Errorf("configuration %s: %w; give --config the path of a file that exists, or no --config for the defaults", f.config, err)}
	}
	if err != nil {
		return usageError{fmt.Errorf("configuration %s:\n%w", f.config, err)}
	}
	path, err := filepath.Abs(f.config)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", f.config, err)
	}
	if f.check {
		return check(cmd, f.config, c, found)
	}
	if !found {
		log.Info("Configuration file not found: using defaults", "path", path, "enforcement", c.Enforcement())
	}
	boundMemory()
	return daemon.Run(klog.NewContext(cmd.Context(), log), daemon.Options{
		Config:              c,
		ConfigPath:          path,
		ConfigFound:         found,
		AcceptPresentImages: f.accept,
		Log:                 log,
		Reload:              reload,
		Load:                load,
		Version:             version,
		Commit:              commit,
		GoVersion:           runtime.Version(),
	})
}

// check prints the effect of a configuration, and what a start with it would refuse or do without.
func check(cmd *cobra.Command, path string, c config.Config, found bool) error {
	state := "configuration is valid"
	if !found {
		state = "not found: using defaults"
	}
	p := daemon.Examine(cmd.Context(), c)
	for _, w := range p.Warnings {
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "pullgated: warning: %v\n", w); err != nil {
			return err
		}
	}
	if len(p.Errors) > 0 {
		return usageError{fmt.Errorf("configuration %s: pullgated would not start:\n%w", path, errors.Join(p.Errors...))}
	}
	source := c.PodSource.Kubeconfig
	if source == "" {
		source = "none"
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s; %s\n  kubelet -> %s -> %s\n  state %s, metrics %q, pod source %s, decision log %q\n",
		path, state, c.Enforcement(), c.Listen, c.RuntimeEndpoint, c.StateDir, c.Metrics.Listen, source, c.DecisionLog.Path)
	return err
}

// loader returns a function that reads the configuration on each call, and reports whether its file was found. If the file is
// absent, the function returns the defaults, unless the command line names the file, or the file existed before: it may be about
// to be replaced.
func loader(path string, given bool) func() (config.Config, bool, error) {
	required := given
	return func() (config.Config, bool, error) {
		if required {
			c, err := config.LoadPresent(path)
			return c, err == nil, err
		}
		c, found, err := config.Load(path)
		required = found
		return c, found, err
	}
}

// Settings of the Go garbage collector. gcPercent keeps the resident memory low while the daemon uses little. memoryLimit is far
// above the daemon's memory on a large node: near the limit the runtime spends up to half of the CPU on collections, in a process
// that every container start waits for. With 44 MiB in use, 2 GiB of garbage cost 12 s of CPU under a limit of 48 MiB, and 2.4 s
// under these settings.
const (
	gcPercent   = 50
	memoryLimit = 128 << 20
)

// boundMemory applies the settings, each unless its environment variable, GOGC or GOMEMLIMIT, is set.
func boundMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// logger returns the logger for every part. The global logger of klog, which libraries use, gets the same output.
func logger(f flags, w io.Writer) (klog.Logger, error) {
	if f.verbosity < 0 {
		return klog.Logger{}, usageError{fmt.Errorf("-v %d: the level is 0 or more", f.verbosity)}
	}
	var log klog.Logger
	switch f.logFormat {
	case "text":
		log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(f.verbosity)))
	case "json":
		log = logr.FromSlogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.Level(-f.verbosity), ReplaceAttr: inSeconds}))
	default:
		return klog.Logger{}, usageError{fmt.Errorf("--logging-format %q: allowed are text and json", f.logFormat)}
	}
	klog.SetLogger(log)
	return log, nil
}

// inSeconds writes durations as numbers of seconds, as the decision log and pullgatectl do; slog's default is nanoseconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}
