// Command chart draws the chart of the README from a real run: the same pods are started on a real containerd
// and a real registry, without pullgate and with it, and what became of them stands beside how long pullgate's own
// metrics say it took. The figures are those of the machine it runs on; the shape is not.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pullgate/pullgate/e2e/node"
)

// rounds is how many images there are; each is asked for by one pod of each tenant.
const rounds = 8

func main() {
	out := flag.String("o", "../docs/monitoring/recheck.svg", "where to write the chart")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *out); err != nil {
		fmt.Fprintf(os.Stderr, "chart: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, out string) (err error) {
	n, err := node.New(ctx, node.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	var images []string
	for i := range rounds {
		app, err := n.PushPrivate(ctx, fmt.Sprintf("team-a/app-%d:1", i), node.Image{Content: fmt.Sprintf("secret program %d of team A", i)})
		if err != nil {
			return err
		}
		images = append(images, app.Name)
	}
	var c chart
	if c.without, err = start(ctx, n.Containerd.Endpoint(), images); err != nil {
		return err
	}
	gate, err := n.Protect(ctx)
	if err != nil {
		return err
	}
	if c.with, err = start(ctx, gate.Endpoint(), images); err != nil {
		return err
	}
	for _, b := range []struct {
		label, metric, of string
	}{
		{"hit: proved before", "image_pull_secret_recheck_hit", ""},
		{"miss, verified", "image_pull_secret_recheck_miss", `outcome="verified"`},
		{"miss, denied", "image_pull_secret_recheck_miss", `outcome="denied"`},
	} {
		sum, err := gate.Metric(b.metric+"_sum", b.of)
		if err != nil {
			return err
		}
		count, err := gate.Metric(b.metric+"_count", b.of)
		if err != nil {
			return err
		}
		if count == 0 {
			return fmt.Errorf("%s{%s} counted nothing", b.metric, b.of)
		}
		c.times = append(c.times, bar{label: b.label, count: int(count), seconds: sum / count})
	}
	var svg bytes.Buffer
	c.draw(&svg)
	return os.WriteFile(out, svg.Bytes(), 0o644)
}

// start has team A bring each image, then starts a pod of every tenant on it and counts what becomes of them. It
// leaves the node without the images.
func start(ctx context.Context, endpoint string, images []string) (p pods, err error) {
	k, err := node.NewKubelet(ctx, endpoint)
	if err != nil {
		return p, err
	}
	defer k.Close()
	for _, image := range images {
		first := &node.Pod{Namespace: "team-a", Name: "first", Image: image, Secrets: []node.Login{node.Alice()}}
		if o := k.Run(ctx, first); o.State != node.Running {
			return p, fmt.Errorf("team A does not get its image: %v", o)
		}
		for _, pod := range []*node.Pod{
			{Namespace: "team-a", Policy: node.IfNotPresent, Secrets: []node.Login{node.Alice()}},
			{Namespace: "team-d", Policy: node.IfNotPresent, Secrets: []node.Login{node.Dora()}},
			{Namespace: "team-b", Policy: node.IfNotPresent},
			{Namespace: "team-c", Policy: node.Never},
		} {
			pod.Name, pod.Image = "app", image
			o := k.Run(ctx, pod)
			switch running := o.State == node.Running; {
			case running && len(pod.Secrets) > 0:
				p.entitled++
			case running:
				p.borrowed++
			case o.State == node.PullFailed || o.State == node.NeverPulled:
				p.refused++
			default:
				return p, fmt.Errorf("pod of %s on %s: %v", pod.Namespace, image, o)
			}
			if err := k.Remove(ctx, pod); err != nil {
				return p, err
			}
		}
		if err := errors.Join(k.Remove(ctx, first), k.RemoveImage(ctx, image)); err != nil {
			return p, err
		}
	}
	return p, nil
}
