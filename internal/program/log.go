package program

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// Logger returns the logger for every part of a program, by the flags --logging-format and -v. The global logger of klog, which libraries
// use, gets the same output. An error is a UsageError.
func Logger(format string, verbosity int, w io.Writer) (klog.Logger, error) {
	if verbosity < 0 {
		return klog.Logger{}, Usagef("-v %d: the level is 0 or more", verbosity)
	}
	var log klog.Logger
	switch format {
	case "text":
		log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(verbosity)))
	case "json":
		log = logr.FromSlogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.Level(-verbosity), ReplaceAttr: inSeconds}))
	default:
		return klog.Logger{}, Usagef("--logging-format %q: allowed are text and json", format)
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
