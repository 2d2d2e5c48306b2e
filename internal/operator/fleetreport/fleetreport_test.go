package fleetreport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/operator/fleetreport"
	"github.com/pullgate/pullgate/internal/testkit"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

const hash = "sha256:0123"

// A cluster answers lists page by page, as an API server does.
type cluster struct {
	nodes   []corev1.Node
	reports []api.NodeReport
	expire  map[string]int // how many further pages have expired, by path
	asked   int
}

// add adds a node in shadow mode that has observed for two days and refused nothing.
func (c *cluster) add(name string) (*corev1.Node, *api.NodeReport) {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name)}}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: "True"},
		{
			Type: podsource.ConditionType, Status: "False", Reason: "Shadow", LastHeartbeatTime: ago(14 * time.Minute),
			Message: "pullgate v1.2.3, configuration " + hash + ": shadow mode",
		},
	}
	r := api.NodeReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{Kind: "Node", UID: n.UID}}},
		Report: api.Report{
			Format: 1, Mode: api.ReportShadow, Configuration: hash, ObservedSince: ago(48 * time.Hour),
			Refused: []api.Refusal{}, ReportTimes: api.ReportTimes{
				Heartbeat: ago(9 * time.Minute), KubeletSeen: ago(9 * time.Minute),
			},
		},
	}
	c.nodes, c.reports = append(c.nodes, n), append(c.reports, r)
	return &c.nodes[len(c.nodes)-1], &c.reports[len(c.reports)-1]
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.asked++
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	switch {
	case limit < 1:
		w.WriteHeader(http.StatusBadRequest)
	case from > 0 && c.expire[r.URL.Path] > 0:
		c.expire[r.URL.Path]--
		w.WriteHeader(http.StatusGone)
		_ = json.NewEncoder(w).Encode(metav1.Status{Reason: metav1.StatusReasonExpired, Code: 410, Message: "expired"})
	case r.URL.Path == "/api/v1/nodes":
		page(w, c.nodes, from, limit)
	case r.URL.Path == "/apis/fleet.pullgate.dev/v1alpha1/nodereports":
		page(w, c.reports, from, limit)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func page[T any](w http.ResponseWriter, all []T, from, limit int) {
	to, next := min(from+limit, len(all)), ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"continue": next}, "items": all[from:to]})
}

func (c *cluster) ask(t *testing.T, o fleetreport.Options) (*fleetreport.Report, error) {
	t.Helper()
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.Must(t, os.WriteFile(path, fmt.Appendf(nil, "clusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", s.URL), 0o600))
	client := testkit.Value(apiserver.New(apiserver.Options{Kubeconfig: path}))(t)
	t.Cleanup(client.Close)
	o.Now = now
	if o.Since == 0 {
		o.Since, o.Asked = 24*time.Hour, "24h"
	}
	return fleetreport.Ask(t.Context(), client, o)
}

func (c *cluster) wantSummary(t *testing.T, want string, o fleetreport.Options) *fleetreport.Report {
	t.Helper()
	r := testkit.Value(c.ask(t, o))(t)
	testkit.Equal(t, "summary", r.Summary, want)
	testkit.Equal(t, "verdict", r.Verdict == fleetreport.Go, strings.HasPrefix(want, "GO: "))
	return r
}

// Unknown is never good: whatever is wrong with one node of two makes the answer NO-GO, and says why.
func TestUnknownIsNeverGood(t *testing.T) {
	good := &cluster{}
	good.add("a")
	good.add("b")
	good.wantSummary(t, "GO: 2 of 2 nodes, no pod would be refused in the last 24h", fleetreport.Options{})
	condition := func(n *corev1.Node) *corev1.NodeCondition { return &n.Status.Conditions[1] }
	type change = func(c *cluster, n *corev1.Node, r *api.NodeReport)
	bad := func(reason string) change {
		return func(_ *cluster, n *corev1.Node, _ *api.NodeReport) { condition(n).Reason = reason }
	}
	for want, spoil := range map[string]change{
		fleetreport.NotReady: func(_ *cluster, n *corev1.Node, _ *api.NodeReport) {
			n.Status.Conditions[0].Status = "Unknown"
		},
		fleetreport.NoReport:   func(c *cluster, _ *corev1.Node, _ *api.NodeReport) { c.reports = c.reports[:1] },
		fleetreport.OtherOwner: func(_ *cluster, n *corev1.Node, _ *api.NodeReport) { n.UID = "another" },
		fleetreport.OtherFormat: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.Format = 2
		},
		fleetreport.Old: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.Heartbeat = ago(26 * time.Minute)
		},
		fleetreport.Clock: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.Heartbeat = ago(-6 * time.Minute)
		},
		fleetreport.NoCondition: func(_ *cluster, n *corev1.Node, _ *api.NodeReport) {
			n.Status.Conditions = n.Status.Conditions[:1]
		},
		fleetreport.OldCondition: func(_ *cluster, n *corev1.Node, _ *api.NodeReport) {
			condition(n).LastHeartbeatTime = ago(31 * time.Minute)
		},
		fleetreport.BadCondition + "Bypassed":     bad("Bypassed"),
		fleetreport.BadCondition + "Degraded":     bad("Degraded"),
		fleetreport.BadCondition + "NotInstalled": bad("NotInstalled"),
		fleetreport.OtherSettings: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.Configuration = "sha256:4567"
		},
		fleetreport.NoKubelet: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.KubeletSeen = ago(time.Hour)
		},
		fleetreport.NeverVerify: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.Mode = api.ReportNeverVerify
		},
		fleetreport.ShortWindow: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) {
			r.Report.ObservedSince = ago(23 * time.Hour)
		},
		fleetreport.TooMany: func(_ *cluster, _ *corev1.Node, r *api.NodeReport) { r.Report.Truncated = true },
	} {
		t.Run(want, func(t *testing.T) {
			c := &cluster{}
			c.add("a")
			n, r := c.add("b")
			spoil(c, n, r)
			got := c.wantSummary(t, "NO-GO: 1 of 2 nodes, no pod would be refused in the last 24h; 1 node unknown",
				fleetreport.Options{})
			testkit.Equal(t, "unknown", fmt.Sprint(got.Unknown), fmt.Sprint([]fleetreport.Unknown{{Node: "b", Reason: want}}))
		})
	}
}

func TestSummaries(t *testing.T) {
	row := func(namespace, pod string, last time.Duration) api.Refusal {
		return api.Refusal{Namespace: namespace, Pod: pod, Image: "i", Reason: "not_proved", Last: ago(last)}
	}
	c := &cluster{}
	c.add("a")
	c.add("z")
	r := &c.reports[0]
	r.Report.Refused = []api.Refusal{row("n", "p", time.Hour), row("n", "p", 2*time.Hour), row("n", "q", 25*time.Hour)}
	c.wantSummary(t, "NO-GO: 1 of 2 nodes would refuse 1 pod of 1 namespace", fleetreport.Options{})
	c.wantSummary(t, "GO: 2 of 2 nodes, no pod would be refused in the last 30m",
		fleetreport.Options{Since: 30 * time.Minute, Asked: "30m"})
	// A refusal is one also if the window is short, and if there are more than the report has room for.
	r.Report.Truncated, r.Report.ObservedSince = true, ago(2*time.Hour)
	c.wantSummary(t, "NO-GO: 1 of 2 nodes would refuse 1 pod of 1 namespace", fleetreport.Options{})
	r.Report.ObservedSince = ago(48 * time.Hour)
	c.wantSummary(t, "NO-GO: 1 of 2 nodes would refuse at least 1 pod of 1 namespace", fleetreport.Options{})
	// Left out, a pod does not make an unknown node good.
	r.Report.Refused[0].PullSecret, r.Report.Refused[1].PullSecret = true, true
	c.wantSummary(t, "NO-GO: 1 of 2 nodes, no pod would be refused in the last 24h; 1 node unknown; "+
		"1 pod with an untested pull secret accepted", fleetreport.Options{AcceptUntested: true})
	r.Report.Truncated = false
	c.wantSummary(t, "GO: 2 of 2 nodes, no pod would be refused in the last 24h; "+
		"1 pod with an untested pull secret accepted", fleetreport.Options{AcceptUntested: true})
}

func TestNodesWithoutLinuxAreNotCounted(t *testing.T) {
	c := &cluster{}
	c.add("a")
	n, _ := c.add("w")
	n.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	r := c.wantSummary(t, "GO: 1 of 1 node, no pod would be refused in the last 24h", fleetreport.Options{})
	testkit.Equal(t, "nodes without Linux", strings.Join(r.NotLinux, " "), "w")
	// A kubelet may write the one label of its own node, and not the other.
	n.Labels[api.ClaimLabel] = "workers"
	n.Status.Conditions = nil
	r = c.wantSummary(t, "NO-GO: 1 of 2 nodes, no pod would be refused in the last 24h; 1 node unknown",
		fleetreport.Options{})
	testkit.Equal(t, "nodes without Linux", len(r.NotLinux), 0)
	delete(n.Labels, api.ClaimLabel)
	c.nodes = c.nodes[1:]
	if _, err := c.ask(t, fleetreport.Options{}); err == nil || !strings.Contains(err.Error(), "no Linux node") {
		t.Errorf("%v; want an error that there is no node", err)
	}
}

// A list that expires between two pages is read again from its beginning, without counting twice.
func TestPagesThatExpire(t *testing.T) {
	const nodes, reports = "/api/v1/nodes", "/apis/fleet.pullgate.dev/v1alpha1/nodereports"
	c := &cluster{expire: map[string]int{nodes: 1}}
	for i := range 1000 {
		c.add(fmt.Sprint("node-", i))
	}
	c.wantSummary(t, "GO: 1000 of 1000 nodes, no pod would be refused in the last 24h", fleetreport.Options{})
	c.expire[reports] = 1
	c.reports[0].Report.Refused = []api.Refusal{{Namespace: "n", Pod: "p", Reason: "not_proved", Last: ago(time.Hour)}}
	r := c.wantSummary(t, "NO-GO: 1 of 1000 nodes would refuse 1 pod of 1 namespace", fleetreport.Options{})
	testkit.Equal(t, "rows", len(r.Refusals), 1)
	c.expire[reports] = 1000
	if _, err := c.ask(t, fleetreport.Options{}); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("%v; want an error that a page has expired", err)
	}
}

// 15,000 nodes with 50 images each and full reports.
func TestFleetOf15000(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	c := &cluster{}
	var images []corev1.ContainerImage
	for i := range 50 {
		name := fmt.Sprintf("registry.example/team-%d/app", i)
		digest := name + "@sha256:" + strings.Repeat("a", 64)
		images = append(images, corev1.ContainerImage{Names: []string{digest, name + ":1"}})
	}
	var rows []api.Refusal
	for i := range 40 {
		rows = append(rows, api.Refusal{
			Namespace: "team-b", Pod: fmt.Sprint("job-", i), Image: "registry.example/team-b/job:1", Reason: "not_proved",
			Count: 1, Last: ago(time.Hour),
		})
	}
	for i := range 15_000 {
		n, r := c.add(fmt.Sprint("node-", i))
		n.Status.Images = images
		if i%100 == 0 {
			r.Report.Refused = rows
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	r := testkit.Value(c.ask(t, fleetreport.Options{}))(t)
	took := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&after)
	testkit.Equal(t, "summary", r.Summary, "NO-GO: 150 of 15000 nodes would refuse 40 pods of 1 namespace")
	t.Logf("%v for %d requests, with the server in the same process; %d KiB in use after it", took.Round(time.Millisecond),
		c.asked, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
}
