package fleet_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// The groups of nodes of which nothing is broken.
const (
	good    = "good"
	perNode = 7 // pods
)

// A before is what a node was before pullgate came.
type before struct {
	files  map[string]string
	args   string // of the kubelet
	units  string // of pullgate that run
	change string // what the dispatcher has begun with it
}

// Installation of a good version with running pods, while broken ones are taken back; upgrade, rollback, take-off, and
// what happens without dispatcher and API server.
func TestFleet(t *testing.T) {
	s := newSite(t)
	was := map[*fleet.Node]before{}
	var containers map[string]fleet.Container
	s.step("nodes with pods", func() {
		testkit.Value(fleet.Push(s.Context(), s.fleet.Registry, "app:1"))(s)
		testkit.Value(fleet.Push(s.Context(), s.fleet.Owned, "owned:1"))(s)
		s.secret(apps)
		s.nodes = testkit.Value(s.fleet.Join(s.Context(), "good-1", "good-2", "good-3", "bad-1", "bad-2", "bad-3",
			"bad-4"))(s)
		s.chart() // with one node, both pods would be there
		s.must(s.fleet.Run(s.Context(), apps, s.app(), perNode, s.nodes[:3]...),
			s.fleet.Run(s.Context(), apps, s.app(), 1, s.nodes[3:]...))
		s.label(good, s.nodes[:3]...)
		for _, n := range s.nodes {
			was[n] = s.before(n)
		}
		containers = testkit.Value(s.fleet.Containers(s.Context(), apps))(s)
		s.waitForNewer()
		s.deployed(dispatcher, 9473)
	})
	s.step("waves, and an upgrade", func() {
		s.Run("good", func(t *testing.T) {
			t.Parallel()
			s := s.with(t)
			s.installed(was)
			s.upgraded()
		})
		// The second node of each of them is the one behind a wave that fails.
		for first, names := range map[int][]string{
			3: {"cut", "kubelet", "exits"}, 5: {"crashes", "silent", "wrong", "key"},
		} {
			s.Run(s.nodes[first].Name, func(t *testing.T) {
				t.Parallel()
				for _, name := range names {
					s.with(t).breaks(name, 1, s.nodes[first:first+2]...)
				}
			})
		}
	})
	s.step("no container restarted", func() { s.unchanged(containers) })
	s.step("three nodes judge", func() {
		s.own(s.nodes[:3]...)
		s.intrudes(s.nodes[:3]...)
		s.judges(s.nodes[:3]...)
	})
	s.step("Rollouts of nodes that are not as others", func() {
		s.Run("leaves, webhook", func(t *testing.T) {
			t.Parallel()
			s := s.with(t)
			s.leaves(s.nodes[2], was[s.nodes[2]])
			s.webhook()
		})
		s.Run("special", func(t *testing.T) {
			t.Parallel()
			s.with(t).special(was)
		})
		s.Run("shadow", func(t *testing.T) {
			t.Parallel()
			s.with(t).shadow(s.nodes[6], was[s.nodes[6]])
		})
	})
	// Those of the node that was rebooted are others.
	maps.DeleteFunc(containers, func(name string, _ fleet.Container) bool {
		return strings.HasPrefix(name, s.nodes[5].Name+"-")
	})
	s.step("no container restarted either", func() { s.unchanged(containers) })
	s.step("a node joins with the startup taint, and one of another kind is broken", func() {
		s.Run("joins", func(t *testing.T) {
			t.Parallel()
			s.with(t).joins()
		})
		s.Run("kinds", func(t *testing.T) {
			t.Parallel()
			s.with(t).breaks("config", 2, s.nodes[3], s.nodes[4], s.nodes[2])
		})
		s.Run("reboots", func(t *testing.T) {
			t.Parallel()
			s.with(t).breaks("reboots", 1, s.nodes[5])
		})
	})
	s.step("nor did one now", func() { s.unchanged(containers) })
	s.step("the dispatchers are gone", func() { s.abandoned(was) })
	s.step("no call was refused", func() { s.audited("pullgated") })
}

// installed installs the older version on three nodes with pods.
func (s *site) installed(was map[*fleet.Node]before) {
	s.Helper()
	began := time.Now()
	s.create(good, s.spec(s.older, map[string]any{"nodeSelector": labelled(good)}))
	s.await(good, "Complete", 5*time.Minute, s.nodes[:3]...)
	s.Logf("three nodes with %d pods: %v", 3*perNode, time.Since(began).Round(time.Second))
	s.confirmations()
	for _, n := range s.nodes[:3] {
		s.enforces(n, s.older)
		s.noCallFailed(n, began)
		// Otherwise it would show nothing that there are no changes when it is taken off.
		lines := strings.Join(fleet.Changes(was[n].files, testkit.Value(n.Snapshot())(s)), "\n")
		for _, file := range []string{"/etc/pullgate/config.yaml", "/etc/systemd/system/kubelet.service.d/90-pullgate.conf"} {
			if !strings.Contains(lines, file+" was added") {
				s.Errorf("changes on %s are\n%s\nwant %s", n.Name, lines, file)
			}
		}
	}
}

// upgraded upgrades three nodes at once while clients of pullgated make calls.
func (s *site) upgraded() {
	s.Helper()
	began := time.Now()
	calls := node.NewCalls(s.Context())
	for _, n := range s.nodes[:3] {
		k := s.dial(n, pullgateSocket)
		defer k.Close()
		calls.Lists(k)
	}
	s.patch(good, map[string]any{"version": s.newer.version, "image": s.newer.image, "waves": []any{int64(5)}})
	s.await(good, "Complete", 3*time.Minute, s.nodes[:3]...)
	calls.End(s)
	for _, n := range s.nodes[:3] {
		s.enforces(n, s.newer)
		s.noCallFailed(n, began)
	}
}

// leaves takes a node out of the selector of a Rollout.
func (s *site) leaves(n *fleet.Node, was before) {
	s.Helper()
	s.label("", n)
	s.await(good, "Complete", time.Minute, n)
	left := func() bool { return s.status(good).Nodes.Selected == 2 && s.condition(n).Reason == "NotInstalled" }
	if !host.Within(time.Minute, left) {
		s.explain(n)
		s.Fatalf("%s is not taken off: %+v, %+v", n.Name, s.status(good), s.condition(n))
	}
	s.asBefore(n, was, "/var/lib/pullgate")
}

// joins adds a node with the startup taint. A pod that waits for it does not run before pullgate enforces there.
func (s *site) joins() {
	s.Helper()
	const name, taint = "late-1", "fleet.pullgate.dev/not-ready"
	// Its place is needed: seven machines are what two cores run.
	left := s.nodes[6]
	s.must(left.Leave(), s.fleet.Client.CoreV1().Nodes().Delete(s.Context(), left.Name, metav1.DeleteOptions{}))
	s.patch(good, map[string]any{"startupTaint": true})
	first := fleet.Pod("", "first", s.app())
	first.Spec.Tolerations, first.Spec.NodeSelector = nil, map[string]string{corev1.LabelHostname: name}
	pods := s.fleet.Client.CoreV1().Pods("default")
	testkit.Value(pods.Create(s.Context(), first, metav1.CreateOptions{}))(s)
	n := testkit.Value(s.fleet.JoinWithTaint(s.Context(), taint, name))(s)[0]
	s.label(good, n)
	// Now it waits for nothing but the taint.
	s.must(s.reaches(n, "Enable", time.Minute))
	p := testkit.Value(pods.Get(s.Context(), first.Name, metav1.GetOptions{}))(s)
	taints := testkit.Value(n.Object(s.Context()))(s).Spec.Taints
	if p.Spec.NodeName != "" || len(p.Status.Conditions) != 1 || len(taints) != 1 || taints[0].Key != taint {
		s.Errorf("%s has the taints %v, and the pod for it is %+v; want it to wait for one taint", n.Name, taints, p.Status)
	}
	var c fleet.Container
	if !host.Within(2*time.Minute, func() bool {
		c = testkit.Value(s.fleet.Containers(s.Context(), "default"))(s)["first/main"]
		return c.Running
	}) {
		s.explain(n)
		s.Fatalf("the pod on the new node does not run: %+v", c)
	}
	s.enforces(n, s.newer)
	// Both times are in whole seconds.
	if since := s.condition(n).LastTransitionTime; c.Started.Before(since.Time) {
		s.Errorf("the pod runs since %v, and the node enforces since %v", c.Started, since)
	}
}

// abandoned kills both dispatchers for good while two nodes change. Both take that back, one of them at a boot, and a
// third stays untouched.
func (s *site) abandoned(was map[*fleet.Node]before) {
	s.Helper()
	const name = "abandoned"
	waits, reboots, behind, installed := s.nodes[3], s.nodes[4], s.nodes[2], s.nodes[0]
	third := s.before(behind)
	s.label(name, waits, reboots, behind)
	s.create(name, s.spec(s.older, map[string]any{
		"nodeSelector": labelled(name), "waves": []any{int64(2)}, "confirmWithin": "30s",
	}))
	s.must(s.reaches(waits, "Enable", time.Minute), s.reaches(reboots, "Enable", time.Minute))
	s.killAll()
	s.must(reboots.Reboot(s.Context()))
	if st := s.stage(reboots); st.Outcome != "TakenBack" || !strings.Contains(st.Message, "the node was restarted") {
		s.Errorf("%s has booted, and is in %+v; want it taken back before the kubelet starts", reboots.Name, st)
	}
	s.asBefore(reboots, was[reboots], "/var/lib/pullgate")
	s.takenBack(waits)
	s.asBefore(waits, was[waits], "/var/lib/pullgate")
	if st := s.status(name); st.Nodes.Updating != 2 || st.Nodes.Pending != 1 {
		s.Errorf("%+v; want two nodes that change, and one that waits", st)
	}
	s.untouched(behind, third)

	// An installed node judges, also without the API server and after a reboot, and without the chart. It can go back, and
	// pullgate can be taken off.
	s.must(s.fleet.StopAPI())
	time.Sleep(outage(s))
	s.must(installed.Machine.Reboot(s.Context()))
	s.pullgated(installed, s.newer)
	s.judges(installed)
	since := time.Now().Truncate(time.Second)
	s.must(s.fleet.StartAPI(s.Context()), installed.Connect(s.Context()), installed.WaitReady(s.Context()))
	if !host.Within(time.Minute, func() bool { return !s.condition(installed).LastHeartbeatTime.Time.Before(since) }) {
		s.Errorf("condition of %s is %+v; want a heartbeat since %v", installed.Name, s.condition(installed), since)
	}
	s.enforces(installed, s.newer)
	s.chartIsGone()
	testkit.Value(installed.Run(s.Context(), "/opt/pullgate/pullgatectl", "node", "rollback", "--yes"))(s)
	s.pullgated(installed, s.older)
	last := s.nodes[1]
	testkit.Value(last.Run(s.Context(), "/opt/pullgate/pullgatectl", "node", "disable", "--yes"))(s)
	if args := s.kubeletArgs(last); args != was[last].args {
		s.Errorf("the kubelet of %s runs as %s; want as before, %s", last.Name, args, was[last].args)
	}
	s.must(last.WaitReady(s.Context()))
}

// chartIsGone removes the chart while its dispatchers run, and then by force their namespace with everything in it. The
// nodes stay as they are and judge.
func (s *site) chartIsGone() {
	s.Helper()
	s.scale(2)
	stay := s.nodes[:2]
	var installed []before
	for _, n := range stay {
		installed = append(installed, s.before(n))
	}
	s.audited("pullgate") // from now on the dispatchers have no rights
	s.helm("uninstall")
	core := s.fleet.Client.CoreV1()
	s.must(core.Pods(namespace).DeleteCollection(s.Context(), *metav1.NewDeleteOptions(0), metav1.ListOptions{}),
		core.Namespaces().Delete(s.Context(), namespace, metav1.DeleteOptions{}))
	gone := testkit.Value(core.Namespaces().Get(s.Context(), namespace, metav1.GetOptions{}))(s)
	gone.Spec.Finalizers = nil
	testkit.Value(core.Namespaces().Finalize(s.Context(), gone, metav1.UpdateOptions{}))(s)
	if !host.Within(30*time.Second, func() bool { return len(s.pods(dispatcher)) == 0 }) {
		s.Errorf("%d dispatchers are there without the chart", len(s.pods(dispatcher)))
	}
	for i, n := range stay {
		s.is(n, installed[i], func(line string) bool { return strings.HasPrefix(line, "/var/lib/pullgate/") })
	}
	s.judges(stay...)
}

// outage is how long the API server is off, beside a reboot.
func outage(s *site) (d time.Duration) {
	s.Helper()
	if text := os.Getenv("PULLGATE_OUTAGE"); text != "" {
		d = testkit.Value(time.ParseDuration(text))(s)
	}
	return d
}

// pullgated checks that the pullgated of a node runs, in a version, and is what its kubelet uses.
func (s *site) pullgated(n *fleet.Node, b build) {
	s.Helper()
	page := ""
	runs := func() bool {
		page, _ = n.Get("http://127.0.0.1:9471/metrics") // refused until it listens
		return strings.Contains(page, `version="`+b.version+`"`) && strings.Contains(page, "\npullgate_")
	}
	if !host.Within(time.Minute, runs) {
		s.explain(n)
		s.Errorf("pullgated %s of %s does not run: %s", b.version, n.Name, page)
	}
	if args := s.kubeletArgs(n); !strings.Contains(args, "unix://"+pullgateSocket) {
		s.Errorf("the kubelet of %s runs as %s; want it to use pullgated", n.Name, args)
	}
}

// audited checks that the API server has refused no call of programs whose names begin so, and has neither answered nor
// made a token of the service account of installing pods.
func (s *site) audited(agents string) {
	const tokens = "/serviceaccounts/" + account + "/token"
	made, used := map[string]int{}, map[string]int{}
	for _, e := range testkit.Value(s.fleet.Requests())(s) {
		used[e.User.Username]++
		if path, _, _ := strings.Cut(e.RequestURI, "?"); e.Verb == "create" && strings.HasSuffix(path, tokens) {
			made[path]++
		}
	}
	const of = "/api/v1/namespaces/"
	if used[user(ordinary)] == 0 || made[of+ordinary+tokens] < 2 { // of the test, and of the kubelet
		s.Errorf("users are %v and new tokens %v; want those of an ordinary pod", used, made)
	}
	if used[user(namespace)] > 0 || made[of+namespace+tokens] > 0 {
		s.Errorf("users are %v and new tokens %v; want none of an installing pod", used, made)
	}
	if calls := testkit.Value(s.fleet.NoneRefused(agents, ""))(s); calls < 100 {
		s.Errorf("%d calls of pullgate are in the audit log; want more", calls)
	}
}

// before notes what a node is.
func (s *site) before(n *fleet.Node) before {
	s.Helper()
	files := testkit.Value(n.Snapshot())(s)
	if len(files) < 5000 {
		s.Fatalf("a snapshot of %s has %d files; want those of a Debian", n.Name, len(files))
	}
	return before{files, s.kubeletArgs(n), s.units(n), s.change(n)}
}

// change is what the dispatcher has last begun with a node: the record of the attempt, and the pods.
func (s *site) change(n *fleet.Node) string {
	s.Helper()
	text := testkit.Value(n.Object(s.Context()))(s).Annotations["fleet.pullgate.dev/attempt"]
	for _, p := range s.installers(n) {
		text += " " + p.Name
	}
	return text
}

// installers are the pods on a node that install pullgate.
func (s *site) installers(n *fleet.Node) []corev1.Pod {
	s.Helper()
	return testkit.Value(s.fleet.Client.CoreV1().Pods(namespace).List(s.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=pullgate-install", FieldSelector: "spec.nodeName=" + n.Name,
	}))(s).Items
}

// kubeletArgs are the arguments of the kubelet. One that was stopped with the machine may not run yet.
func (s *site) kubeletArgs(n *fleet.Node) (args string) {
	s.Helper()
	const read = `tr '\0' ' ' </proc/$(systemctl show --property=MainPID --value kubelet.service)/cmdline`
	var err error
	if !host.Within(time.Minute, func() bool {
		args, err = n.Run(s.Context(), "sh", "-c", read)
		return strings.Contains(args, "/usr/bin/kubelet ")
	}) {
		s.Fatalf("no kubelet runs on %s: %q, %v", n.Name, args, err)
	}
	return args
}

// own are the files that a node keeps on which nothing is installed: the lock, and the status of the last attempt.
var own = regexp.MustCompile(`^/opt/pullgate(/lock|/status\.json)? was `)

// asBefore checks that a node is as it was, and works.
func (s *site) asBefore(n *fleet.Node, was before, also ...string) {
	s.Helper()
	s.is(n, was, func(line string) bool {
		path, _, _ := strings.Cut(line, " ")
		return own.MatchString(line) || within(also, path)
	})
}

// untouched checks that nothing was begun with a node, which works.
func (s *site) untouched(n *fleet.Node, was before) {
	s.Helper()
	s.is(n, was, func(string) bool { return false })
	if change := s.change(n); change != was.change {
		s.Errorf("with %s was begun: %s; want as before, %q", n.Name, change, was.change)
	}
}

// is checks that a node works and is as it was, but for some changes.
func (s *site) is(n *fleet.Node, was before, but func(change string) bool) {
	s.Helper()
	s.must(n.WaitReady(s.Context()))
	var lines []string
	units := ""
	if !host.Within(20*time.Second, func() bool {
		lines = slices.DeleteFunc(fleet.Changes(was.files, testkit.Value(n.Snapshot())(s)), but)
		units = s.units(n)
		return len(lines) == 0 && units == was.units
	}) {
		s.Errorf("%s is not as before:\n%s\nunits of pullgate are %q, were %q", n.Name, strings.Join(lines, "\n"), units,
			was.units)
	}
	if args := s.kubeletArgs(n); args != was.args {
		s.Errorf("the kubelet of %s runs as %s; want as before, %s", n.Name, args, was.args)
	}
}

func (s *site) units(n *fleet.Node) string {
	s.Helper()
	return testkit.Value(n.Run(s.Context(), "systemctl", "list-units", "--plain", "--no-legend",
		"--state=active,activating", "pullgate*"))(s)
}

// within reports whether a path is one of others or below one.
func within(all []string, path string) bool {
	return slices.ContainsFunc(all, func(a string) bool { return path == a || strings.HasPrefix(path, a+"/") })
}

// enforces checks that the API server knows that a node enforces, with a version.
func (s *site) enforces(n *fleet.Node, b build) {
	s.Helper()
	c := s.condition(n)
	if c.Status != corev1.ConditionTrue || !strings.HasPrefix(c.Message, "pullgate "+b.version+",") {
		s.Errorf("condition of %s is %+v; want True and version %s", n.Name, c, b.version)
	}
	if args := s.kubeletArgs(n); !strings.Contains(args, "unix://"+pullgateSocket) {
		s.Errorf("the kubelet of %s runs as %s; want it to use pullgated", n.Name, args)
	}
}

// noCallFailed checks that no call of the kubelet failed, as it logs them.
func (s *site) noCallFailed(n *fleet.Node, since time.Time) {
	s.Helper()
	journal := testkit.Value(n.Journal(s.Context(), since, "kubelet.service"))(s)
	seen, failed := 0, false
	for line := range strings.Lines(journal) {
		seen++
		// containerd 1.6 does not have this call.
		// The pod that installs has ended, and its probe has not.
		known := strings.Contains(line, "unknown method RuntimeConfig") || strings.Contains(line, `"install-status"`)
		if strings.Contains(line, "rpc error") && !known {
			failed = true
			s.Errorf("%s: a call of the kubelet failed: %s", n.Name, line)
		}
	}
	if failed {
		s.Logf("pullgated on %s:\n%s", n.Name, testkit.Value(n.Journal(s.Context(), since, "pullgated.service"))(s))
	}
	if seen == 0 {
		s.Errorf("the kubelet of %s has logged nothing since %v", n.Name, since)
	}
}

// unchanged checks that no container was restarted, nor replaced.
func (s *site) unchanged(was map[string]fleet.Container) {
	s.Helper()
	is := testkit.Value(s.fleet.Containers(s.Context(), apps))(s)
	if len(was) < 3*perNode {
		s.Errorf("%d containers; want %d at least", len(was), 3*perNode)
	}
	for name, c := range was {
		if is[name] != c {
			s.Errorf("container %s was %+v, is %+v", name, c, is[name])
		}
	}
}

// confirmations logs how long it took from the creation of the pods until the nodes were confirmed.
func (s *site) confirmations() {
	s.Helper()
	log, began := s.logged(), map[string]time.Time{}
	for _, e := range log {
		if e.Msg == "Changing a node" && e.Rollout == good {
			began[e.Node] = e.Time
		}
	}
	if len(began) < 3 {
		s.Errorf("the dispatcher has begun with %d nodes: %+v", len(began), log)
	}
	for _, e := range log {
		if since, ok := began[e.Node]; ok && e.Msg == "Confirmed a node" {
			took := e.Time.Sub(since)
			s.Logf("%s was confirmed after %v", e.Node, took.Round(time.Millisecond))
			if took > time.Minute { // on two idle cores it is half of that
				s.Errorf("%s was confirmed after %v", e.Node, took)
			}
		}
	}
}

// A nodeStatus is status.json of a node.
type nodeStatus struct{ Attempt, Stage, Outcome, Message string }

// stage returns what an installation on a node has come to; the zero value before there is one.
func (s *site) stage(n *fleet.Node) (st nodeStatus) {
	text, err := os.ReadFile(n.Path("/opt/pullgate/status.json"))
	if err == nil {
		_ = json.Unmarshal(text, &st)
	}
	return st
}

// reaches waits until an installation that has not ended is in a stage.
func (s *site) reaches(n *fleet.Node, stage string, limit time.Duration) error {
	var st nodeStatus
	if !host.Within(limit, func() bool { st = s.stage(n); return st.Stage == stage && st.Outcome == "" }) {
		return fmt.Errorf("%s is in stage %+v after %v; want %s", n.Name, st, limit, stage)
	}
	return nil
}
