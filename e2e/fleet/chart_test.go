package fleet_test

import (
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// The Deployments of the chart.
const (
	dispatcher = "pullgate-dispatcher"
	policyd    = "pullgate-policyd"
)

// helm runs Helm with a release of the chart.
func (s *site) helm(command string, args ...string) {
	s.Helper()
	helm := testkit.Value(release.Helm(s.Context(), "3"))(s)
	testkit.Value(host.Run(s.Context(), helm, append([]string{
		command, "pullgate", "--namespace", namespace, "--kubeconfig", s.kubeconfig(),
	}, args...)...))(s)
}

func (s *site) chartFolder() string {
	s.Helper()
	return testkit.Value(host.Upward("docs/helm/pullgate"))(s)
}

// onGoodNodes is an affinity of pods.
const onGoodNodes = `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
	{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["good-1", "good-2", "good-3"]}]}
]}}}`

// chart installs the Helm chart.
func (s *site) chart() {
	s.Helper()
	i := strings.LastIndex(s.older.image, ":")
	s.helm("install", s.chartFolder(), "--set-json", "dispatcher.affinity="+onGoodNodes, "--set-string",
		"image.repository="+s.older.image[:i]+",image.tag="+s.older.image[i+1:])
}

// deployed waits until a Deployment of the chart has two Ready pods, and checks that they are on two nodes, that what
// runs there has no rights, that its metrics are served, and that its budget lets one of them go.
func (s *site) deployed(name string, metrics int) {
	s.Helper()
	began := time.Now()
	pods := s.readyPods(name, 2, 90*time.Second)
	s.Logf("both pods of %s are Ready after %v", name, time.Since(began).Round(time.Millisecond))
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		s.Errorf("both pods of %s are on %s", name, pods[0].Spec.NodeName)
	}
	for _, p := range pods {
		if c := p.Status.ContainerStatuses[0]; c.RestartCount != 0 {
			s.Errorf("%s was restarted: %+v", p.Name, c)
		}
		n := s.node(p.Spec.NodeName)
		s.confined(n, name)
		page, err := n.Get(fmt.Sprintf("http://%s:%d/metrics", p.Status.PodIP, metrics))
		if err != nil || !strings.Contains(page, `version="`+s.older.version+`"`) {
			s.Errorf("metrics of %s are %q, %v; want version %s", p.Name, page, err, s.older.version)
		}
	}
	budgets, allowed := s.fleet.Client.PolicyV1().PodDisruptionBudgets(namespace), int32(0)
	if !host.Within(20*time.Second, func() bool {
		allowed = testkit.Value(budgets.Get(s.Context(), name, metav1.GetOptions{}))(s).Status.DisruptionsAllowed
		return allowed == 1
	}) {
		s.Errorf("the budget of %s allows %d disruptions; want one", name, allowed)
	}
}

// readyPods waits until a Deployment of the chart has so many pods, which are Ready, and returns them.
func (s *site) readyPods(name string, replicas int, limit time.Duration) (pods []corev1.Pod) {
	s.Helper()
	if !host.Within(limit, func() bool {
		pods = s.pods(name)
		return len(pods) == replicas && !slices.ContainsFunc(pods, notReady)
	}) {
		s.explain(s.nodes[:3]...)
		s.Fatalf("%s has %d pods; want %d that are Ready", name, len(pods), replicas)
	}
	return pods
}

// pods returns the pods of a Deployment of the chart.
func (s *site) pods(name string) []corev1.Pod {
	s.Helper()
	list := testkit.Value(s.fleet.Client.CoreV1().Pods(namespace).List(s.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + name,
	}))(s)
	return list.Items
}

func notReady(p corev1.Pod) bool {
	return !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (s *site) node(name string) *fleet.Node {
	s.Helper()
	i := slices.IndexFunc(s.nodes, func(n *fleet.Node) bool { return n.Name == name })
	if i < 0 {
		s.Fatalf("no node has the name %q", name)
	}
	return s.nodes[i]
}

// confined checks that the only process of a program in a container on a node has no rights, and cannot write to its
// root directory.
func (s *site) confined(n *fleet.Node, program string) {
	s.Helper()
	pid := s.pid(n, program)
	status := string(testkit.Value(os.ReadFile(n.Path("/proc/" + pid + "/status")))(s))
	for _, line := range []string{
		`Uid:\s65532\s65532\s65532\s65532`, `Gid:\s65532\s65532\s65532\s65532`, `NoNewPrivs:\s1`,
		`CapInh:\s0+`, `CapPrm:\s0+`, `CapEff:\s0+`, `CapBnd:\s0+`, `CapAmb:\s0+`,
	} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(status) {
			s.Errorf("%s on %s has the status\n%s\nwant %s", program, n.Name, status, line)
		}
	}
	// A machine has filters of system calls itself.
	if own := s.filters(n, s.pid(n, "kubelet")); s.filters(n, pid) <= own {
		s.Errorf("%s on %s has not more filters of system calls than a process of the node, %d", program, n.Name, own)
	}
	mounts := string(testkit.Value(os.ReadFile(n.Path("/proc/" + pid + "/mountinfo")))(s))
	if !regexp.MustCompile(`(?m)^\S+ \S+ \S+ / / ro,`).MatchString(mounts) {
		s.Errorf("%s on %s has the mounts\n%s\nwant a root directory that is read only", program, n.Name, mounts)
	}
}

// filters returns how many filters of system calls a process on a node has.
func (s *site) filters(n *fleet.Node, pid string) (count int) {
	s.Helper()
	_, rest, _ := strings.Cut(string(testkit.Value(os.ReadFile(n.Path("/proc/"+pid+"/status")))(s)), "Seccomp_filters:")
	testkit.Value(fmt.Sscan(rest, &count))(s)
	return count
}

// pid returns the ID of the only process of a program on a node, as the node has it.
func (s *site) pid(n *fleet.Node, program string) (pid string) {
	s.Helper()
	// pidof leaves out processes that wait for the disk.
	if !host.Within(10*time.Second, func() bool {
		out, err := n.Run(s.Context(), "pidof", program)
		pid = strings.TrimSpace(out)
		return err == nil
	}) {
		s.explain(n)
		s.Fatalf("%s does not run on %s", program, n.Name)
	}
	return pid
}

// leader returns the name of the pod that holds the Lease of the dispatchers.
func (s *site) leader() string {
	s.Helper()
	lease := testkit.Value(s.fleet.Client.CoordinationV1().Leases(namespace).Get(s.Context(), dispatcher,
		metav1.GetOptions{}))(s)
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// killLeader kills the dispatcher that leads, with its pod. The other one leads after the time of the Lease, and a new
// one takes the place of the first.
func (s *site) killLeader() {
	s.Helper()
	pods, killed := s.fleet.Client.CoreV1().Pods(namespace), s.leader()
	p := testkit.Value(pods.Get(s.Context(), killed, metav1.GetOptions{}))(s)
	n := s.node(p.Spec.NodeName)
	began := time.Now()
	// Without its pod it would be started again by the same name, and go on. By itself it would give up the Lease.
	s.signal("KILL", *p)
	s.must(pods.Delete(s.Context(), killed, *metav1.NewDeleteOptions(0)))
	leads := ""
	follows := func() bool {
		leads = s.leader()
		return leads != "" && leads != killed
	}
	if !host.Within(30*time.Second, follows) {
		s.explain(n)
		s.Fatalf("%s was killed, and after 30 s %q leads", killed, leads)
	}
	s.Logf("%s on %s was killed, and %s leads after %v", killed, n.Name, leads, time.Since(began).Round(time.Millisecond))
	s.deployed(dispatcher, 9473)
}

// signal sends a signal to the dispatchers of some pods.
func (s *site) signal(signal string, pods ...corev1.Pod) {
	s.Helper()
	for _, p := range pods {
		n := s.node(p.Spec.NodeName)
		testkit.Value(n.Run(s.Context(), "sh", "-c", "kill -"+signal+" "+s.pid(n, dispatcher)))(s)
	}
}

// killAll kills all dispatchers for good. They are stopped first, so that none acts until its pod is being deleted.
func (s *site) killAll() {
	s.Helper()
	pods := s.pods(dispatcher)
	s.signal("STOP", pods...)
	s.setReplicas(0)
	if !host.Within(time.Minute, func() bool { // a kubelet would start a dispatcher of another pod again
		return !slices.ContainsFunc(s.pods(dispatcher), func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })
	}) {
		s.Fatal("the dispatchers are not being deleted")
	}
	s.signal("KILL", pods...)
	s.readyPods(dispatcher, 0, 2*time.Minute)
}

// scale makes so many dispatchers, and waits for them.
func (s *site) scale(replicas int) {
	s.Helper()
	s.setReplicas(replicas)
	// After a long outage of the API server, kube-scheduler may take a minute to reconnect.
	s.readyPods(dispatcher, replicas, 2*time.Minute)
}

func (s *site) setReplicas(replicas int) {
	s.Helper()
	deployments := s.fleet.Client.AppsV1().Deployments(namespace)
	testkit.Value(deployments.Patch(s.Context(), dispatcher, types.MergePatchType,
		fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, replicas), metav1.PatchOptions{}))(s)
}

// An entry is a line of a pod's log.
type entry struct {
	Time               time.Time
	Msg, Node, Rollout string
	text               string
}

// logged returns what the pods of the chart that are on the nodes have logged, in the order of time.
func (s *site) logged() (all []entry) {
	s.Helper()
	for _, n := range s.nodes {
		files := testkit.Value(filepath.Glob(n.Path("/var/log/pods/" + namespace + "_pullgate-*/*/*.log")))(s)
		for _, file := range files {
			text, _ := host.ContainerLog(file) // its pod may go
			for line := range strings.Lines(text) {
				e := entry{text: line}
				_ = json.Unmarshal([]byte(line), &e) // what is not JSON is shown as it is
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return a.Time.Compare(b.Time) })
	return all
}

const noHostNetwork = `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: no-host-network}
spec: {spec: {securityContext: {hostNetwork: {require: false}}}}
`

// webhook adds the webhook to the release, which the API server asks through its Service, and removes it.
func (s *site) webhook() {
	s.Helper()
	authority := testkit.Value(testkit.NewAuthority("authority"))(s)
	pair := testkit.Value(authority.Issue(pkix.Name{CommonName: policyd}, time.Time{},
		policyd+"."+namespace+".svc"))(s)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: policyd + "-tls"}, Type: corev1.SecretTypeTLS}
	secret.Data = map[string][]byte{corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key}
	testkit.Value(s.fleet.Client.CoreV1().Secrets(namespace).Create(s.Context(), secret, metav1.CreateOptions{}))(s)
	ca, policy := filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "policy.yaml")
	s.must(os.WriteFile(ca, authority.PEM(), 0o600), os.WriteFile(policy, []byte(noHostNetwork), 0o600))
	s.helm("upgrade", s.chartFolder(), "--reuse-values", "--set", "webhook.enabled=true",
		"--set-json", "webhook.affinity="+onGoodNodes,
		"--set-file", "webhook.tls.caBundle="+ca, "--set-file", `webhook.policies.web\.yaml=`+policy)
	s.deployed(policyd, 9472)

	var err error
	if !host.Within(20*time.Second, func() bool { err = s.probe(); return apierrors.IsForbidden(err) }) ||
		!strings.Contains(err.Error(), "policy no-host-network") {
		s.explain(s.nodes[:3]...)
		s.Errorf("a pod with the network of its node: %v; want it denied by the policy", err)
	}
	s.helm("upgrade", s.chartFolder(), "--reuse-values", "--set", "webhook.enabled=false")
	if err = s.probe(); err != nil {
		s.Errorf("a pod with the network of its node, without the webhook: %v", err)
	}
	if !host.Within(time.Minute, func() bool { return len(s.pods(policyd)) == 0 }) {
		s.Errorf("%d pods of the webhook run after it was removed", len(s.pods(policyd)))
	}
}

// probe creates a pod that the policy denies, without an effect.
func (s *site) probe() error {
	p := fleet.Pod("", "probe", s.older.image)
	p.Spec.HostNetwork = true
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := s.fleet.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(s.Context(), p, options)
	return err
}
