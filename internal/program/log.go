package program

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// Flags are the flags that every program of the project has.
type Flags struct {
	// ShowVersion is whether the program prints its version and ends.
	ShowVersion bool

	logFormat string
	verbosity int
}

// Add adds the flags to those of a command.
func (f *Flags) Add(cmd *cobra.Command) {
	to := cmd.Flags()
	to.StringVar(&f.logFormat, "logging-format", "text", "`format` of log lines: text or json")
	to.IntVarP(&f.verbosity, "v", "v", 0, "log `level`: 0 for an operator, 2 and above for a developer")
	to.BoolVar(&f.ShowVersion, "version", false, "print version, commit and date, and exit")
}

// Logger returns the logger for every part of a program. The global logger of klog, which libraries use, gets the same output. An error is a
// UsageError.
func (f *Flags) Logger(w io.Writer) (klog.Logger, error) {
	if f.verbosity < 0 {
		return klog.Logger{}, Usagef("-v %d: the level is 0 or more", f.verbosity)
	}
	var log klog.Logger
	switch f.logFormat {
	case "text":
		log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(f.verbosity)))
	case "json":
		log = logr.FromSlogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.Level(-f.verbosity), ReplaceAttr: inSeconds}))
	default:
		return klog.Logger{}, Usagef("--logging-format %q: allowed are text and json", f.logFormat)
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
