package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

func chapter(title string) { fmt.Printf("\n%s\n", title) }

// seen checks the requests that the registry has answered; text describes what they should be.
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
func (s *demo) step(title string, pod *node.Pod, want string, sees seen) {
	secret := "no secret"
	if len(pod.Secrets) > 0 {
		secret = "a secret for " + pod.Secrets[0].Username
	}
	fmt.Printf("\n  %s\n    asked:     pod %s/%s, imagePullPolicy %s, %s\n",
		title, pod.Namespace, pod.Name, pod.Policy, secret)
	mark := s.node.Private.Mark()
	o := s.kubelet.Run(s.ctx, pod)
	requests := s.node.Private.Requests(mark, s.app.Repository)
	for _, r := range requests {
		fmt.Printf("    registry:  saw %s %s → %s\n", r.Method, r.Path, r.Status)
	}
	fmt.Printf("    outcome:   %s\n", o)
	if o.State == node.Running {
		if printed, err := s.kubelet.Output(s.ctx, pod, 1); err == nil {
			first, _, _ := strings.Cut(printed, "\n")
			fmt.Printf("               its container prints %q\n", first)
		}
	}
	ok := o.State == want && sees.as(requests)
	if !ok {
		fmt.Printf("    wanted:    %s, and %s at the registry\n", want, sees.text)
	}
	s.row(title, o.State, fmt.Sprint(len(requests)), ok)
	if err := s.kubelet.Remove(s.ctx, pod); err != nil {
		s.check("removing the pod", err.Error(), false)
	}
}

func (s *demo) check(title, outcome string, ok bool) {
	fmt.Printf("\n  %s\n    outcome:   %s\n", title, outcome)
	if clipped := []rune(outcome); len(clipped) > 40 {
		outcome = string(clipped[:39]) + "…"
	}
	s.row(title, outcome, "", ok)
}

func (s *demo) row(title, outcome, requests string, ok bool) {
	verdict := "as expected"
	if !ok {
		verdict = "UNEXPECTED"
		s.failed++
	}
	s.rows = append(s.rows, [4]string{title, outcome, requests, verdict})
}

func (s *demo) table(took time.Duration) {
	fmt.Printf("\nIn short (%v)\n", took.Round(time.Second))
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "  step\toutcome\tregistry requests\t")
	for _, r := range s.rows {
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", r[0], r[1], r[2], r[3])
	}
	_ = w.Flush()
}
