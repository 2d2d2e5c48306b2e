package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startLimit bounds the time of one start, of a target as well.
const startLimit = time.Minute

// storeSizes are the stores that pullgated is started with: ×1, ×10, ×50 and ×100.
func storeSizes() []storeSize {
	return []storeSize{{0, 0}, {1000, 20}, {10_000, 20}, {10_000, 100}, {100_000, 20}}
}

// A startSample is one start.
type startSample struct {
	answered time.Duration // from exec to the first answered call
	judged   time.Duration // from exec to the first allowed pre-check, after pullgated has synced with the runtime
	peak     int           // resident, in MB
	private  int           // resident and not of a file, in MB, after the pre-check
}

// A startResult are the starts with one store.
type startResult struct {
	size    storeSize
	file    float64 // in MB
	samples []startSample
}

// measureStarts starts pullgated with each of the stores, in rounds.
func measureStarts(ctx context.Context, dir string, o options) (results []startResult, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for i, size := range storeSizes() {
		if size.images > o.images {
			continue
		}
		r := startResult{size: size}
		n, err := newStartNode(ctx, filepath.Join(dir, fmt.Sprintf("start-%d", i)), self, size)
		if err != nil {
			return nil, err
		}
		// One store after the other, because large ones together would not stay in the page cache of a small machine. The
		// first start writes to the store; it is not counted.
		for round := range o.rounds + 1 {
			s, err := n.start(ctx, o.pullgated)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("start with a store of %v: %w", size, err), n.close())
			}
			if round > 0 {
				r.samples = append(r.samples, s)
			}
		}
		r.file, err = megabytes(n.store())
		if err := errors.Join(err, n.close()); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// A startNode is a fake runtime and the state directory of pullgated.
type startNode struct {
	dir     string
	runtime *exec.Cmd
}

func newStartNode(ctx context.Context, dir, self string, size storeSize) (*startNode, error) {
	n := &startNode{dir: dir}
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		return nil, err
	}
	if size.images > 0 {
		if err := writeStore(n.store(), size); err != nil {
			return nil, err
		}
	}
	config := "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\nlisten: unix://" + n.path("pullgated.sock") + "\nruntimeEndpoint: unix://" + n.path("runtime.sock") +
		"\nstateDir: " + n.path("state") + "\nmetrics: {listen: \"\"}\nadmin: {listen: \"\"}\n"
	if err := os.WriteFile(n.path("config.yaml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	n.runtime = exec.CommandContext(ctx, self, "serve", "runtime", n.path("runtime.sock"), strconv.Itoa(size.images))
	n.runtime.Stderr = os.Stderr
	if err := n.runtime.Start(); err != nil {
		return nil, err
	}
	return n, await(ctx, n.path("runtime.sock"))
}

func (n *startNode) path(name string) string { return filepath.Join(n.dir, name) }

func (n *startNode) store() string { return filepath.Join(n.dir, "state", "records.db") }

func (n *startNode) close() error {
	_ = n.runtime.Process.Signal(syscall.SIGTERM)
	_ = n.runtime.Wait() // ended by the signal
	return os.RemoveAll(n.dir)
}

// start starts pullgated, calls it until it has answered, and stops it.
func (n *startNode) start(ctx context.Context, program string) (s startSample, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	p := exec.CommandContext(ctx, program, "--config", n.path("config.yaml"))
	conn, err := dial(n.path("pullgated.sock"))
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := p.Start(); err != nil {
		return s, err
	}
	t := &target{name: "pullgated", process: p, conn: conn}
	defer func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, p.Wait(), conn.Close())
	}()
	if err := await(ctx, n.path("pullgated.sock")); err != nil {
		return s, err
	}
	if err := t.once(ctx, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{}); err != nil {
		return s, err
	}
	s.answered = time.Since(began)
	if err := t.once(ctx, runtimeapi.ImageService_ImageStatus_FullMethodName, precheck()); err != nil {
		return s, err
	}
	s.judged = time.Since(began)
	used := t.used()
	s.peak, s.private = used.Peak>>20, used.Anonymous>>20
	return s, nil
}

// once makes a call that must return more than an empty answer: a hidden image is one.
func (t *target) once(ctx context.Context, method string, m proto.Message) error {
	request, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	var answer []byte
	if err := t.conn.Invoke(ctx, method, &request, &answer, grpc.WaitForReady(true)); err != nil {
		return err
	}
	if len(answer) == 0 {
		return fmt.Errorf("%s: empty answer", method)
	}
	return nil
}

// starts returns the results as a section of docs/performance/performance.md.
func starts(ctx context.Context, results []startResult, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "From exec of pullgated to its answers, in front of a fake runtime, with the file in the page cache: median, shortest and longest of %d starts, on %s. "+
		"The first judged answer waits for the sync with the runtime. Peak RSS includes pages of the file, which the kernel can drop.\n\n", o.rounds, machine(ctx))
	b.WriteString("| images × credentials | file | first answer | first judged answer | peak RSS | without the file |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %v | %.1f MB | %s | %s | %d MB | %d MB |\n", r.size, r.file,
			spread(r.samples, func(s startSample) time.Duration { return s.answered }), spread(r.samples, func(s startSample) time.Duration { return s.judged }),
			middle(r.samples, func(s startSample) int { return s.peak }), middle(r.samples, func(s startSample) int { return s.private }))
	}
	return b.String()
}

// spread returns the median of a time, and the lowest and the highest.
func spread[T any](samples []T, of func(T) time.Duration) string {
	all := sorted(samples, of)
	ms := func(d time.Duration) string { return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 1, 64) }
	return fmt.Sprintf("%s ms [%s–%s]", ms(all[len(all)/2]), ms(all[0]), ms(all[len(all)-1]))
}

func middle[T any, V cmp.Ordered](samples []T, of func(T) V) V {
	return sorted(samples, of)[len(samples)/2]
}

func sorted[T any, V cmp.Ordered](samples []T, of func(T) V) []V {
	var all []V
	for _, s := range samples {
		all = append(all, of(s))
	}
	slices.Sort(all)
	return all
}
