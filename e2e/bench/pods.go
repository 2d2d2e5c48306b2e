package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
	"golang.org/x/sync/errgroup"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The calls of the start of a pod that are timed, and the whole: from RunPodSandbox to the answer of StartContainer.
const (
	precheckCall = "ImageStatus (pre-check, allowed)"
	pullCall     = "PullImage (hit)"
	createCall   = "CreateContainer"
	statusCall   = "ContainerStatus"
	whole        = "RunPodSandbox to StartContainer"
)

// removedAtOnce is how many pods are removed at a time: containerd cannot stop a whole crowd within two minutes.
const removedAtOnce = 8

// A way is how a client reaches containerd, with how long its calls took, by pod.
type way struct {
	name    string
	kubelet *node.Kubelet
	direct  bool

	took map[string][]time.Duration
}

func (w *way) note(call string, began time.Time) {
	w.took[call] = append(w.took[call], time.Since(began))
}

type timedRuntime struct {
	internalapi.RuntimeService
	way *way
}

func (t timedRuntime) CreateContainer(
	ctx context.Context, sandbox string, c *runtimeapi.ContainerConfig, s *runtimeapi.PodSandboxConfig,
) (string, error) {
	defer t.way.note(createCall, time.Now())
	return t.RuntimeService.CreateContainer(ctx, sandbox, c, s)
}

// measurePods starts pods on a real containerd: directly, through pullgated, and directly again, as a control.
func measurePods(ctx context.Context, _ string, o options) (text string, err error) {
	program := host.Must(release.Containerd(ctx, release.Containerd24))
	n := host.Must(node.New(ctx, node.Options{Containerd: program}))
	defer func() { err = errors.Join(err, n.Close()) }()
	defer host.Catch(&err)
	pullgated := host.Must(n.Protect(ctx, n.Containerd.Endpoint()))
	app := node.Image{Content: "app", Entrypoint: []string{"/bin/sleep", "3600"}}
	pushed := host.Must(n.Private.Push(ctx, "team-a/app:1", app))
	var ways []*way
	for i, name := range []string{"direct", "pullgated", "direct, again"} {
		endpoint := n.Containerd.Endpoint()
		if i == 1 {
			endpoint = pullgated.Endpoint()
		}
		w := &way{name: name, direct: i != 1, kubelet: host.Must(node.NewKubelet(ctx, endpoint))}
		defer w.kubelet.Close()
		w.kubelet.Runtime = timedRuntime{w.kubelet.Runtime, w}
		ways = append(ways, w)
	}
	inTurns := func(rounds int, f func(w *way, round int)) {
		for round := range rounds {
			for _, i := range rand.Perm(len(ways)) {
				f(ways[i], round)
			}
		}
	}
	pod := func(i int) *node.Pod {
		login := []node.Login{node.Alice()}
		return &node.Pod{Namespace: "team-a", Name: fmt.Sprintf("pod-%d", i), Image: pushed.Name, Secrets: login}
	}
	// Pod 0 pulls the image, the next ones are as all others will be.
	for i := range 3 {
		for _, at := range []int{1, 0, 2} {
			ways[at].took = map[string][]time.Duration{}
			ways[at].startOne(ctx, pod(i), i > 0)
			ways[at].took = map[string][]time.Duration{}
		}
	}
	inTurns(o.pods, func(w *way, i int) { w.startOne(ctx, pod(i), true) })
	var b strings.Builder
	fmt.Fprintf(&b, "On a real containerd (%s).\n", output(ctx, program, "--version"))
	b.WriteString(startTable(ways, o.pods))
	if !o.crowds {
		return b.String(), nil
	}
	for _, size := range []int{60, 150} {
		name := fmt.Sprintf("%d pods", size)
		inTurns(o.rounds, func(w *way, _ int) { w.startCrowd(ctx, name, size, pod) })
	}
	b.WriteString(crowdTable(ways, o.rounds))
	return b.String(), nil
}

// startOne starts a pod as a kubelet does, and removes it. Its second pre-check, as at a restart, is allowed and timed.
func (w *way) startOne(ctx context.Context, p *node.Pod, present bool) {
	must := func(ok bool, got any) {
		if !ok {
			host.Check(fmt.Errorf("%s: start of pod %s: %v", w.name, p.Name, got))
		}
	}
	began := time.Now()
	host.Check(w.kubelet.Sandbox(ctx, p))
	id := host.Must(w.kubelet.Precheck(ctx, p))
	must(!present || (id != "") == w.direct, "the first pre-check found image "+id)
	o := node.Outcome{State: node.Running, ImageID: id}
	if id == "" {
		pull := time.Now()
		o = w.kubelet.Pull(ctx, p)
		must(o.State == node.Running, o)
		w.note(pullCall, pull)
	}
	check := time.Now()
	id = host.Must(w.kubelet.Precheck(ctx, p))
	must(id == o.ImageID, "the second pre-check found image "+id)
	w.note(precheckCall, check)
	o = w.kubelet.Create(ctx, p, o)
	must(o.State == node.Running, o)
	w.note(whole, began)
	status := time.Now()
	host.Must(w.kubelet.Runtime.ContainerStatus(ctx, o.Container, false))
	w.note(statusCall, status)
	host.Check(w.kubelet.Remove(ctx, p))
}

func (w *way) startCrowd(ctx context.Context, name string, size int, pod func(i int) *node.Pod) {
	// The calls of a crowd are not among those of single pods.
	crowd := *w.kubelet
	if timed, ok := w.kubelet.Runtime.(timedRuntime); ok {
		crowd.Runtime = timed.RuntimeService
	}
	pods, outcomes := make([]*node.Pod, size), make([]node.Outcome, size)
	all := func(limit int, f func(i int)) {
		var running errgroup.Group
		running.SetLimit(limit)
		for i := range size {
			running.Go(func() error { f(i); return nil })
		}
		_ = running.Wait()
	}
	began := time.Now()
	all(size, func(i int) {
		pods[i] = pod(i)
		outcomes[i] = crowd.Run(ctx, pods[i])
	})
	w.note(name, began)
	errs := make([]error, size)
	all(removedAtOnce, func(i int) {
		if outcomes[i].State != node.Running {
			errs[i] = fmt.Errorf("pod %d: %v", i, outcomes[i])
		}
		errs[i] = errors.Join(errs[i], crowd.Remove(ctx, pods[i]))
	})
	host.Check(errs...)
}

func startTable(ways []*way, pods int) string {
	direct, through, again := ways[0].took, ways[1].took, ways[2].took
	var b strings.Builder
	fmt.Fprintf(&b, "%d pods in turns: directly, through pullgated, and directly again. Medians; the difference is the\n"+
		"median of the differences of each pod, and the control is that of the two direct ones. "+
		"A kubelet without pullgate sends\n"+
		"no `PullImage` for an image that is present.\n\n", pods)
	b.WriteString("| call | direct | through pullgated | difference | control |\n| --- | --- | --- | --- | --- |\n")
	var sum, control time.Duration
	same := func(d time.Duration) time.Duration { return d }
	for _, call := range []string{precheckCall, pullCall, createCall, statusCall, whole} {
		more, other := difference(through[call], direct[call]), difference(again[call], direct[call])
		if call == whole {
			fmt.Fprintf(&b, "| **the four together** | | | **%+.2f ms** | %+.2f ms |\n", ms(sum), ms(control))
		}
		sum, control = sum+more, control+other
		var without time.Duration
		if call != pullCall {
			without = median(direct[call], same)
		}
		fmt.Fprintf(&b, "| %s | %.2f ms | %.2f ms | %+.2f ms | %+.2f ms |\n",
			call, ms(without), ms(median(through[call], same)), ms(more), ms(other))
	}
	return b.String()
}

// difference returns the median of the differences of two series; the second may be empty.
func difference(all, by []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	var differences []time.Duration
	for i, d := range all {
		if len(by) > 0 {
			d -= by[i]
		}
		differences = append(differences, d)
	}
	return median(differences, func(d time.Duration) time.Duration { return d })
}

func crowdTable(ways []*way, rounds int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nPods at once, until the last one runs: "+
		"median, shortest and longest of %d rounds, and the median of the\n"+
		"ratios to direct in the same round.\n\n", rounds)
	b.WriteString("| pods | direct | through pullgated | × direct | control, × direct |\n" +
		"| --- | --- | --- | --- | --- |\n")
	same := func(d time.Duration) time.Duration { return d }
	for _, name := range []string{"60 pods", "150 pods"} {
		ratio := func(w *way) float64 {
			var all []float64
			for i, d := range w.took[name] {
				all = append(all, float64(d)/float64(ways[0].took[name][i]))
			}
			return median(all, func(r float64) float64 { return r })
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.3f | %.3f |\n", name, spread(sorted(ways[0].took[name], same)),
			spread(sorted(ways[1].took[name], same)), ratio(ways[1]), ratio(ways[2]))
	}
	return b.String()
}
