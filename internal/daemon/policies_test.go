package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	noHostNetwork = "spec: {spec: {securityContext: {hostNetwork: {require: false}}}}\n"
	neverSeen     = "spec: {spec: {dnsPolicy: {whitelist: [Default]}}}\n"
	devOnly       = "binding: {mode: Accept, namespaceSelector: {matchLabels: {tier: dev}}}\nspec: {}\n"
)

// A LogText is what was logged or printed. It can be read while it is written.
type LogText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LogText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *LogText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A policyTest is a policy folder and what the daemon makes of it.
type policyTest struct {
	*testing.T
	dir     string
	log     LogText
	metrics *metrics.Metrics
	options Options
	*policies
}

func newPolicyTest(t *testing.T, specs ...string) *policyTest {
	t.Helper()
	p := &policyTest{T: t, dir: filepath.Join(t.TempDir(), "policies"), metrics: metrics.New("v1", "go1", nil)}
	testkit.Must(t, os.Mkdir(p.dir, 0o755))
	for i, spec := range specs {
		p.put(fmt.Sprintf("p%d", i), spec)
	}
	p.options = Options{
		Config: config.Default(),
		Log:    textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&p.log))),
	}
	p.options.Config.Admission.Policies = p.dir
	return p
}

// put writes a policy.
func (p *policyTest) put(name, spec string) {
	p.Helper()
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\n%s", restriction.APIVersion, restriction.Kind,
		name, spec)
	testkit.Must(p.T, os.WriteFile(filepath.Join(p.dir, name+".yaml"), []byte(text), 0o644))
}

func (p *policyTest) open() {
	p.Helper()
	opened, err := openPolicies(p.options, p.metrics, nil)
	testkit.Must(p.T, err)
	p.policies = opened
	p.Cleanup(func() { testkit.Must(p.T, opened.close()) })
}

// change reloads with another configuration.
func (p *policyTest) change(f func(c *config.Admission)) {
	p.Helper()
	c := p.config
	f(&c)
	p.reload(config.Config{Admission: c})
}

// denies asks the chain about a pod on the network of the node.
func (p *policyTest) denies(when string, want bool) {
	p.Helper()
	pod := admission.Pod{
		UID: "uid", Namespace: "team", Name: "app", HostNetwork: admission.Set(true),
		NamespaceLabels: p.labels("team"),
	}
	if d := p.chain.Evaluate(p.Context(), admission.Subject{
		Stage: admission.StageSandbox,
		Pod:   pod,
	}); d.Admitted() == want {
		p.Errorf("%s: %+v; want a denial: %v", when, d, want)
	}
}

func (p *policyTest) labels(namespace string) admission.Value[map[string]string] {
	if p.set != nil && p.set.NamespaceLabels[namespace] != nil {
		return admission.Set(p.set.NamespaceLabels[namespace])
	}
	return admission.Value[map[string]string]{}
}

// page has the metrics of policies.
func (p *policyTest) page() string {
	answer := httptest.NewRecorder()
	p.metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

func (p *policyTest) shows(when string, lines ...string) {
	p.Helper()
	for _, line := range lines {
		if !strings.Contains(p.page(), "\n"+line+"\n") {
			p.Errorf("%s: no metric %s", when, line)
		}
	}
}

func (p *policyTest) says(when string, times int, text string) {
	p.Helper()
	if n := strings.Count(p.log.String(), text); n != times {
		p.Errorf("%s: the log has %q %d times; want %d:\n%s", when, text, n, times, &p.log)
	}
}

// A start and a reload compare admission.kubeletRoot with the kubelet of the node, or with the directory if there is
// none.
func TestPoliciesCompareTheDirectoryOfTheKubelet(t *testing.T) {
	root := t.TempDir()
	testkit.Must(t, os.Mkdir(root+"/pods", 0o700), os.WriteFile(filepath.Join(root, "kubelet.service"),
		[]byte("[Service]\nExecStart=/usr/bin/kubelet --root-dir=/data/kubelet\n"), 0o600))
	unit := "Id=kubelet.service\nLoadState=loaded\nActiveState=active\nFragmentPath=/kubelet.service\n"
	const other = "admission.kubeletRoot is /var/lib/kubelet, and the kubelet's --root-dir is /data/kubelet"
	for name, tc := range map[string]struct {
		host doctor.Host
		root string
		want string
	}{
		"another root directory": {doctor.Host{Root: root, Command: systemctl(unit)}, "/var/lib/kubelet", other},
		"its root directory":     {doctor.Host{Root: root, Command: systemctl(unit)}, "/data/kubelet", ""},
		"no kubelet": {
			doctor.Host{Root: root, Command: systemctl("")},
			root + "/absent",
			"admission.kubeletRoot: " + root + "/absent/pods not found",
		},
		"no kubelet, its pods": {doctor.Host{Root: root, Command: systemctl("")}, root, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolicyTest(t, noHostNetwork)
			p.open()
			p.change(func(c *config.Admission) { c.KubeletRoot = tc.root })
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); p.compareKubelet(ctx, tc.host) }()
			for range 2 { // the second value is received when the first one has been compared
				for end := time.Now().Add(20 * time.Second); len(p.kubelet) > 0; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("admission.kubeletRoot is not compared")
					}
				}
				p.change(func(*config.Admission) {})
			}
			logged := strings.Count(p.log.String(), "Volumes of pods may be evaluated as hostPath")
			if (logged > 0) != (tc.want != "") || !strings.Contains(p.log.String(), tc.want) {
				t.Errorf("the log is %s; want %q", &p.log, tc.want)
			}
			stop()
			<-done
		})
	}
}

// systemctl returns a systemctl that shows one unit, and fails if there is none.
func systemctl(unit string) func(context.Context, string, ...string) ([]byte, error) {
	return func(_ context.Context, _ string, args ...string) ([]byte, error) {
		var blocks []string
		for _, name := range args {
			switch {
			case unit == "":
				return nil, errors.New("no systemd")
			case name == "kubelet.service":
				blocks = append(blocks, unit)
			case strings.HasSuffix(name, ".service"):
				blocks = append(blocks, "Id="+name+"\nLoadState=not-found\n")
			}
		}
		return []byte(strings.Join(blocks, "\n")), nil
	}
}

func TestNoPoliciesLeaveNoTrace(t *testing.T) {
	p := newPolicyTest(t)
	p.options.Config.Admission.Policies = ""
	p.options.Config.Admission.NamespaceLabels = "/absent"
	p.open()
	p.poll()
	p.change(func(c *config.Admission) { c.Enforce = false })
	if p.chain != nil || p.log.String() != "" || strings.Contains(p.page(), "pullgate_admission_") {
		t.Errorf("chain %v, log %q; want nothing", p.chain, &p.log)
	}
}

func TestPoliciesFollowTheConfiguration(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork, neverSeen)
	p.open()
	p.denies("at the start", true)
	p.shows("at the start", `pullgate_admission_policies{kind="PodRestriction"} 2`, "pullgate_admission_unjudged_fields 1",
		"pullgate_admission_last_reload_success 1")
	p.says("at the start", 1, `"Policies read" logger="policies" policies="`+p.dir+`" restrictions=2 hash="`)
	p.says("at the start", 1,
		`"Policy restricts a field that this node never sees" logger="policies" policy="p1" `+
			`field="spec.spec.dnsPolicy" unjudged="Ignore"`)
	chain := p.chain
	p.change(func(c *config.Admission) { c.Enforce = false })
	p.denies("enforce: false", false)
	p.change(func(c *config.Admission) { c.Enforce = true })
	p.denies("enforce: true", true)
	p.change(func(c *config.Admission) { c.Exempt.Namespaces = []string{"team"} })
	p.denies("exempt", false)
	p.change(func(c *config.Admission) { c.Exempt.Namespaces = nil })
	p.denies("not exempt", true)
	testkit.Must(t, os.Remove(p.dir+"/p0.yaml"))
	p.change(func(*config.Admission) {})
	p.denies("an allowed field that is never seen", false)
	p.change(func(c *config.Admission) { c.Unjudged = config.UnjudgedRefuse })
	p.denies("unjudged: Refuse", true)
	if p.chain != chain {
		t.Error("a reload makes another chain, which does not know the started containers")
	}
	p.change(func(c *config.Admission) { c.Policies = "" })
	p.denies("no policies", false)
	p.says("no policies", 1, "Policies disabled")
	if p.chain != nil || strings.Contains(p.page(), "pullgate_admission_policies{") {
		t.Error("the chain or its metrics are still there")
	}
	p.change(func(c *config.Admission) { c.Policies = p.dir })
	p.denies("policies again", true)
}

// Shows: 004-33
func TestTheLastValidPoliciesStay(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork)
	p.open()
	p.put("wrong", "spek: {}\n")
	p.poll()
	p.denies("seen once", true)
	p.shows("seen once", "pullgate_admission_last_reload_success 1")
	p.poll()
	p.poll()
	p.denies("invalid", true)
	p.shows("invalid", "pullgate_admission_last_reload_success 0", `pullgate_admission_policies{kind="PodRestriction"} 1`)
	p.says("invalid", 1, "Failed to read the policies: the previous ones stay in use")
	p.change(func(c *config.Admission) { c.Enforce = false })
	p.denies("a setting changes", false)
	p.says("a reload", 2, "Failed to read the policies: the previous ones stay in use")
	p.change(func(c *config.Admission) { c.Enforce, c.Policies = true, p.dir+"-absent" })
	p.denies("the folder is absent", true)
	p.change(func(c *config.Admission) { c.Policies = p.dir })
	testkit.Must(t, os.Remove(p.dir+"/wrong.yaml"))
	p.put("p0", "spec: {}\n")
	p.poll()
	p.poll()
	p.denies("valid again", false)
	p.shows("valid again", "pullgate_admission_last_reload_success 1")
	testkit.Must(t, os.Rename(p.dir, p.dir+"-moved"))
	p.poll()
	p.poll()
	if p.set.Len(restriction.Kind) != 1 {
		t.Error("policies are lost with their folder")
	}
}

func TestInvalidPoliciesAreNotSwitchedOn(t *testing.T) {
	p := newPolicyTest(t, "spek: {}\n")
	p.options.Config.Admission.Policies = ""
	p.open()
	p.change(func(c *config.Admission) { c.Policies = p.dir })
	p.denies("invalid", false)
	p.shows("invalid", "pullgate_admission_last_reload_success 0")
	p.put("p0", noHostNetwork)
	p.poll()
	p.poll()
	p.denies("valid", true)
	p.shows("valid", "pullgate_admission_last_reload_success 1")
}

func TestNamespaceLabelsAreReadWithThePolicies(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork, devOnly)
	p.open()
	p.denies("labels are not known", true)
	p.shows("labels are not known", "pullgate_admission_unjudged_fields 1")
	labels := filepath.Join(t.TempDir(), "namespaces.yaml")
	testkit.Must(t, os.WriteFile(labels, []byte("team: {tier: prod}\n"), 0o600))
	p.change(func(c *config.Admission) { c.NamespaceLabels = labels })
	p.denies("other labels", true)
	p.shows("labels are known", "pullgate_admission_unjudged_fields 0")
	testkit.Must(t, os.WriteFile(labels, []byte("team: {tier: dev}\n"), 0o600))
	p.poll()
	p.poll()
	p.denies("bound by labels", false)
	testkit.Must(t, os.WriteFile(labels, []byte("team: [dev]\n"), 0o600))
	p.poll()
	p.poll()
	p.denies("an invalid file", false)
	p.says("an invalid file", 1, labels+": [team]: Invalid type: array")
}

// Files that are written at the moment are not used before they have settled, however many calls wait for them, and are
// read a few times only.
func TestFollowedFilesHaveSettled(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork)
	p.open()
	before := policyfiles.VersionOf(p.set)
	p.put("p1", noHostNetwork)
	begun := time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			read := p.followed(t.Context(), before)
			if took := time.Since(begun); !read || took < settleTime || took > time.Minute {
				t.Errorf("followed after %v; want %v", took, settleTime)
			}
		})
	}
	all.Wait()
	if policyfiles.VersionOf(p.set) == before {
		t.Error("the new files are not in use")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if p.followed(ended, policyfiles.VersionOf(p.set)) {
		t.Error("a call that has ended was answered")
	}
}

func TestAPanicOfAValidatorIsLoggedAndCounted(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork)
	p.open()
	p.chain.Set(admission.Rules{Validators: []admission.Named{{Name: "broken"}}})
	p.denies("a validator panics", true)
	p.shows("a validator panics", "pullgate_panics_total 1")
	p.says("a validator panics", 1, "A validator of policies panicked, the container is denied")
}

func TestPoliciesAreListed(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork, neverSeen, devOnly)
	p.open()
	l := p.list()
	if l.GetFolder() != p.dir || l.GetHash() == "" || l.GetReloadError() != "" || !l.GetEnforcing() ||
		l.GetRefuseUnjudged() {
		t.Errorf("list = %+v", l)
	}
	want := &adminv1.ListPoliciesResponse{Policies: []*adminv1.Policy{
		{Kind: "PodRestriction", Name: "p0", Mode: "Drop", AllNamespaces: true},
		{Kind: "PodRestriction", Name: "p1", Mode: "Drop", AllNamespaces: true, Unjudged: []string{"spec.spec.dnsPolicy"}},
		{
			Kind: "PodRestriction", Name: "p2", Mode: "Accept", NamespaceSelector: "tier=dev",
			Unjudged: []string{"binding.namespaceSelector"},
		},
	}}
	if !proto.Equal(&adminv1.ListPoliciesResponse{Policies: l.GetPolicies()}, want) {
		t.Errorf("list has %v; want %v", l.GetPolicies(), want)
	}
	p.put("p1", "spek: {}\n")
	p.change(func(c *config.Admission) { c.Enforce, c.Unjudged = false, config.UnjudgedRefuse })
	if l := p.list(); !strings.Contains(l.GetReloadError(), "p1.yaml: spek: unknown field") || l.GetEnforcing() ||
		!l.GetRefuseUnjudged() || len(l.GetPolicies()) != 3 {
		t.Errorf("after an invalid change: %+v", l)
	}
	p.change(func(c *config.Admission) { c.Policies = "" })
	if l := p.list(); l.GetFolder() != "" || len(l.GetPolicies()) != 0 {
		t.Errorf("without policies: %+v", l)
	}
	p.change(func(c *config.Admission) { c.Policies = p.dir })
	if l := p.list(); l.GetFolder() != p.dir || l.GetReloadError() == "" || len(l.GetPolicies()) != 0 {
		t.Errorf("switched on with an invalid file: %+v", l)
	}
}
