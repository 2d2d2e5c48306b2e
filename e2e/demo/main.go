// Command demo shows on a real containerd, a real registry and real containers what pullgate is for:
// first what goes wrong without it, then the same with it. It ends with a table, and with exit code 1
// if a step did not come out as told.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

// A story is the demo as it goes on.
type story struct {
	node    *node.Node
	gate    *node.Pullgated
	app     node.Pushed
	rows    [][3]string
	failed  int
	kubelet *node.Kubelet
}

func run(ctx context.Context) (err error) {
	if err := node.Check(); err != nil {
		return err
	}
	began := time.Now()
	fmt.Println("Starting a containerd and two registries of our own; nothing of this machine's is touched …")
	n, err := node.New(ctx, "")
	if err != nil {
		return err
	}
	defer func() {
		fmt.Println("\nCleaning up …")
		err = errors.Join(err, n.Close())
	}()
	s := &story{node: n}
	if s.app, err = n.PushPrivate(ctx, "team-a/app:1", node.Image{Content: "the secret program of team A"}); err != nil {
		return err
	}
	for _, chapter := range []func(context.Context) error{s.unprotected, s.protected, s.outage, s.crash, s.shadow} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	s.table(time.Since(began))
	if s.failed > 0 {
		return fmt.Errorf("%d steps did not come out as told", s.failed)
	}
	return nil
}

func chapter(title string) {
	fmt.Printf("\n\033[1m%s\033[0m\n", title)
}

// A want is what a step has to come to.
type want struct {
	state    string
	requests int // to the registry for the image's repository; -1 if they do not matter
}

const whatever = -1

// step runs a pod, says what was asked and what came of it, and compares it with what is wanted.
func (s *story) step(ctx context.Context, title string, pod *node.Pod, w want) {
	mark := s.node.Private.Mark()
	o := s.kubelet.Run(ctx, pod)
	s.node.Private.Mark() // waits for the registry to have written its log
	seen := s.node.Private.Requests(mark, s.app.Repository)
	s.tell(title, pod, o, seen, w)
	if err := s.kubelet.Remove(ctx, pod); err != nil {
		fmt.Println("    removing the pod:", err)
		s.failed++
	}
}

func (s *story) tell(title string, pod *node.Pod, o node.Outcome, seen []node.Request, w want) {
	secret := "no secret"
	if len(pod.Secrets) > 0 {
		secret = "a secret for " + pod.Secrets[0].Username
	}
	fmt.Printf("\n  %s\n    asked:    pod %s/%s, imagePullPolicy %s, %s\n", title, pod.Namespace, pod.Name, pod.Policy, secret)
	fmt.Printf("    registry: %s\n", requests(seen))
	fmt.Printf("    outcome:  %s\n", clip(o.String()))
	ok := o.State == w.state && (w.requests == whatever || len(seen) == w.requests)
	s.row(title, o.State, ok)
	if !ok {
		fmt.Printf("    \033[31mwanted:   %s, %d registry requests\033[0m\n", w.state, w.requests)
	}
}

func (s *story) row(title, outcome string, ok bool) {
	verdict := "as told"
	if !ok {
		verdict = "NOT AS TOLD"
		s.failed++
	}
	s.rows = append(s.rows, [3]string{title, outcome, verdict})
}

// check is a step that is not about a pod.
func (s *story) check(title, outcome string, ok bool) {
	fmt.Printf("\n  %s\n    outcome:  %s\n", title, clip(outcome))
	s.row(title, clip(outcome), ok)
}

func requests(seen []node.Request) string {
	if len(seen) == 0 {
		return "saw no request"
	}
	var all []string
	for _, r := range seen {
		all = append(all, fmt.Sprintf("%s %s → %s", r.Method, shorten(r.Path), r.Status))
	}
	return "saw " + strings.Join(all, ", ")
}

func shorten(path string) string {
	if i := strings.Index(path, "sha256:"); i >= 0 && len(path) > i+14 {
		return path[:i+14] + "…"
	}
	return path
}

func clip(text string) string {
	text = strings.ReplaceAll(text, "\n", " ")
	if len(text) > 180 {
		return text[:180] + "…"
	}
	return text
}

func (s *story) pod(namespace, name, policy string, secrets ...node.Login) *node.Pod {
	return &node.Pod{Namespace: namespace, Name: name, Image: s.app.Name, Policy: policy, Secrets: secrets}
}

// dial points the kubelet's client at an endpoint.
func (s *story) dial(ctx context.Context, endpoint string) (err error) {
	if s.kubelet != nil {
		s.kubelet.Close()
	}
	s.kubelet, err = node.NewKubelet(ctx, endpoint)
	return err
}

func (s *story) unprotected(ctx context.Context) error {
	chapter("1. Without pullgate: the kubelet talks to containerd")
	if err := s.dial(ctx, s.node.Containerd.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "control: A pulls with its secret", s.pod("team-a", "owner", node.IfNotPresent, node.Alice()), want{node.Running, whatever})
	s.step(ctx, "control: B without a secret, IfNotPresent", s.pod("team-b", "thief", node.IfNotPresent), want{node.Running, 0})
	s.step(ctx, "control: B without a secret, Never", s.pod("team-b", "thief", node.Never), want{node.Running, 0})
	fmt.Println("\n  B runs the program of A, and the registry was never asked.")
	return s.removeApp(ctx)
}

// removeApp takes the image off the node, so that the next chapter begins without it.
func (s *story) removeApp(ctx context.Context) error {
	p := s.pod("", "", "")
	return s.kubelet.RemoveImage(ctx, p.Image)
}

func (s *story) protected(ctx context.Context) (err error) {
	chapter("2. With pullgate between them")
	if s.gate, err = s.node.Protect(ctx); err != nil {
		return err
	}
	if err := s.dial(ctx, s.gate.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "A pulls with its secret", s.pod("team-a", "owner", node.IfNotPresent, node.Alice()), want{node.Running, whatever})
	s.step(ctx, "B without a secret, IfNotPresent", s.pod("team-b", "thief", node.IfNotPresent), want{node.PullFailed, whatever})
	s.step(ctx, "B without a secret, Never", s.pod("team-b", "thief", node.Never), want{node.NeverPulled, 0})
	s.step(ctx, "C, the same credential in another secret", s.pod("team-c", "partner", node.IfNotPresent, node.Alice()), want{node.Running, 0})
	s.step(ctx, "B with a wrong credential", s.pod("team-b", "thief", node.IfNotPresent, node.Mallory()), want{node.PullFailed, whatever})
	return nil
}

func (s *story) outage(ctx context.Context) error {
	chapter("3. The registry is stopped")
	if err := s.node.Private.Down(); err != nil {
		return err
	}
	s.step(ctx, "outage: A starts", s.pod("team-a", "owner", node.IfNotPresent, node.Alice()), want{node.Running, 0})
	s.step(ctx, "outage: C starts", s.pod("team-c", "partner", node.IfNotPresent, node.Alice()), want{node.Running, 0})
	s.step(ctx, "outage: B does not", s.pod("team-b", "thief", node.IfNotPresent, node.Mallory()), want{node.PullFailed, 0})
	return s.node.Private.Up()
}

func (s *story) crash(ctx context.Context) error {
	chapter("4. pullgated is killed in the middle of a pull")
	app2, err := s.node.PushPrivate(ctx, "team-a/app:2", node.Image{Content: "the next program of team A"})
	if err != nil {
		return err
	}
	asked, release := s.node.Private.HoldBlobs()
	defer release()
	owner := &node.Pod{Namespace: "team-a", Name: "owner", Image: app2.Name, Secrets: []node.Login{node.Alice()}}
	if err := s.kubelet.Sandbox(ctx, owner); err != nil {
		return err
	}
	pulled := make(chan node.Outcome, 1)
	go func() { pulled <- s.kubelet.Start(ctx, owner) }()
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case <-asked:
	case <-limit.Done():
		return errors.New("no blob was asked for within a minute")
	}
	if err := s.gate.Kill(); err != nil {
		return err
	}
	o := <-pulled
	s.check("SIGKILL while the registry holds a blob back", "the kubelet sees "+o.String(), o.State != node.Running)
	release()
	if err := s.gate.Start(ctx); err != nil {
		return err
	}
	if err := s.dial(ctx, s.gate.Endpoint()); err != nil {
		return err
	}
	s.app = app2
	// The image may be there by now or not; B must not get it either way, and A must.
	s.step(ctx, "restarted: B still needs proof, Never", s.pod("team-b", "thief", node.Never), want{node.NeverPulled, 0})
	s.step(ctx, "restarted: B still needs proof, IfNotPresent", s.pod("team-b", "thief", node.IfNotPresent), want{node.PullFailed, whatever})
	s.step(ctx, "restarted: A proves it and runs", s.pod("team-a", "owner", node.IfNotPresent, node.Alice()), want{node.Running, whatever})
	return s.kubelet.Remove(ctx, owner)
}

func (s *story) shadow(ctx context.Context) error {
	chapter("5. noPullImageSecretRecheck: true, the shadow mode")
	if err := s.gate.Restart(ctx, "noPullImageSecretRecheck: true"); err != nil {
		return err
	}
	if err := s.dial(ctx, s.gate.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "shadow: B runs, as without pullgate", s.pod("team-b", "thief", node.IfNotPresent), want{node.Running, 0})
	missed, err := s.gate.Metric("image_pull_secret_recheck_miss_count", `outcome="unverified"`)
	if err != nil {
		return err
	}
	s.check("shadow: and it is counted", fmt.Sprintf("image_pull_secret_recheck_miss{outcome=\"unverified\"} = %v", missed), missed == 1)
	hidden, err := s.gate.Metric("pullgate_prechecks_hidden_total")
	if err != nil {
		return err
	}
	s.check("shadow: nothing was hidden", fmt.Sprintf("pullgate_prechecks_hidden_total = %v", hidden), hidden == 0)
	return nil
}

func (s *story) table(took time.Duration) {
	fmt.Printf("\n\033[1mIn short\033[0m (%v)\n", took.Round(time.Second))
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	for _, r := range s.rows {
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\n", r[0], r[1], r[2])
	}
	_ = w.Flush()
}
