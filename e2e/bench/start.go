package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const startLimit = time.Minute

// storeSizes are the stores that pullgated is started with. A node has some hundreds of images.
func storeSizes() []storeSize {
	return []storeSize{{0, 0}, {500, 20}, {10_000, 20}}
}

type startSample struct {
	answered time.Duration // from exec to the first answered call
	judged   time.Duration // from exec to the first allowed pre-check, after pullgated has synced with the runtime
	used     host.Usage    // after the pre-check
}

func measureStarts(ctx context.Context, dir string, o options) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "From exec of pullgated to its answers, in front of a fake runtime, "+
		"with the file in the page cache:\n"+
		"median, shortest and longest of %d starts. The first judged answer waits for the sync with the runtime. Peak RSS\n"+
		"includes pages of the file, which the kernel can drop.\n\n", o.rounds)
	b.WriteString("| images × credentials | file | first answer | first judged answer | peak RSS | without the file |\n" +
		"| --- | --- | --- | --- | --- | --- |\n")
	// One store after the other, because large ones together would not stay in the page cache of a small machine.
	for i, size := range storeSizes() {
		if size.images > o.images {
			continue
		}
		file, samples := startsWith(ctx, filepath.Join(dir, fmt.Sprintf("start-%d", i)), size, o)
		fmt.Fprintf(&b, "| %v | %.1f MB | %s | %s | %d MB | %d MB |\n", size, float64(file)/1e6,
			spread(sorted(samples, func(s startSample) time.Duration { return s.answered })),
			spread(sorted(samples, func(s startSample) time.Duration { return s.judged })),
			median(samples, func(s startSample) int { return s.used.Peak >> 20 }),
			median(samples, func(s startSample) int { return s.used.Anonymous >> 20 }))
	}
	return b.String(), nil
}

// startsWith starts pullgated with a store, and returns the size of its file too.
func startsWith(ctx context.Context, dir string, size storeSize, o options) (file int64, samples []startSample) {
	store, socket := filepath.Join(dir, "state", "records.db"), filepath.Join(dir, "pullgated.sock")
	host.Check(os.MkdirAll(filepath.Dir(store), 0o700))
	defer func() { _ = os.RemoveAll(dir) }()
	if size.images > 0 {
		host.Check(writeStore(store, size))
	}
	runtime := filepath.Join(dir, "runtime.sock")
	path := config(dir, socket, runtime)
	defer self(ctx, "runtime", runtime, strconv.Itoa(size.images))()
	host.Check(await(ctx, runtime))
	for range o.rounds + 1 {
		samples = append(samples, host.Must(start(ctx, o.pullgated, path, socket)))
	}
	return host.Must(os.Stat(store)).Size(), samples[1:] // the first start writes to the store
}

func start(ctx context.Context, program, path, socket string) (s startSample, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	status, conn := host.Must(proto.Marshal(precheck())), host.Must(dial(socket))
	t := &target{conn: conn}
	began := time.Now()
	p, stop := launch(ctx, program, "--config", path)
	defer func() { err = errors.Join(err, stop(), conn.Close()) }()
	defer host.Catch(&err)
	host.Check(await(ctx, socket))
	host.Check(t.call(ctx, runtimeapi.RuntimeService_Version_FullMethodName, nil))
	s.answered = time.Since(began)
	host.Check(t.call(ctx, runtimeapi.ImageService_ImageStatus_FullMethodName, status))
	s.judged = time.Since(began)
	s.used, err = host.UsageOf(p.Process.Pid)
	return s, err
}

// spread returns the median of times that are in order, and the lowest and the highest.
func spread(all []time.Duration) string {
	return fmt.Sprintf("%.1f ms [%.1f–%.1f]", ms(all[len(all)/2]), ms(all[0]), ms(all[len(all)-1]))
}
