package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A cell is one kind of calls by so many callers at the same time.
type cell struct {
	name    string
	callers int
	method  string
	request proto.Message
	stream  bool
}

func cells() []cell {
	status := &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}}
	version, list, sandboxes := &runtimeapi.VersionRequest{}, &runtimeapi.ListContainersRequest{}, &runtimeapi.ListPodSandboxRequest{}
	return []cell{
		{"Version", 1, runtimeapi.RuntimeService_Version_FullMethodName, version, false},
		{"Version", 8, runtimeapi.RuntimeService_Version_FullMethodName, version, false},
		{"Version", 64, runtimeapi.RuntimeService_Version_FullMethodName, version, false},
		{"ImageStatus, not judged", 1, runtimeapi.ImageService_ImageStatus_FullMethodName, status, false},
		{"ImageStatus, not judged", 64, runtimeapi.ImageService_ImageStatus_FullMethodName, status, false},
		{"ImageStatus, pre-check that is allowed", 1, runtimeapi.ImageService_ImageStatus_FullMethodName, precheck(), false},
		{"ImageStatus, pre-check that is allowed", 64, runtimeapi.ImageService_ImageStatus_FullMethodName, precheck(), false},
		{"ListPodSandbox, 100", 1, runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, sandboxes, false},
		{"ListContainers, 300", 1, runtimeapi.RuntimeService_ListContainers_FullMethodName, list, false},
		{"ListContainers, 300", 64, runtimeapi.RuntimeService_ListContainers_FullMethodName, list, false},
		{fmt.Sprintf("stream of %d events", events), 1, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, &runtimeapi.GetEventsRequest{}, true},
	}
}

// precheck returns a pre-check for one of the pods of the fake runtime.
func precheck() *runtimeapi.ImageStatusRequest {
	return &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image, Annotations: map[string]string{
		seenAnnotation: "2026-11-22T08:00:00.000000001", sourceAnnotation: "api",
	}}}
}

// A sample is one target in one cell and one round.
type sample struct {
	p50, p99 time.Duration
	calls    int
	failed   int // of the calls; pullgated must have none
	took     time.Duration
	cpu      time.Duration
}

// A result is one target in one cell.
type result struct {
	cell    cell
	target  string
	samples []sample // by round
	direct  []sample
	peak    int
}

// measure measures all targets, in rounds.
func measure(ctx context.Context, targets []*target, o options) ([]result, error) {
	all := slices.DeleteFunc(cells(), func(c cell) bool { return !strings.Contains(c.name, o.calls) })
	samples := map[string][]sample{}
	peaks := map[string]int{}
	key := func(c cell, t *target) string { return fmt.Sprint(c.name, c.callers, t.name) }
	for round := range o.rounds {
		for i, c := range all {
			for n := range targets {
				t := targets[(n+round+i)%len(targets)]
				s, err := t.sample(ctx, c, o.duration)
				if err != nil {
					return nil, fmt.Errorf("%s through %s: %w", c.name, t.name, err)
				}
				samples[key(c, t)] = append(samples[key(c, t)], s)
				peaks[key(c, t)] = t.used().Peak >> 20
			}
		}
	}
	var results []result
	for _, c := range all {
		for _, t := range targets {
			results = append(results, result{c, t.name, samples[key(c, t)], samples[key(c, targets[0])], peaks[key(c, t)]})
		}
	}
	return results, nil
}

// sample calls for a while.
func (t *target) sample(ctx context.Context, c cell, duration time.Duration) (s sample, err error) {
	request, err := proto.Marshal(c.request)
	if err != nil {
		return s, err
	}
	if err := t.call(ctx, c, request); err != nil { // the connection is made
		return s, err
	}
	var mu sync.Mutex
	var times []time.Duration
	var callers sync.WaitGroup
	before, began := t.used().Processor, time.Now()
	for range c.callers {
		callers.Go(func() {
			var own []time.Duration
			failed := 0
			for len(own)+failed == 0 || time.Since(began) < duration {
				start := time.Now()
				if t.call(ctx, c, request) != nil {
					failed++
					continue
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			times, s.failed = append(times, own...), s.failed+failed
		})
	}
	callers.Wait()
	s.took, s.cpu, s.calls = time.Since(began), t.used().Processor-before, len(times)
	slices.Sort(times)
	if len(times) == 0 {
		return s, errors.New("every call fails")
	}
	if s.failed > 0 && (t.name == direct || t.name == "pullgated") {
		return s, fmt.Errorf("%d of %d calls fail", s.failed, s.calls+s.failed)
	}
	s.p50, s.p99 = times[len(times)/2], times[len(times)*99/100]
	return s, nil
}

func (t *target) call(ctx context.Context, c cell, request []byte) error {
	var answer []byte
	if !c.stream {
		err := t.conn.Invoke(ctx, c.method, &request, &answer)
		if err == nil && len(answer) == 0 {
			err = errors.New("empty answer")
		}
		return err
	}
	s, err := t.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.method)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(&request), s.CloseSend()); err != nil {
		return err
	}
	for n := 0; ; n++ {
		err := s.RecvMsg(&answer)
		if errors.Is(err, io.EOF) && n == events {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d events: %w", n, err)
		}
	}
}
