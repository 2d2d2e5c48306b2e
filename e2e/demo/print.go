package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

// width is how many columns a line of the output fills at most.
const width = 100

// style writes text in a style of the terminal, if there is one.
func style(code, text string) string {
	info, err := os.Stdout.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func bold(text string) string { return style("1", text) }
func red(text string) string  { return style("31", text) }

func chapter(title string) { fmt.Printf("\n%s\n", bold(title)) }

// printLabelled prints a labelled paragraph. Lines break at spaces.
func printLabelled(label, text string) { paragraph(label, strings.Fields(text)) }

// paragraph prints words as a labelled paragraph; a word may have spaces.
func paragraph(label string, words []string) {
	const indent = 14
	line := fmt.Sprintf("    %-*s", indent-4, label)
	for i, word := range words {
		if i > 0 && len(line)+1+len(word) > width {
			fmt.Println(line)
			line = strings.Repeat(" ", indent)
		} else if i > 0 {
			line += " "
		}
		line += word
	}
	fmt.Println(line)
}

// A want is the expected result of a step.
type want struct {
	state string
	seen  seen
}

// seen checks the registry's own log; text describes what the log should contain.
type seen struct {
	text string
	as   func([]node.Request) bool
}

var (
	nothing  = seen{"no request", func(r []node.Request) bool { return len(r) == 0 }}
	download = seen{"a download", func(r []node.Request) bool { return count(r, "GET", "/blobs/", "200") > 0 }}
	refusals = seen{"nothing but refusals", func(r []node.Request) bool {
		return len(r) > 0 && count(r, "", "", "401") == len(r)
	}}
	question = seen{"one question, answered, and no download", func(r []node.Request) bool {
		return count(r, "", "/manifests/", "200") == 1 && count(r, "", "/blobs/", "") == 0
	}}
)

// count counts the requests that fit; "" fits all.
func count(requests []node.Request, method, path, status string) int {
	n := 0
	for _, r := range requests {
		if strings.HasPrefix(r.Method, method) && strings.Contains(r.Path, path) && strings.HasPrefix(r.Status, status) {
			n++
		}
	}
	return n
}

// step runs a pod, prints the request and the outcome, and compares it with the expected one.
func (s *demo) step(ctx context.Context, title string, pod *node.Pod, w want) {
	secret := "no secret"
	if len(pod.Secrets) > 0 {
		secret = "a secret for " + pod.Secrets[0].Username
	}
	fmt.Printf("\n  %s\n", title)
	printLabelled("asked:", fmt.Sprintf("pod %s/%s, imagePullPolicy %s, %s", pod.Namespace, pod.Name, pod.Policy, secret))
	mark := s.node.Private.Mark()
	o := s.kubelet.Run(ctx, pod)
	s.node.Private.Mark() // waits for the registry to have written its log
	requests := s.node.Private.Requests(mark, s.app.Repository)
	paragraph("registry:", append([]string{"saw"}, list(requests)...))
	printLabelled("outcome:", o.String())
	if o.State == node.Running {
		if printed, err := s.kubelet.Output(ctx, pod, 1); err == nil {
			first, _, _ := strings.Cut(printed, "\n")
			printLabelled("", fmt.Sprintf("its container prints %q", first))
		}
	}
	ok := o.State == w.state && w.seen.as(requests)
	if !ok {
		printLabelled(red("wanted:"), fmt.Sprintf("%s, and %s at the registry", w.state, w.seen.text))
	}
	s.row(title, o.State, fmt.Sprint(len(requests)), ok)
	if err := s.kubelet.Remove(ctx, pod); err != nil {
		s.check("removing the pod", err.Error(), false)
	}
}

// check is a step that is not about a pod.
func (s *demo) check(title, outcome string, ok bool) {
	fmt.Printf("\n  %s\n", title)
	printLabelled("outcome:", outcome)
	if clipped := []rune(outcome); len(clipped) > 40 {
		outcome = string(clipped[:39]) + "…"
	}
	s.row(title, outcome, "", ok)
}

func (s *demo) row(title, outcome, requests string, ok bool) {
	verdict := "as expected"
	if !ok {
		verdict = red("UNEXPECTED")
		s.failed++
	}
	s.rows = append(s.rows, [4]string{title, outcome, requests, verdict})
}

// list names requests, equal ones in a row as one.
func list(requests []node.Request) []string {
	if len(requests) == 0 {
		return []string{"no request"}
	}
	var all []string
	for i := 0; i < len(requests); {
		n := i
		for n < len(requests) && requests[n] == requests[i] {
			n++
		}
		text := fmt.Sprintf("%s %s → %s", requests[i].Method, shorten(requests[i].Path), requests[i].Status)
		if n-i > 1 {
			text = fmt.Sprintf("%d times %s", n-i, text)
		}
		if i = n; i < len(requests) {
			text += ","
		}
		all = append(all, text)
	}
	return all
}

func shorten(path string) string {
	if i := strings.Index(path, "sha256:"); i >= 0 && len(path) > i+14 {
		return path[:i+14] + "…"
	}
	return path
}

func (s *demo) table(took time.Duration) {
	fmt.Printf("\n%s (%v)\n", bold("In short"), took.Round(time.Second))
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "  step\toutcome\tregistry requests\t")
	for _, r := range s.rows {
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", r[0], r[1], r[2], r[3])
	}
	_ = w.Flush()
}
