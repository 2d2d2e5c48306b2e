package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type cell struct {
	name    string
	callers int
	method  string
	request proto.Message
}

func cells() []cell {
	const version = runtimeapi.RuntimeService_Version_FullMethodName
	const status = runtimeapi.ImageService_ImageStatus_FullMethodName
	const sandboxes = runtimeapi.RuntimeService_ListPodSandbox_FullMethodName
	const containers = runtimeapi.RuntimeService_ListContainers_FullMethodName
	other := &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}}
	return []cell{
		{"Version", 1, version, &runtimeapi.VersionRequest{}},
		{"Version", 8, version, &runtimeapi.VersionRequest{}},
		{"Version", 64, version, &runtimeapi.VersionRequest{}},
		{"ImageStatus, not judged", 1, status, other},
		{"ImageStatus, not judged", 64, status, other},
		{"ImageStatus, pre-check that is allowed", 1, status, precheck()},
		{"ImageStatus, pre-check that is allowed", 64, status, precheck()},
		{"ListPodSandbox, 100", 1, sandboxes, &runtimeapi.ListPodSandboxRequest{}},
		{"ListContainers, 300", 1, containers, &runtimeapi.ListContainersRequest{}},
		{"ListContainers, 300", 64, containers, &runtimeapi.ListContainersRequest{}},
		{
			fmt.Sprintf("stream of %d events", events), 1, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName,
			&runtimeapi.GetEventsRequest{},
		},
	}
}

type target struct {
	conn *grpc.ClientConn
	used func() host.Usage
}

type sample struct {
	p50   time.Duration
	calls int
	cpu   time.Duration
}

func measureCalls(ctx context.Context, dir string, o options) (text string, err error) {
	socket := func(name string) string { return filepath.Join(dir, name+".sock") }
	for name, to := range map[string]string{"runtime": "0", "splice": socket("runtime")} {
		defer self(ctx, name, socket(name), to)()
	}
	process, stop := launch(ctx, o.pullgated, "--config", config(dir, socket("pullgated"), socket("runtime")))
	defer func() { err = errors.Join(err, stop()) }()
	defer host.Catch(&err)
	var targets []*target
	for _, name := range []string{"runtime", "splice", "pullgated"} {
		conn := host.Must(dial(socket(name)))
		defer func() { _ = conn.Close() }()
		host.Check(await(ctx, socket(name)))
		targets = append(targets, &target{conn, func() host.Usage { return host.Usage{} }})
	}
	pullgated := targets[2]
	pullgated.used = func() host.Usage {
		u, _ := host.UsageOf(process.Process.Pid)
		return u
	}
	results := make([][3][]sample, len(cells()))
	for round := range o.rounds {
		for i, c := range cells() {
			for n := range targets {
				t := (n + round + i) % len(targets)
				s := host.Must(targets[t].sample(ctx, c, o.duration))
				results[i][t] = append(results[i][t], s)
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds of %v for each call and target; client, target and a fake runtime share the machine.\n"+
		"The table has the median p50 of the direct connection, and for the others the median ratio to it in the same\n"+
		"round, for pullgated with the lowest and the highest. `splice` copies bytes between two sockets without reading\n"+
		"gRPC: no proxy that reads calls can be faster.\n\n", o.rounds, o.duration)
	b.WriteString("| calls | callers | direct | splice | pullgated | CPU of pullgated, a call |\n" +
		"| --- | --- | --- | --- | --- | --- |\n")
	for i, c := range cells() {
		direct := results[i][0]
		splice, through := ratios(results[i][1], direct), ratios(results[i][2], direct)
		cpu := median(results[i][2], func(s sample) time.Duration { return s.cpu / time.Duration(s.calls) })
		fmt.Fprintf(&b, "| %s | %d | %.2f ms | %.2f | %.2f [%.2f–%.2f] | %.3f ms |\n",
			c.name, c.callers, ms(median(direct, p50)),
			splice[len(splice)/2], through[len(through)/2], through[0], through[len(through)-1], ms(cpu))
	}
	fmt.Fprintf(&b, "\npullgated had at most %d MB of memory (RSS). Its version:\n%s\n", pullgated.used().Peak>>20,
		output(ctx, o.pullgated, "--version"))
	return b.String(), nil
}

func p50(s sample) time.Duration { return s.p50 }

// ratios returns the p50 by that of the direct connection in the same round, in order.
func ratios(samples, direct []sample) (all []float64) {
	for i, s := range samples {
		all = append(all, float64(s.p50)/float64(max(1, direct[i].p50)))
	}
	slices.Sort(all)
	return all
}

func (t *target) sample(ctx context.Context, c cell, duration time.Duration) (s sample, err error) {
	defer host.Catch(&err)
	request := host.Must(proto.Marshal(c.request))
	host.Check(t.call(ctx, c.method, request)) // the connection is made
	var mu sync.Mutex
	var times []time.Duration
	var callers sync.WaitGroup
	before, began := t.used().Processor, time.Now()
	for range c.callers {
		callers.Go(func() {
			var own []time.Duration
			var failed error
			for failed == nil && (len(own) == 0 || time.Since(began) < duration) {
				start := time.Now()
				failed = t.call(ctx, c.method, request)
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			times, err = append(times, own...), errors.Join(err, failed)
		})
	}
	callers.Wait()
	slices.Sort(times)
	return sample{times[len(times)/2], len(times), t.used().Processor - before}, err
}

// call makes a call that must return more than an empty answer: a hidden image is one.
func (t *target) call(ctx context.Context, method string, request []byte) (err error) {
	defer host.Catch(&err)
	s := host.Must(t.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.WaitForReady(true)))
	host.Check(s.SendMsg(&request), s.CloseSend())
	for n := 0; ; n++ {
		var answer []byte
		err := s.RecvMsg(&answer)
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err == nil && len(answer) == 0 {
			err = errors.New("empty answer")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
	}
}
