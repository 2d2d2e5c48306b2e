package podsource_test

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// moreMemory is what condition, report and Events together may take more of a node, in bytes. docs/performance/fleet.md
// has a figure of many starts; here is one start of each, and a Go heap varies by a megabyte.
const moreMemory = 4 << 20

// With condition, report and Events off, the API server gets no request but those that judging needs. The node with all
// of them on does the same, shows that the audit log has what is looked for, syncs its store no more often, and takes
// little more memory.
func TestQuietSource(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	w.installReports()
	s := cluster.PullSecret("own", "registry.test", "tenant", password)
	testkit.Value(w.core.Secrets(w.name).Create(w.Context(), s, metav1.CreateOptions{}))(w)
	began := time.Now()
	quiet := w.member(w.name+"-quiet", ", nodeCondition: false, nodeReport: false, podEvents: false")
	loud := w.member(w.name+"-loud", ", nodeReport: true")
	members := fleet{"quiet": quiet, "loud": loud}
	w.synced(loud.gate) // so that its pods are later than pullgated, and have Events at once
	for name, m := range members {
		m.idle()
		m.runs(w.name, "proves-"+name, "own")
		m.runs(w.name, "proved-"+name, "own")
		never := m.pod(w.name, "never-"+name, corev1.PullNever)
		testkit.Equal(t, "image of a pod without a Secret", m.kubelet.Precheck(never, image), "")
	}
	w.until("the Event is sent", func() bool { return loud.metric("pullgate_pod_events_total", `outcome="sent"`) == 1 })
	const syncs = "pullgate_store_sync_seconds_count"
	testkit.Equal(t, "syncs of the store of the other node", loud.metric(syncs), quiet.metric(syncs))
	if n := quiet.metric(syncs); n < 4 { // of the pull and the first creation alone
		t.Errorf("%v syncs of the quiet node; want those of its calls", n)
	}
	events := "/api/v1/namespaces/" + w.name + "/events"
	reads := []string{
		"get /api/v1/namespaces/" + w.name + "/secrets/own", // of the pods, by their names
		"list /api/v1/pods", "watch /api/v1/pods", // of the node
	}
	name := loud.name
	want := append([]string{
		"create " + events, "create /apis/fleet.pullgate.dev/v1alpha1/nodereports",
		"get /apis/fleet.pullgate.dev/v1alpha1", "get /api/v1/nodes/" + name, "patch /api/v1/nodes/" + name + "/status",
		"patch /apis/fleet.pullgate.dev/v1alpha1/nodereports/" + name,
	}, reads...)
	slices.Sort(want)
	const first = 50 * time.Second // a node has written its report
	resident := map[*member][]int{}
	members.until("requests", func(m *member) bool {
		for _, each := range members {
			resident[each] = append(resident[each], testkit.Value(host.UsageOf(each.gate.PID()))(w).Resident)
		}
		return m == quiet || len(w.requests(name)) >= len(want) && time.Since(began) > first
	})
	testkit.Equal(t, "requests of the other node", strings.Join(w.requests(name), "\n"), strings.Join(want, "\n"))
	testkit.Equal(t, "requests of the quiet node", strings.Join(w.requests(quiet.name), "\n"), strings.Join(reads, "\n"))
	with, without := testkit.Median(resident[loud]), testkit.Median(resident[quiet])
	t.Logf("resident in the median: %d KiB, and %d KiB without condition, report and Events", with>>10, without>>10)
	if with-without > moreMemory {
		t.Errorf("condition, report and Events take %d KiB more; want %d at most", (with-without)>>10, moreMemory>>10)
	}
}

func (m *member) metric(name string, labels ...string) float64 {
	m.w.Helper()
	return testkit.Value(m.gate.Metric(name, labels...))(m.w)
}

// requests returns what a node has asked the API server for, sorted and each once.
func (w *world) requests(name string) []string {
	w.Helper()
	all := map[string]bool{}
	for _, e := range testkit.Value(w.cluster.Requests())(w) {
		if e.User.Username == "system:node:"+name {
			all[e.Verb+" "+testkit.Value(url.Parse(e.RequestURI))(w).Path] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Without a pod source pullgated connects to nothing: in a network of its own, the kernel counts no packet.
func TestNoSourceNoConnection(t *testing.T) {
	t.Parallel()
	const kubeconfig = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n" +
		"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	for name, source := range map[string]string{"without": "", "with": "{kubeconfig: %s/kubeconfig, nodeName: node}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := func(name string) string { return filepath.Join(dir, name) }
			if source != "" {
				source = "podSource: " + fmt.Sprintf(source, dir)
			}
			runtime := criproxytest.NewRuntime(t)
			runtime.Do(func(r *criproxytest.Runtime) {
				r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
					return criproxytest.Image{ID: "sha256:" + strings.Repeat("a", 64), Names: []string{name}}, nil
				}
			})
			config := fmt.Sprintf("apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"+
				"listen: unix://%s/cri.sock\nstateDir: %[1]s/state\nruntimeEndpoint: %s\n%s\n", dir, runtime.Endpoint(), source)
			testkit.Must(t, os.WriteFile(path("config.yaml"), []byte(config), 0o600))
			testkit.Must(t, os.WriteFile(path("kubeconfig"), []byte(kubeconfig), 0o600))
			const network = `ip link set lo up && ip route add default dev lo && exec "$@"`
			cmd := exec.CommandContext(t.Context(), "unshare", "--net", "/bin/sh", "-c", network, "sh",
				testkit.Value(node.Program("pullgated"))(t), "--config", path("config.yaml"))
			// What a client without a configuration would take.
			cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=1",
				"KUBECONFIG="+path("kubeconfig"))
			k := criproxytest.NewKubelet(t, "unix://"+path("cri.sock"))
			pullgated := testkit.Value(host.StartCommand(t.Context(), "pullgated", path("log"), func() error {
				_, err := k.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
				return err
			}, cmd))(t)
			host.AtEnd(t, pullgated.Stop)
			first := k.Pod("team-a")
			id := k.MustPull(first, image, password)
			testkit.Value(k.Create(t.Context(), first, id, image))(t)
			testkit.Equal(t, "image of a pod without a credential", k.Precheck(k.Pod("team-b"), image), "")
			sent := func() int { return packets(t, pullgated.PID()) }
			if source != "" {
				if !host.Within(patience, func() bool { return sent() > 0 }) {
					t.Error("no packet was sent with a pod source: this test shows nothing")
				}
				return
			}
			// With a source the first packet comes at once.
			time.Sleep(5 * time.Second)
			testkit.Equal(t, "packets", sent(), 0)
		})
	}
}

// packets returns how many packets were sent in the network of a process, where the loopback device takes all.
func packets(tb testing.TB, pid int) (n int) {
	tb.Helper()
	text := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid)))(tb)
	_, loopback, _ := strings.Cut(string(text), "lo:")
	testkit.Value(fmt.Sscan(loopback, new(int), &n))(tb) // bytes, packets
	return n
}
