package program

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// Flags are the flags that every program of the project has.
type Flags struct {
	showVersion bool
	logFormat   string
	verbosity   int
}

// Add adds the flags to those of a command.
func (f *Flags) Add(cmd *cobra.Command) {
	to := cmd.Flags()
	to.StringVar(&f.logFormat, "logging-format", "text", "`format` of log lines: text or json")
	to.IntVarP(&f.verbosity, "v", "v", 0, "log `level`: 0 for an operator, 2 and above for a developer")
	to.BoolVar(&f.showVersion, "version", false, "print version, commit and date, and exit")
}

// RunE returns what a command with these flags does: it prints the version, if that is requested, or calls start. log
// is for every part of the program; the global logger of klog, which libraries use, gets the same output. A SIGHUP does
// not end the process, but is sent to reload; the first one is kept until it is received.
func (f *Flags) RunE(
	start func(cmd *cobra.Command, log klog.Logger, reload <-chan os.Signal) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if f.showVersion {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), VersionLine(cmd.Name()))
			return err
		}
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)
		log, err := f.logger(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return start(cmd, log, reload)
	}
}

func (f *Flags) logger(w io.Writer) (klog.Logger, error) {
	if f.verbosity < 0 {
		return klog.Logger{}, Usagef("-v %d: the level is 0 or more", f.verbosity)
	}
	var log klog.Logger
	switch f.logFormat {
	case "text":
		log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(f.verbosity)))
	case "json":
		options := slog.HandlerOptions{Level: slog.Level(-f.verbosity), ReplaceAttr: inSeconds}
		log = logr.FromSlogHandler(slog.NewJSONHandler(w, &options))
	default:
		return klog.Logger{}, Usagef("--logging-format %q: allowed are text and json", f.logFormat)
	}
	klog.SetLogger(log)
	return log, nil
}

// inSeconds writes durations as seconds, as the decision log and pullgatectl do; slog's default is nanoseconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}
