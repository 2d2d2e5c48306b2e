package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
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
	calls     string
	through   string
	parts     string
	images    int
	pods      int
}

// The parts of a run; each is a section of docs/performance/performance.md.
const (
	partCalls      = "calls"
	partStart      = "start"
	partContainers = "containers"
)

// has reports whether a part is measured.
func (o *options) has(part string) bool { return slices.Contains(strings.Split(o.parts, ","), part) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 4 && args[0] == "serve" {
		return serve(ctx, args[1], args[2], args[3])
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "number of rounds")
	flags.DurationVar(&o.duration, "duration", 700*time.Millisecond, "time for one target in one cell")
	flags.StringVar(&o.pullgated, "pullgated", "", "program of pullgated; none is not measured")
	flags.StringVar(&o.out, "out", "", "folder for performance.md, performance.csv and images/performance.svg; none prints the table")
	flags.StringVar(&o.calls, "calls", "", "measure only calls whose names contain it")
	flags.StringVar(&o.through, "through", "", "measure only these targets, separated by commas, and the direct connection")
	flags.StringVar(&o.parts, "parts", strings.Join([]string{partCalls, partStart, partContainers}, ","), "what to measure, separated by commas; the other sections of performance.md stay")
	flags.IntVar(&o.images, "images", math.MaxInt, "start only with stores of at most so many images")
	flags.IntVar(&o.pods, "pods", 100, "number of pods that are started on a real containerd")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var made sections
	if o.has(partCalls) {
		if err := callsPart(ctx, dir, o, &made); err != nil {
			return err
		}
	}
	if o.has(partStart) && o.pullgated != "" {
		results, err := measureStarts(ctx, dir, o)
		if err != nil {
			return err
		}
		made.add("Start", starts(ctx, results, o))
	}
	if o.has(partContainers) {
		n, err := measureContainers(ctx, o)
		if err != nil {
			return err
		}
		made.add("Containers", containers(ctx, n, o))
	}
	if o.out == "" {
		_, err := io.WriteString(stdout, made.String())
		return err
	}
	return made.write(filepath.Join(o.out, "performance.md"))
}

// callsPart measures the calls.
func callsPart(ctx context.Context, dir string, o options, made *sections) error {
	targets, closeAll, err := start(ctx, dir, o)
	if err != nil {
		return errors.Join(err, closeAll())
	}
	results, err := measure(ctx, targets, o)
	if err := errors.Join(err, closeAll()); err != nil {
		return err
	}
	made.add("Calls", calls(ctx, results, o, targets))
	if o.out == "" {
		return nil
	}
	return errors.Join(os.WriteFile(filepath.Join(o.out, "performance.csv"), []byte(full(results)), 0o644),
		os.WriteFile(filepath.Join(o.out, "images", "performance.svg"), []byte(chart(results)), 0o644))
}
