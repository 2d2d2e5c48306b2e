package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
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

type options struct {
	rounds    int
	duration  time.Duration
	pullgated string
	images    int
	pods      int
	crowds    bool
}

// A part is a section of docs/performance/performance.md.
type part struct {
	name, title string
	measure     func(ctx context.Context, dir string, o options) (text string, err error)
}

func parts() []part {
	return []part{{"calls", "Calls", measureCalls}, {"start", "Start", measureStarts}, {"pods", "Pods", measurePods}}
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	defer host.Catch(&err)
	if len(args) == 4 && args[0] == "serve" {
		return serve(ctx, args[1], args[2], args[3])
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "number of rounds")
	flags.DurationVar(&o.duration, "duration", 700*time.Millisecond, "calls: time for one target and call")
	flags.StringVar(&o.pullgated, "pullgated", "", "program of pullgated")
	flags.IntVar(&o.images, "images", math.MaxInt, "start: only stores of at most so many images")
	flags.IntVar(&o.pods, "pods", 100, "pods: number of pods that are started one by one in each way")
	flags.BoolVar(&o.crowds, "crowds", true, "pods: also start many at once")
	out := flags.String("out", "", "file whose sections are replaced; none prints them")
	wanted := flags.String("parts", "calls,start,pods", "what to measure, separated by commas")
	host.Check(flags.Parse(args))
	dir := host.Must(os.MkdirTemp("", "bench"))
	defer func() { _ = os.RemoveAll(dir) }()
	measured := map[string]string{}
	for _, p := range parts() {
		if !slices.Contains(strings.Split(*wanted, ","), p.name) {
			continue
		}
		measured[p.title] = host.Must(p.measure(ctx, dir, o)) + "\nMachine: " + machine(ctx) + ".\n"
	}
	if *out == "" {
		_, err := io.WriteString(stdout, document("", measured))
		return err
	}
	old, _ := os.ReadFile(*out) // the first time there is none
	return os.WriteFile(*out, []byte(document(string(old), measured)), 0o644)
}

// document returns performance.md with new sections; those that were not measured stay as they are in the old one.
func document(old string, measured map[string]string) string {
	var text strings.Builder
	text.WriteString("# Performance\n\nWhat pullgated costs. Written by `make bench`; do not edit it.\n")
	for _, p := range parts() {
		section, ok := measured[p.title]
		if !ok {
			_, section, _ = strings.Cut(old, "\n## "+p.title+"\n\n")
			section, _, _ = strings.Cut(section, "\n## ")
		}
		if section != "" {
			text.WriteString("\n## " + p.title + "\n\n" + section)
		}
	}
	return text.String()
}

func machine(ctx context.Context) string {
	cpu := "CPUs"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name\t: "); ok {
			cpu = strings.TrimSpace(name)
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	lately, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d × %s, Linux %s, load %s at the end", runtime.NumCPU(), cpu, output(ctx, "uname", "-r"), lately)
}

func output(ctx context.Context, program string, args ...string) string {
	out, _ := exec.CommandContext(ctx, program, args...).CombinedOutput()
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first)
}

func config(dir, listen, runtime string) string {
	path := filepath.Join(dir, "config.yaml")
	host.Check(os.WriteFile(path, fmt.Appendf(nil,
		"apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"+
			"listen: unix://%s\nruntimeEndpoint: unix://%s\nstateDir: %s/state\n"+
			"metrics: {listen: \"\"}\nadmin: {listen: \"\"}\n",
		listen, runtime, dir), 0o600))
	return path
}

func launch(ctx context.Context, program string, args ...string) (*exec.Cmd, func() error) {
	p := exec.CommandContext(ctx, program, args...)
	host.Check(p.Start())
	return p, func() error { return errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()) }
}

func self(ctx context.Context, args ...string) (stop func()) {
	_, end := launch(ctx, host.Must(os.Executable()), append([]string{"serve"}, args...)...)
	return func() { _ = end() } // the signal ends it
}

func sorted[T any, V cmp.Ordered](samples []T, of func(T) V) []V {
	var all []V
	for _, s := range samples {
		all = append(all, of(s))
	}
	slices.Sort(all)
	return all
}

func median[T any, V cmp.Ordered](samples []T, of func(T) V) V {
	return sorted(samples, of)[len(samples)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
