package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// ratios returns, for each round, a figure of a result by that of the direct connection.
func (r *result) ratios(of func(sample) time.Duration) (low, median, high float64) {
	var all []float64
	for i, s := range r.samples {
		all = append(all, float64(of(s))/float64(max(1, of(r.direct[i]))))
	}
	slices.Sort(all)
	return all[0], all[len(all)/2], all[len(all)-1]
}

func p50(s sample) time.Duration { return s.p50 }
func p99(s sample) time.Duration { return s.p99 }

// cpuPerCall returns microseconds of the target's processor time.
func (r *result) cpuPerCall() float64 {
	var cpu time.Duration
	calls := 0
	for _, s := range r.samples {
		cpu, calls = cpu+s.cpu, calls+s.calls
	}
	return float64(cpu.Microseconds()) / float64(max(1, calls))
}

func (r *result) rate() float64 {
	var rates []float64
	for _, s := range r.samples {
		rates = append(rates, float64(s.calls)/s.took.Seconds())
	}
	slices.Sort(rates)
	return rates[len(rates)/2]
}

// table returns the results as Markdown.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| calls | callers | through | p50 | p50, × direct | p99, × direct | calls/s | CPU per call | peak RSS |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range results {
		r := &results[i]
		low, median, high := r.ratios(p50)
		_, tail, _ := r.ratios(p99)
		var medians []time.Duration
		for _, s := range r.samples {
			medians = append(medians, s.p50)
		}
		slices.Sort(medians)
		failed := 0
		for _, s := range r.samples {
			failed += s.failed
		}
		through := r.target
		if failed > 0 {
			through = fmt.Sprintf("%s (%d calls failed)", r.target, failed)
		}
		cpu, peak := fmt.Sprintf("%.1f µs", r.cpuPerCall()), fmt.Sprintf("%d MB", r.peak)
		if r.target == direct {
			cpu, peak = "–", "–"
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %.3f ms | %.2f [%.2f–%.2f] | %.2f | %.0f | %s | %s |\n", r.cell.name, r.cell.callers, through,
			float64(medians[len(medians)/2].Microseconds())/1000, median, low, high, tail, r.rate(), cpu, peak)
	}
	return b.String()
}

// calls returns the results as a section of docs/performance.md.
func calls(ctx context.Context, results []result, o options, targets []*target) string {
	var b strings.Builder
	b.WriteString("![p50 by the direct connection](images/performance.svg)\n\n")
	fmt.Fprintf(&b, "%d rounds of %v for each target and cell, interleaved. Client, target and a fake runtime share the machine. Ratios are medians over the rounds, to the direct "+
		"connection in the same round, with the lowest and the highest. p50 is the median of the rounds' medians. CPU and memory are those of the target.\n\n", o.rounds, o.duration)
	b.WriteString("| what | version |\n| --- | --- |\n")
	fmt.Fprintf(&b, "| machine | %s |\n", machine(ctx))
	for _, t := range targets {
		if t.version != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", t.name, t.version)
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Fprintf(&b, "| Go | %s |\n", info.GoVersion)
		for _, d := range info.Deps {
			if strings.HasSuffix(d.Path, "/grpc-proxy") || d.Path == "google.golang.org/grpc" {
				fmt.Fprintf(&b, "| %s | %s |\n", d.Path, d.Version)
			}
		}
	}
	b.WriteString("\n`splice` copies bytes between two sockets without reading gRPC: no proxy that reads calls can be faster. HAProxy has two threads, nginx one process. " +
		"`mwitkow` and `siderolabs` are the libraries github.com/mwitkow/grpc-proxy and github.com/siderolabs/grpc-proxy. Only pullgated judges the pre-checks.\n\n")
	b.WriteString(table(results))
	return b.String()
}

func machine(ctx context.Context) string {
	kernel, _ := exec.CommandContext(ctx, "uname", "-sr").Output()
	info, _ := os.ReadFile("/proc/cpuinfo")
	model, cores := "", 0
	for line := range strings.Lines(string(info)) {
		if rest, ok := strings.CutPrefix(line, "model name"); ok {
			model = strings.TrimSpace(strings.TrimLeft(rest, "\t :"))
			cores++
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%d × %s, %s, load %s at the end", cores, model, strings.TrimSpace(string(kernel)), strings.Join(strings.Fields(string(load))[:1], ""))
}

// chart returns the p50 of all targets as SVG: a group of bars for each cell.
func chart(results []result) string {
	const left, width, bar, gap, most = 300, 520, 11, 14, 5.0
	colours := map[string]string{"splice": "#9aa0a6", "haproxy": "#5b8def", "nginx": "#3aa76d", "mwitkow": "#c58af9", "siderolabs": "#e8a33d", "pullgated": "#d93025"}
	var b strings.Builder
	y, last := 40, ""
	for i := range results {
		r := &results[i]
		if r.target == direct {
			continue
		}
		if name := fmt.Sprintf("%s, %d", r.cell.name, r.cell.callers); name != last {
			y += gap
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left-70, y+bar, name)
			last = name
		}
		_, median, _ := r.ratios(p50)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" font-size=\"9\">%s</text><rect x=\"%d\" y=\"%d\" width=\"%.0f\" height=\"%d\" fill=\"%s\"/><text x=\"%.0f\" y=\"%d\" font-size=\"9\">%.2f</text>\n",
			left-6, y+bar-2, r.target, left, y, min(median, most)/most*width, bar-2, colours[r.target], left+4+min(median, most)/most*width, y+bar-2, median)
		y += bar
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\"><rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"+
		"<text x=\"10\" y=\"24\" font-size=\"14\">p50 of a call, by the direct connection (1.00)</text>\n%s</svg>\n", left+width+60, y+30, b.String())
}
