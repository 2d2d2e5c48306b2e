package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags of bench.
type options struct {
	rounds    int
	duration  time.Duration
	pullgated string
	out       string
	require   bool
	calls     string
	through   string
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 4 && args[0] == "serve" {
		return serve(ctx, args[1], args[2], args[3])
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "number of rounds")
	flags.DurationVar(&o.duration, "duration", 700*time.Millisecond, "time for one target in one cell")
	flags.StringVar(&o.pullgated, "pullgated", "", "program of pullgated; none is not measured")
	flags.StringVar(&o.out, "out", "", "folder for performance.md and performance.svg; none prints the table")
	flags.BoolVar(&o.require, "require", false, "fail if HAProxy or nginx is missing")
	flags.StringVar(&o.calls, "calls", "", "measure only calls whose names contain it")
	flags.StringVar(&o.through, "through", "", "measure only these targets, separated by commas, and the direct connection")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	targets, closeAll, err := start(ctx, dir, o)
	if err != nil {
		return errors.Join(err, closeAll())
	}
	results, err := measure(ctx, targets, o)
	if err := errors.Join(err, closeAll()); err != nil {
		return err
	}
	if o.out == "" {
		_, err := io.WriteString(stdout, table(results))
		return err
	}
	if err := os.WriteFile(filepath.Join(o.out, "performance.md"), []byte(page(ctx, results, o, targets)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "images", "performance.svg"), []byte(chart(results)), 0o644)
}
