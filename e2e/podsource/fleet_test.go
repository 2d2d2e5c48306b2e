package podsource_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
)

// restLimit is how many requests a node may send in a second when nothing changes.
const restLimit = 0.02

// TestFleet runs the sources of many nodes in this process, each with its own connection, a pod with a pull secret, a
// condition and a report, against one API server. PULLGATE_FLEET is the number of nodes, and PULLGATE_FLEET_REST how
// long it is at rest: docs/performance/fleet.md has the figures of 1,000 nodes, which make nightly measures.
func TestFleet(t *testing.T) {
	t.Parallel()
	size := testkit.Value(strconv.Atoi(envOr("PULLGATE_FLEET", "100")))(t)
	rest := testkit.Value(time.ParseDuration(envOr("PULLGATE_FLEET_REST", "20s")))(t)
	f := startFleet(t, size)
	before := f.usage()
	f.start()
	f.until("all nodes have a condition and a report", func() bool {
		return f.written.Load() >= int64(size) && f.reported(size)
	})
	after := f.usage()
	t.Logf("%d nodes in %v: the sources take %d KiB of heap and %.1f goroutines a node; %.1f ms of CPU a node to start. "+
		"kube-apiserver: %d KiB of resident memory a node, %.1f ms of CPU a node", size,
		after.at.Sub(before.at).Round(time.Second), (after.heap-before.heap)>>10/size,
		float64(after.goroutines-before.goroutines)/float64(size), 1000*(after.cpu-before.cpu)/float64(size),
		(after.apiResident-before.apiResident)>>10/size, 1000*(after.apiCPU-before.apiCPU)/float64(size))

	time.Sleep(rest)
	rested := f.usage()
	took := rested.at.Sub(after.at).Seconds()
	rate := float64(rested.requests-after.requests) / took / float64(size)
	t.Logf("at rest for %.0f s: %.5f requests a second and node; %.3f ms of CPU a second and node; kube-apiserver %.3f ms",
		took, rate, 1000*(rested.cpu-after.cpu)/took/float64(size), 1000*(rested.apiCPU-after.apiCPU)/took/float64(size))
	if rate > restLimit {
		t.Errorf("%.4f requests a second and node at rest; want %v", rate, restLimit)
	}

	testkit.Must(t, f.cluster.StopAPI())
	f.spread() // and all of them are backing off
	began, syncedAt, started := time.Now(), []int{0}, make(chan error, 1)
	go func() { started <- f.cluster.StartAPI(t.Context()) }() // it answers sources before this returns
	f.until("all sources are synced after a restart of the API server", func() bool {
		time.Sleep(time.Until(began.Add(time.Duration(len(syncedAt)) * time.Second)))
		syncedAt = append(syncedAt, f.synced())
		return syncedAt[len(syncedAt)-1] == size
	})
	testkit.Must(t, <-started)
	requests := f.usage().requests // of the new process
	t.Logf("while the API server starts again: sources synced after each second: %d; %d requests in all",
		syncedAt, requests)
	if requests > 4*size+100 {
		t.Errorf("%d requests of %d nodes to reconnect; want at most four a node", requests, size)
	}
}

// spread answers in the place of the API server that there is none, and checks that the sources do not come back
// together. An API server that starts says nothing of that: it lets those wait that come before it is ready, and
// answers all at once.
func (f *simulated) spread() {
	f.Helper()
	const first, end = 5, 15 // seconds; what fails at the same time is tried again soon, and then less and less often
	var tries [end]atomic.Int64
	began, certificate := time.Now(), f.cluster.Authority()
	server := &http.Server{
		Addr: strings.TrimPrefix(f.cluster.Config(cluster.Administrator).Host, "https://"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if at := int(time.Since(began).Seconds()); at < end && r.URL.Path == "/api/v1/pods" {
				tries[at].Add(1)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}),
		ReadHeaderTimeout: time.Minute,
	}
	stop := time.AfterFunc(end*time.Second, func() { _ = server.Close() })
	defer stop.Stop()
	err := server.ListenAndServeTLS(certificate, strings.TrimSuffix(certificate, "crt")+"key")
	if time.Since(began) < end*time.Second {
		f.Fatal(err)
	}
	var each []int64
	all, most, before := int64(0), int64(0), int64(0) // most in two seconds
	for i := range tries {
		n := tries[i].Load()
		each = append(each, n)
		if i >= first {
			all, most = all+n, max(most, before+n)
			before = n
		}
	}
	f.Logf("without the API server: tries of the sources in each second: %d", each)
	if all == 0 || most > all*2/3 { // without jitter they are all in one
		f.Errorf("%d of %d tries within two seconds; want them spread", most, all)
	}
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// A simulated fleet is many sources.
type simulated struct {
	*world
	size    int
	sources []*podsource.Source
	written atomic.Int64 // conditions
}

// startFleet starts an API server with nodes, each with a pod and its pull secret.
func startFleet(t *testing.T, size int) *simulated {
	t.Helper()
	dir := t.TempDir()
	c := testkit.Value(cluster.Start(t.Context(), filepath.Join(dir, "cluster"), kubernetes137, tokenNode,
		"--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000"))(t)
	host.AtEnd(t, c.Close)
	f := &simulated{size: size, world: &world{
		T: t, cluster: c, core: c.Client.CoreV1(), name: "fleet", dir: dir, key: credential.NewKey(),
	}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.name}}
	testkit.Value(f.core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}))(t)
	f.installReports()
	f.secret("own", "own")
	var g errgroup.Group
	g.SetLimit(16)
	for i := range size {
		g.Go(func() error {
			name := nameOf(i)
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}}
			_, err := f.core.Nodes().Create(t.Context(), n, metav1.CreateOptions{})
			_, podErr := f.core.Pods(f.name).Create(t.Context(), pod(f.name, name, name, "own"), metav1.CreateOptions{})
			pair, certErr := c.NodeCertificate(name, day, nodes)
			file := filepath.Join(dir, name+".pem")
			return errors.Join(err, podErr, certErr, os.WriteFile(file, pair, 0o600),
				os.WriteFile(filepath.Join(dir, name), c.Kubeconfig("client-certificate: "+file+", client-key: "+file), 0o600))
		})
	}
	testkit.Must(t, g.Wait())
	return f
}

func nameOf(i int) string { return fmt.Sprintf("node-%d", i) }

func (f *simulated) start() {
	f.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(f.Context(),
		textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard)))))
	var running sync.WaitGroup
	f.Cleanup(func() {
		cancel()
		running.Wait()
	})
	since := metav1.Now().Rfc3339Copy()
	for i := range f.size {
		name := nameOf(i)
		row := api.Refusal{
			Namespace: f.name, Pod: name, Image: image, Reason: "not_proved", Count: 1, Last: since,
		}
		s := testkit.Value(podsource.New(podsource.Options{
			Kubeconfig: filepath.Join(f.dir, name), Key: f.key,
			Condition: func(context.Context) (podsource.Condition, bool) {
				return podsource.Condition{True: true, Reason: "Enforcing", Message: "pullgate v1.2.3"}, true
			},
			ConditionWritten: func(outcome string) {
				if outcome == podsource.ConditionWritten {
					f.written.Add(1)
				}
			},
			Report: func() (api.Report, bool) {
				r := emptyReport()
				r.ObservedSince = since
				r.Refused = []api.Refusal{row, row, row, row, row}
				return r, true
			},
		}))(f)
		f.sources = append(f.sources, s)
		running.Go(func() { _ = s.Run(ctx) })
	}
}

func (f *simulated) synced() (n int) {
	for _, s := range f.sources {
		if s.Synced() {
			n++
		}
	}
	return n
}

// reported reports whether so many nodes have a report.
func (f *simulated) reported(n int) bool {
	client := testkit.Value(dynamic.NewForConfig(f.cluster.Config(cluster.Administrator)))(f)
	time.Sleep(5 * time.Second)
	list, err := client.Resource(nodeReports).List(f.Context(), metav1.ListOptions{})
	return err == nil && len(list.Items) == n
}

// A usage is what the sources and the API server have taken so far.
type usage struct {
	at               time.Time
	heap, goroutines int
	cpu, apiCPU      float64 // in seconds
	requests         int     // for what sources ask for
	apiResident      int
}

var (
	requestsTotal = regexp.MustCompile(
		`(?m)^apiserver_request_total\{.*resource="(?:pods|secrets|nodes|nodereports)".*\} (\d+)$`)
	apiCPU      = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`)
	apiResident = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)
)

func (f *simulated) usage() usage {
	f.Helper()
	page := string(testkit.Value(f.core.RESTClient().Get().AbsPath("/metrics").DoRaw(f.Context()))(f))
	number := func(r *regexp.Regexp) (sum float64) {
		for _, m := range r.FindAllStringSubmatch(page, -1) {
			sum += testkit.Value(strconv.ParseFloat(strings.TrimSpace(m[1]), 64))(f)
		}
		return sum
	}
	var own syscall.Rusage
	testkit.Must(f, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{
		at: time.Now(), heap: int(m.HeapInuse + m.StackInuse), goroutines: runtime.NumGoroutine(),
		cpu:    time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds(),
		apiCPU: number(apiCPU), requests: int(number(requestsTotal)), apiResident: int(number(apiResident)),
	}
}
