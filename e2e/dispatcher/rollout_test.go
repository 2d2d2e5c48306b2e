package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// A test has a Rollout of its own, whose name is also that of its pool of nodes.
type test struct {
	*testing.T
	fleet *fleet

	pool  string
	nodes []*played
}

func begin(t *testing.T, nodes int) *test {
	t.Helper()
	return beginOn(t, usual, nodes)
}

// Releases of Kubernetes: the oldest one that docs/fleet.md names, and that of most tests.
const oldest, usual = release.Kubernetes130, release.Kubernetes137

// onEach runs a test before an API server of each release.
func onEach(t *testing.T, nodes int, test func(*test)) {
	t.Helper()
	for _, release := range []string{oldest, usual} {
		t.Run(release, func(t *testing.T) { test(beginOn(t, release, nodes)) })
	}
}

func beginOn(t *testing.T, release string, nodes int) *test {
	t.Helper()
	t.Parallel()
	x := &test{T: t, fleet: testkit.Value(fleets.Get(release))(t)}
	x.pool = strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	for i := range nodes {
		x.nodes = append(x.nodes, x.fleet.join(t, fmt.Sprintf("%s-%d", x.pool, i), x.pool))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%v\n%s\n%s", x.status(), host.Tail(x.fleet.path("dispatcher-0.log"), 20),
				host.Tail(x.fleet.path("dispatcher-1.log"), 20))
		}
	})
	return x
}

const rollout = `
apiVersion: fleet.pullgate.dev/v1alpha1
kind: Rollout
metadata: {name: %s}
spec:
  version: v1
  image: registry.example.com/pullgate:v1
  nodeSelector: {matchLabels: {pool: %[1]s}}
  mode: Enforce
  unsigned: true
  soak: 0s
  configuration: |
    apiVersion: config.pullgate.dev/v1alpha1
    kind: PullgateConfiguration
`

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	testkit.Must(t, yaml.Unmarshal([]byte(text), &o.Object))
	return o
}

// create makes the Rollout, with more fields of its spec.
func (x *test) create(more string) {
	x.Helper()
	o := parse(x.T, fmt.Sprintf(rollout, x.pool)+more)
	testkit.Value(x.fleet.rollouts.Create(x.Context(), o, metav1.CreateOptions{}))(x)
}

func (x *test) edit(spec string) {
	x.Helper()
	patch := testkit.Value(yaml.YAMLToJSON([]byte("spec: " + spec)))(x)
	testkit.Value(x.fleet.rollouts.Patch(x.Context(), x.pool, types.MergePatchType, patch, metav1.PatchOptions{}))(x)
}

// A status is what of it is compared.
type status struct {
	current        bool // of the last change of the spec
	Phase, Message string
	Nodes          map[string]int
	Failures       []struct{ Node, Stage, Message, State, Next string }
	Skipped        []string
}

func (x *test) status() (s status) {
	o, err := x.fleet.rollouts.Get(x.Context(), x.pool, metav1.GetOptions{})
	if err != nil {
		return status{Phase: "gone"}
	}
	text, _ := json.Marshal(o.Object["status"])
	_ = json.Unmarshal(text, &s)
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	s.current = observed == o.GetGeneration()
	return s
}

// becomes waits until the status has a phase and counts, "installed 3, failed 1": those not named are zero.
func (x *test) becomes(phase, counts string) {
	x.Helper()
	want := map[string]int{"selected": 0}
	for c := range strings.SplitSeq(counts, ", ") {
		var name string
		var n int
		if _, err := fmt.Sscan(c, &name, &n); err == nil {
			want[name] = n
			want["selected"] += n
		}
	}
	var s status
	if !host.Within(patience, func() bool {
		s = x.status()
		for name, n := range s.Nodes {
			if n != want[name] {
				return false
			}
		}
		return s.Phase == phase && (s.current || phase == "gone") && s.Nodes["selected"] == want["selected"]
	}) {
		x.Fatalf("the status is %+v; want %s, %s", s, phase, counts)
	}
}

func (x *test) node(i int) *corev1.Node {
	x.Helper()
	return testkit.Value(x.fleet.Client.CoreV1().Nodes().Get(x.Context(), x.nodes[i].name, metav1.GetOptions{}))(x)
}

// Three nodes are installed, upgraded and taken off.
func TestInstallUpgradeRemove(t *testing.T) {
	t.Parallel()
	onEach(t, 3, installUpgradeRemove)
}

func installUpgradeRemove(x *test) {
	t := x.T
	x.create("  waves: [1, 2]")
	x.becomes("Complete", "installed 3")
	x.edit("{mode: Shadow, version: v2, image: 'registry.example.com/pullgate:v2', waves: [3]}")
	x.becomes("Complete", "installed 3")
	for i, p := range x.nodes {
		testkit.Equal(t, "asked of "+p.name, p.asked(), "[Install v1 Enforce Install v2 Shadow]")
		record := x.node(i).Annotations["fleet.pullgate.dev/installed"]
		if !strings.Contains(record, `"version":"v2","mode":"Shadow"`) {
			t.Errorf("record %s", record)
		}
		for _, r := range p.requests {
			if r.MachineID != "machine-"+p.name || r.NodeName != p.name || r.ConfirmWithin != "2m0s" || !r.Unsigned {
				t.Errorf("request %+v", r)
			}
		}
	}
	testkit.Must(t, x.fleet.rollouts.Delete(t.Context(), x.pool, metav1.DeleteOptions{}))
	x.becomes("gone", "")
	for i, p := range x.nodes {
		n := x.node(i)
		testkit.Equal(t, "asked of "+p.name, p.asked(), "[Install v1 Enforce Install v2 Shadow Remove v2]")
		if n.Labels["fleet.pullgate.dev/rollout"] != "" || n.Annotations["fleet.pullgate.dev/installed"] != "" {
			t.Errorf("%s has labels %v, annotations %v", p.name, n.Labels, n.Annotations)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "PullgateEnforcing" && (c.Status != "False" || c.Reason != "NotInstalled") {
				t.Errorf("condition of %s: %+v", p.name, c)
			}
		}
	}
}

// A failure stops the rollout with a sentence that can be shown on a terminal. Another value of retry goes on.
func TestFailure(t *testing.T) {
	x := begin(t, 3)
	x.nodes[0].fails.Store(true)
	x.create("")
	x.becomes("Stopped", "failed 1, pending 2")
	f := x.status().Failures
	if len(f) != 1 || f[0].Node != x.nodes[0].name || f[0].Stage != "Compare" ||
		f[0].Message != "an answer  [31mdiffers" || !strings.Contains(f[0].State, "as before") ||
		!strings.Contains(f[0].Next, "kubectl patch rollout "+x.pool) {
		t.Errorf("failures %+v", f)
	}
	x.nodes[0].fails.Store(false)
	x.edit("{retry: again, waves: [3]}")
	x.becomes("Complete", "installed 3")
	pods := testkit.Value(x.fleet.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "fleet.pullgate.dev/rollout=" + x.pool,
	}))(t)
	if len(pods.Items) > 0 {
		t.Errorf("%d pods are left", len(pods.Items))
	}
}

const refusesPods = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations:
  - expression: "!has(object.spec.nodeName) || object.spec.nodeName != '%[2]s'"
    message: "no pods for %[2]s"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`

// While the API server refuses the pod of a node, the status says so and names the node. It is tried again.
func TestRefusedPod(t *testing.T) {
	x := beginOn(t, oldest, 1) // TestRights wants no refused call, of the other cluster
	texts := strings.Split(fmt.Sprintf(refusesPods, x.pool, x.nodes[0].name), "---")
	policies := x.fleet.objects.Resource(schema.GroupVersionResource{
		Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies",
	})
	bindings := x.fleet.objects.Resource(schema.GroupVersionResource{
		Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings",
	})
	testkit.Value(policies.Create(t.Context(), parse(t, texts[0]), metav1.CreateOptions{}))(t)
	testkit.Value(bindings.Create(t.Context(), parse(t, texts[1]), metav1.CreateOptions{}))(t)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "try"}}
	p.Spec.NodeName, p.Spec.Containers = x.nodes[0].name, []corev1.Container{{Name: "a", Image: "a:1"}}
	if !host.Within(patience, func() bool { // the API server does not know it at once
		_, err := x.fleet.Client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll},
		})
		return err != nil && strings.Contains(err.Error(), "no pods for")
	}) {
		t.Fatal("the policy is not in force")
	}
	x.create("")
	want := "node " + x.nodes[0].name + ", stage Pod: the pod could not be created: "
	var s status
	if !host.Within(patience, func() bool { s = x.status(); return strings.HasPrefix(s.Message, want) }) ||
		s.Phase != "Progressing" || !strings.Contains(s.Message, "no pods for "+x.nodes[0].name) {
		t.Errorf("%+v; want the message %q, and why", s, want)
	}
	testkit.Must(t, bindings.Delete(t.Context(), x.pool, metav1.DeleteOptions{}),
		policies.Delete(t.Context(), x.pool, metav1.DeleteOptions{}))
	x.becomes("Complete", "installed 1")
	testkit.Equal(t, "message at the end", x.status().Message, "")
}

// A node that is not Ready is not touched, one that joins has its taint until it is installed, and one that leaves the
// selector is taken off.
func TestNodesComeAndGo(t *testing.T) {
	x := begin(t, 2)
	x.nodes[1].ready(false)
	x.create("  startupTaint: true")
	x.becomes("Waiting", "installed 1, skippedNotReady 1")
	testkit.Equal(t, "skipped", fmt.Sprint(x.status().Skipped), "["+x.nodes[1].name+"]")
	most := x.changedAtOnce(func() {
		x.nodes[1].ready(true)
		x.nodes = append(x.nodes, x.fleet.join(t, x.pool+"-2", x.pool,
			corev1.Taint{Key: "fleet.pullgate.dev/not-ready", Effect: corev1.TaintEffectNoSchedule},
			corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule}))
		x.becomes("Complete", "installed 3")
	})
	testkit.Equal(t, "late nodes that are changed at the same time", most, 1)
	has := func(key string) bool { // the API server adds more
		return slices.ContainsFunc(x.node(2).Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	}
	if !host.Within(patience, func() bool { return !has("fleet.pullgate.dev/not-ready") }) || !has("other") {
		t.Errorf("taints %v; want the other one", x.node(2).Spec.Taints)
	}
	patch := []byte(`{"metadata": {"labels": {"pool": "none"}}}`)
	testkit.Value(x.fleet.Client.CoreV1().Nodes().Patch(t.Context(), x.nodes[0].name, types.MergePatchType, patch,
		metav1.PatchOptions{}))(t)
	x.becomes("Complete", "installed 2")
	testkit.Equal(t, "asked", x.nodes[0].asked(), "[Install v1 Enforce Remove v1]")
	x.edit("{mode: 'Off', purge: true, waves: [2]}")
	x.becomes("Complete", "installed 2")
	for _, p := range x.nodes[1:] {
		testkit.Equal(t, "asked of "+p.name, p.asked(), "[Install v1 Enforce Remove v1]")
		if r := p.requests[len(p.requests)-1]; !r.Purge {
			t.Errorf("request %+v; want one that purges", r)
		}
	}
}

// changedAtOnce returns the greatest number of nodes that had an attempt in progress at the same time while do ran. The
// events of a watch have the order in which the API server has taken the writes.
func (x *test) changedAtOnce(do func()) (most int) {
	x.Helper()
	nodes, selector := x.fleet.Client.CoreV1().Nodes(), "pool="+x.pool
	now := testkit.Value(nodes.List(x.Context(), metav1.ListOptions{LabelSelector: selector}))(x)
	w := testkit.Value(nodes.Watch(x.Context(), metav1.ListOptions{
		LabelSelector: selector, ResourceVersion: now.ResourceVersion,
	}))(x)
	done := make(chan struct{})
	go func() {
		defer close(done)
		running := map[string]bool{}
		for e := range w.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				continue
			}
			var attempt struct{ Rollout, Outcome string }
			_ = json.Unmarshal([]byte(n.Annotations["fleet.pullgate.dev/attempt"]), &attempt)
			if running[n.Name] = true; attempt.Rollout == "" || attempt.Outcome != "" {
				delete(running, n.Name)
			}
			most = max(most, len(running))
		}
	}()
	do()
	w.Stop()
	<-done
	return most
}

// The dispatcher that leads is killed while nodes are changed: the other one continues the same attempts.
func TestLeaderIsKilled(t *testing.T) {
	x := begin(t, 4)
	x.create("  waves: [4]")
	if !host.Within(patience, func() bool { return x.status().Nodes["updating"] == 4 }) {
		t.Fatalf("status %+v; want 4 that are changed", x.status())
	}
	killed := x.leader()
	testkit.Must(t, x.fleet.dispatchers[killed].Kill())
	x.becomes("Complete", "installed 4")
	testkit.Must(t, x.fleet.dispatch(t.Context(), killed))
	for _, p := range x.nodes {
		testkit.Equal(t, "asked of "+p.name, p.asked(), "[Install v1 Enforce]")
	}
}

// leader returns which dispatcher leads.
func (x *test) leader() (found int) {
	x.Helper()
	if !host.Within(patience, func() bool {
		for i, address := range x.fleet.metrics {
			text, err := host.Get("http://" + address + "/metrics")
			if err == nil && strings.Contains(text, "\npullgate_dispatcher_leader 1\n") {
				found = i
				return true
			}
		}
		return false
	}) {
		x.Fatal("no dispatcher leads")
	}
	return found
}

// Nothing that the dispatchers ask for is refused, and what the chart allows is used.
func TestRights(t *testing.T) {
	x := begin(t, 1)
	x.create("")
	x.becomes("Complete", "installed 1")
	testkit.Must(t, x.fleet.rollouts.Delete(t.Context(), x.pool, metav1.DeleteOptions{}))
	x.becomes("gone", "")
	seen := map[string]bool{}
	for _, a := range testkit.Value(x.fleet.Requests())(t) {
		if strings.Contains(a.UserAgent, "-test") {
			continue // of another test
		}
		o := a.ObjectRef
		what := strings.Trim(a.Verb+" "+o.Resource+"/"+o.Subresource, "/")
		seen[what] = true
		if a.Refused() {
			t.Errorf("%s %s/%s: %+v", what, o.Namespace, o.Name, a.ResponseStatus)
		}
		if !strings.HasPrefix(a.UserAgent, "pullgate-dispatcher") {
			t.Errorf("user agent %q", a.UserAgent)
		}
	}
	for _, want := range []string{
		"watch nodes", "patch nodes", "patch nodes/status", "watch rollouts", "patch rollouts", "patch rollouts/status",
		"watch pods", "create pods", "patch pods", "delete pods", "get leases", "create leases", "update leases",
	} {
		if !seen[want] {
			t.Errorf("the dispatchers have not asked for %s, so that this test shows nothing about it", want)
		}
	}
}
