package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

func (p *process) decisionLog() string { return "decisionLog: {path: " + p.path("decisions.log") + "}" }

// hup sends SIGHUP and waits until the log contains a text once more.
func (p *process) hup(message string) {
	p.t.Helper()
	before := strings.Count(p.out.String(), message)
	testkit.Must(p.t, p.cmd.Process.Signal(syscall.SIGHUP))
	eventually(p.t, message, func() bool { return strings.Count(p.out.String(), message) > before })
}

// decisions reads the decision log and its rotated files.
func (p *process) decisions() (all []map[string]any) {
	p.t.Helper()
	files, err := filepath.Glob(p.path("decisions.log*"))
	testkit.Must(p.t, err)
	for _, path := range files {
		text, err := os.ReadFile(path)
		testkit.Must(p.t, err)
		for line := range strings.Lines(string(text)) {
			var object map[string]any
			if err := json.Unmarshal([]byte(line), &object); err != nil {
				p.t.Fatalf("%s: line %q: %v", path, line, err)
			}
			all = append(all, object)
		}
	}
	return all
}

const (
	reloaded    = "Configuration reloaded"
	notReloaded = "Failed to reload the configuration: the previous one stays in use"
)

func TestSIGHUPChangesVerdictsAndABadFileDoesNot(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
	p := prepare(t, r.Endpoint())
	p.start()
	k := p.kubelet()
	sees := func(when, namespace, want string) {
		t.Helper()
		if got := k.Precheck(k.Pod(namespace), pre); got != want {
			t.Errorf("%s: pre-check of %s = %q; want %q", when, namespace, got, want)
		}
	}
	sees("at the start", "alice", id2)
	holder := k.Pod("holder")
	k.Precheck(holder, pre)

	const always = "imagePullCredentialsVerificationPolicy: AlwaysVerify"
	p.configure(always)
	p.hup(reloaded)
	sees("AlwaysVerify", "alice", "")
	prechecked(t, k, "pre-check of a pod with a grant", holder, pre, id2) // the grant stands
	read := p.metric("pullgate_config_last_reload_success_timestamp_seconds")
	if now := float64(time.Now().Unix()); read < now-100 || read > now+1 ||
		p.metric("pullgate_config_last_reload_success") != 1 {
		t.Errorf("configuration read at %v, success %v; want now, 1", read, p.metric("pullgate_config_last_reload_success"))
	}

	p.configure("imagePullCredentialsVerificationPolicy: NeverVerify", "exempt: {namespaces: [Alice]}", "listn: x")
	p.hup(notReloaded)
	sees("a bad file", "alice", "")
	logged := ""
	for line := range strings.Lines(p.out.String()) {
		if strings.Contains(line, notReloaded) {
			logged = line
		}
	}
	for _, wrong := range []string{"listn: unknown field", `exempt.namespaces[0]`, "; "} {
		if !strings.Contains(logged, wrong) {
			t.Errorf("line %q; want it to contain %s", logged, wrong)
		}
	}
	if p.metric("pullgate_config_last_reload_success") != 0 ||
		p.metric("pullgate_config_last_reload_success_timestamp_seconds") != read {
		t.Error("the metrics do not show that the last reading failed, and that the previous configuration is in use")
	}

	testkit.Must(t, os.WriteFile(p.path("config.yaml"), []byte("# an incomplete write\n"), 0o600))
	p.hup(notReloaded)
	sees("a file without fields", "alice", "")

	testkit.Must(t, os.Remove(p.path("config.yaml")))
	p.hup(notReloaded)
	sees("no file", "alice", "")

	p.configure(always, "exempt: {namespaces: [alice]}", "noPullImageSecretRecheck: true", "untrackedImages: Verify")
	p.hup("Configuration changed in fields that need a restart")
	if out := p.out.String(); !strings.Contains(out, `needARestart=["noPullImageSecretRecheck","untrackedImages"]`) {
		t.Errorf("log %s\nwant it to name the two fields", out)
	}
	sees("exempt", "alice", id2)
	sees("exempt", "bob", "") // shadow mode needs a restart
	p.stop()
}

func TestSIGHUPReadsTheKubeletsFileAgain(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
	p := prepare(t, r.Endpoint())
	theirs := func(policy string) {
		t.Helper()
		text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: " +
			"KubeletConfiguration\nimagePullCredentialsVerificationPolicy: " + policy + "\n"
		testkit.Must(t, os.WriteFile(p.path("kubelet.yaml"), []byte(text), 0o600))
	}
	theirs("AlwaysVerify")
	p.configure("kubeletConfig: " + p.path("kubelet.yaml"))
	p.start()
	k := p.kubelet()
	for _, step := range []struct{ policy, message, want string }{
		{"NeverVerify", reloaded, id2}, {"Sometimes", notReloaded, id2}, {"AlwaysVerify", reloaded, ""},
	} {
		theirs(step.policy)
		p.hup(step.message)
		if got := k.Precheck(k.Pod("alice"), pre); got != step.want {
			t.Errorf("%s: pre-check = %q; want %q", step.policy, got, step.want)
		}
	}
}

// A daemon that waits for its store has not started yet.
func TestSIGHUPBeforeTheDaemonIsReadyIsAppliedLater(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	p.stop()
	db, err := bolt.Open(p.path("state/records.db"), 0o600, nil) // holds the lock
	testkit.Must(t, err)
	p.spawn()
	eventually(t, "pullgated to open its store", func() bool { return p.hasOpen(p.path("state/records.db")) })
	err = p.cmd.Process.Signal(syscall.SIGHUP)
	testkit.Must(t, errors.Join(err, db.Close()))
	if !p.ready() {
		t.Fatalf("SIGHUP before it was up ended pullgated:\n%s", p.out)
	}
	eventually(t, reloaded, func() bool { return strings.Contains(p.out.String(), reloaded) })
}

// hasOpen reports whether the process has a file open.
func (p *process) hasOpen(path string) bool {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	testkit.Must(p.t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			return true
		}
	}
	return false
}

func TestDecisionLogOverRotations(t *testing.T) {
	const canary = "cAnary-Of-The-Log"
	r := criproxytest.NewRuntime(t)
	p := prepare(t, r.Endpoint())
	p.configure("kubeletSkipsAlwaysPrecheck: true", p.decisionLog())
	serves(r, app, canary, id1)
	p.start("-v", "10")
	if info, err := os.Stat(p.path("decisions.log")); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	k := p.kubelet()
	const turns = 10
	for turn := range turns {
		x := k.Pod(fmt.Sprintf("tenant%d", turn))
		k.Precheck(x, app) // absent, then hidden
		k.MustPull(x, app, canary)
		if _, err := k.Pull(t.Context(), x, app, "wrong"+canary); err == nil {
			t.Fatal("a wrong credential pulls")
		}
		testkit.Must(t, os.Rename(p.path("decisions.log"), fmt.Sprintf("%s.%d", p.path("decisions.log"), turn)))
		p.hup(reloaded)
	}
	p.stop()
	got := map[string]int{}
	for _, d := range p.decisions() {
		outcome, _ := d["outcome"].(string)
		got[fmt.Sprintf("%s %s %s", d["call"], d["verdict"], outcome)]++
		if d["repository"] != "repo.test/team/app" || d["image"] != app || d["dropped"] != nil {
			t.Errorf("decision %v; want its image and repository, and none missing", d)
		}
	}
	// A pull with a wrong credential is decided only if a pre-check was hidden.
	for what, want := range map[string]int{
		"PullImage Allow verified": 1, "PullImage Allow ": turns - 1, "ImageStatus Reverify ": turns - 1,
		"PullImage Reverify denied": turns,
	} {
		if got[what] != want {
			t.Errorf("%d decisions %q; want %d; all: %v", got[what], what, want, got)
		}
	}
	files, err := filepath.Glob(p.path("decisions.log*"))
	if err != nil || len(files) != turns+1 {
		t.Errorf("files %v, %v; want one for each rotation and the last", files, err)
	}
	for _, path := range files {
		if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), canary) {
			t.Errorf("%s: %v, or it holds a credential", path, err)
		}
	}
	if strings.Contains(p.out.String(), canary) {
		t.Error("the log of pullgated holds a credential")
	}
}

// Decisions continue while their log cannot be written; the missing ones are counted and logged.
func TestDecisionsContinueWithoutTheLog(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	p := prepare(t, r.Endpoint())
	dir := p.path("log")
	testkit.Must(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "decisions.log")
	p.configure("decisionLog: {path: " + path + "}")
	serves(r, app, "good", id1)
	p.start()
	k := p.kubelet()
	testkit.Must(t, os.RemoveAll(dir))
	for i := range 3 {
		if _, err := k.Pull(t.Context(), k.Pod(fmt.Sprintf("tenant%d", i)), app, "good"); err != nil {
			t.Errorf("pull = %v; want nil", err)
		}
	}
	p.until("pullgate_decisions_dropped_total", 3)
	if n := strings.Count(p.out.String(), "Failed to write the decision log: it lacks decisions"); n != 1 {
		t.Errorf("logged %d times that the log is not written; want once", n)
	}
	p.hup("Failed to reopen the decision log: still writing to the old file")
	testkit.Must(t, os.Mkdir(dir, 0o700))
	if _, err := k.Pull(t.Context(), k.Pod("last"), app, "good"); err != nil {
		t.Errorf("pull = %v; want nil", err)
	}
	p.stop()
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), `"dropped":3`) {
		t.Errorf("decision log %q, %v; want one line that counts 3 missing ones", text, err)
	}
}

// Shows: 000-37, 004-33
func TestPoliciesAreReadOnSIGHUPAndWhenTheyChange(t *testing.T) {
	t.Parallel()
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	page, err := p.get("/metrics")
	if err != nil || strings.Contains(page, "pullgate_admission_") || strings.Contains(p.out.String(), "olicies") {
		t.Errorf("without policies there are metrics or log lines of them, or %v:\n%s", err, p.out)
	}
	dir := newPolicyFolder(t)
	p.configure("admission: {policies: " + dir + "}")
	p.hup("Policies read")
	p.until(`pullgate_admission_policies{kind="PodRestriction"}`, 1)
	hash := regexp.MustCompile(`"Policies read".* hash="(\w+)"`).FindStringSubmatch(p.out.String())
	if hash == nil {
		t.Fatalf("no hash of the policies in\n%s", p.out)
	}
	info := func(hash, policy string) string {
		return fmt.Sprintf(`pullgate_config_info{mode="enforce",policies_hash=%q,policy=%q}`, hash, policy)
	}
	p.until(info(hash[1], "NeverVerifyPreloadedImages"), 1)
	p.until("pullgate_admission_enforcing", 1)
	k := p.kubelet()
	pod := k.PodFrom("team", "api")
	pod.Config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
	}}
	if err := k.Sandbox(t.Context(), pod); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), "policy baseline: spec.spec.securityContext.hostNetwork") {
		t.Errorf("sandbox with the host network = %v; want it denied by the policy", err)
	}
	wrong := filepath.Join(dir, "wrong.yaml")
	testkit.Must(t, os.WriteFile(wrong, []byte("kind: PodRestriction\n"), 0o644))
	p.until("pullgate_admission_last_reload_success", 0) // without a signal
	p.hup("Failed to read the policies: the previous ones stay in use")
	testkit.Must(t, os.Remove(wrong))
	p.hup("Policies read")
	p.until("pullgate_admission_last_reload_success", 1)
	p.configure("imagePullCredentialsVerificationPolicy: AlwaysVerify", "admission: {enforce: false, policies: "+dir+"}")
	p.hup("Policies read")
	p.until(info(hash[1], "AlwaysVerify"), 1)
	p.until("pullgate_admission_enforcing", 0)
	p.configure()
	p.hup("Policies disabled")
	p.until(info("", "NeverVerifyPreloadedImages"), 1)
	if err := k.Sandbox(t.Context(), pod); err != nil {
		t.Errorf("sandbox with the host network without policies = %v; want it", err)
	}
	p.stop()
}
