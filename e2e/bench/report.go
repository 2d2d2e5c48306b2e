package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
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

// rate returns the median of the calls a second of the rounds.
func (r *result) rate() float64 {
	return middle(r.samples, func(s sample) float64 { return float64(s.calls) / s.took.Seconds() })
}

// median returns the median p50 of the rounds.
func (r *result) median() time.Duration { return middle(r.samples, p50) }

func (r *result) failed() (calls int) {
	for _, s := range r.samples {
		calls += s.failed
	}
	return calls
}

// table returns the p50 of the results as Markdown: a row for each cell, a column for each target.
func table(results []result) string {
	var head, rule, rows strings.Builder
	head.WriteString("| calls | callers |")
	rule.WriteString("| --- | --- |")
	for i := range results {
		r := &results[i]
		if r.cell.name == results[0].cell.name && r.cell.callers == results[0].cell.callers {
			head.WriteString(" " + r.target + " |")
			rule.WriteString(" --- |")
		}
		low, median, high := r.ratios(p50)
		switch r.target {
		case direct:
			if i > 0 {
				rows.WriteString("\n")
			}
			fmt.Fprintf(&rows, "| %s | %d | %.2f ms", r.cell.name, r.cell.callers, float64(r.median().Microseconds())/1000)
		case "pullgated":
			fmt.Fprintf(&rows, " %.2f [%.2f–%.2f]", median, low, high)
		default:
			fmt.Fprintf(&rows, " %.2f", median)
		}
		if n := r.failed(); n > 0 {
			fmt.Fprintf(&rows, " (%d calls failed)", n)
		}
		rows.WriteString(" |")
	}
	return head.String() + "\n" + rule.String() + "\n" + rows.String() + "\n"
}

// full returns all figures of the results as CSV: times in milliseconds, ratios to the direct connection, processor
// time in microseconds for each call, memory in MB. The direct connection has no processor time and no memory.
func full(results []result) string {
	var b strings.Builder
	b.WriteString("calls,callers,through,p50_ms,p50_ratio,p50_ratio_low,p50_ratio_high,p99_ratio,calls_per_second,cpu_us,peak_rss_mb,failed_calls\n")
	for i := range results {
		r := &results[i]
		low, median, high := r.ratios(p50)
		_, tail, _ := r.ratios(p99)
		cpu, peak := fmt.Sprintf("%.1f", r.cpuPerCall()), strconv.Itoa(r.peak)
		if r.target == direct {
			cpu, peak = "", ""
		}
		fmt.Fprintf(&b, "%q,%d,%s,%.3f,%.2f,%.2f,%.2f,%.2f,%.0f,%s,%s,%d\n", r.cell.name, r.cell.callers, r.target,
			float64(r.median().Microseconds())/1000, median, low, high, tail, r.rate(), cpu, peak, r.failed())
	}
	return b.String()
}

// calls returns the results as a section of docs/performance/performance.md.
func calls(ctx context.Context, results []result, o options, targets []*target) string {
	var b strings.Builder
	b.WriteString("![p50 by the direct connection](images/performance.svg)\n\n")
	fmt.Fprintf(&b, "%d rounds of %v for each target and call, interleaved; client, target and a fake runtime share the machine. The table has the median p50 of the direct connection, and "+
		"for the others the median ratio to it in the same round, for pullgated with the lowest and the highest. [performance.csv](performance.csv) has p99, calls a second, CPU and memory too.\n\n", o.rounds, o.duration)
	b.WriteString("`splice` copies bytes between two sockets without reading gRPC: no proxy that reads calls can be faster. " +
		"`mwitkow` and `siderolabs` are the two grpc-proxy libraries. Only pullgated judges the pre-checks.\n\n")
	b.WriteString(table(results))
	fmt.Fprintf(&b, "\nMachine: %s. Versions: ", machine(ctx))
	var versions []string
	for _, t := range targets {
		if t.version != "" {
			versions = append(versions, t.version)
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if strings.HasSuffix(d.Path, "/grpc-proxy") || d.Path == "google.golang.org/grpc" {
				versions = append(versions, d.Path+" "+d.Version)
			}
		}
	}
	b.WriteString(strings.Join(versions, "; ") + ".\n")
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
	colours := map[string]string{"splice": "#9aa0a6", "mwitkow": "#c58af9", "siderolabs": "#e8a33d", "pullgated": "#d93025"}
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
