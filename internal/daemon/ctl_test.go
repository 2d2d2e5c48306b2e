package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// A ctl is the built pullgatectl, with one daemon.
type ctl struct {
	t        *testing.T
	path     string
	endpoint string
	output   bytes.Buffer // everything that it printed
}

func newCtl(t *testing.T, p *process) *ctl {
	t.Helper()
	dir, err := others()
	testkit.Must(t, err)
	return &ctl{t: t, path: filepath.Join(dir, "pullgatectl"), endpoint: "unix://" + p.path("run/admin.sock")}
}

func (c *ctl) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Env = append(os.Environ(), "PULLGATECTL_ENDPOINT="+c.endpoint)
	return cmd
}

// run runs it and compares the exit code.
func (c *ctl) run(code int, args ...string) (stdout, stderr string) {
	c.t.Helper()
	return c.finish(code, c.command(c.t.Context(), args...))
}

func (c *ctl) finish(code int, cmd *exec.Cmd) (stdout, stderr string) {
	c.t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		c.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		c.t.Errorf("%v exits with %d; want %d\n%s%s", cmd.Args[1:], got, code, &out, &errs)
	}
	c.output.Write(out.Bytes())
	c.output.Write(errs.Bytes())
	return out.String(), errs.String()
}

// prints runs it and searches stdout for a text.
func (c *ctl) prints(code int, want string, args ...string) {
	c.t.Helper()
	if out, errs := c.run(code, args...); !strings.Contains(out, want) {
		c.t.Errorf("%v prints\n%s%s; want %q in it", args, out, errs, want)
	}
}

// The tasks of an operator, with the built programs: every command of pullgatectl that calls the daemon, and its effect
// on pods.
func TestPullgatectlShowsAndCorrects(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
	serves(r, app, canary, id1)
	policies := t.TempDir()
	policy := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: dns}\nbinding: " +
		"{namespaces: [carol]}\n" +
		"spec: {spec: {dnsPolicy: {whitelist: [Default]}}}\n"
	testkit.Must(t, os.WriteFile(filepath.Join(policies, "dns.yaml"), []byte(policy), 0o600))
	p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true", "admission: {policies: "+policies+"}")
	p.start()
	c, k := newCtl(t, p), p.kubelet()
	c.prints(0, "PodRestriction  dns   Drop  carol", "policy", "list")
	c.prints(0, "policy dns: spec.spec.dnsPolicy", "policy", "list")
	alice := k.Pod("alice")
	k.MustPull(alice, app, canary)

	c.prints(0, "Enforcing      yes", "status")
	c.prints(0, "listen: "+p.endpoint(), "status", "--config")
	c.prints(0, "repo.test/team/app", "images", "list")
	c.prints(0, "1 credential", "images", "list", "--repository", app)
	c.prints(0, "Preloaded for", "images", "get", pre)
	c.prints(0, alice.UID, "grants", "list", "--pod", "alice/"+alice.UID, "-o", "yaml")
	c.prints(0, `"intents": []`, "intents", "list", "-o", "json")
	c.prints(0, "may use "+app, "explain", app, "--pod", "alice/"+alice.UID)
	c.prints(4, "needs proof to use "+app, "explain", app, "--namespace", "bob")
	c.prints(0, "unknown", "pods") // without a pod source
	c.prints(0, "No entries.", "pods", "--denied")
	c.prints(1, "is not on this node", "explain", "repo.test/gone:1", "--namespace", "bob")
	c.run(1, "explain", app, "--pod", "bob/absent")
	c.prints(0, "valid", "store", "verify")
	if _, errs := c.run(1, "distrust", "end", "--yes"); !strings.Contains(errs, "not distrusted") {
		t.Errorf("distrust end prints %q", errs)
	}

	// The dry run changes nothing; the revocation ends the grant at once.
	c.prints(0, alice.UID, "revoke", "--repository", repositoryOf(app), "--dry-run")
	c.prints(0, "may use", "explain", app, "--pod-uid", alice.UID)
	c.run(2, "revoke", "--repository", repositoryOf(app))
	prechecked(t, k, "before the revocation the pre-check", alice, app, id1)
	c.prints(0, "Revoked 1 proof", "revoke", "--repository", repositoryOf(app), "--yes")
	c.prints(4, "needs proof", "explain", app, "--pod-uid", alice.UID)
	prechecked(t, k, "after the revocation the pre-check", alice, app, "")
	if _, errs := c.run(5, "revoke", "--repository", repositoryOf(app), "--yes"); !strings.Contains(errs,
		"no proof, open image or grant matches") {
		t.Errorf("a second revocation prints %q", errs)
	}

	// Marks: removed, and set again.
	c.prints(0, "repo.test/any/pre", "preloaded", "list")
	c.prints(0, "may use", "explain", pre, "--namespace", "bob")
	c.prints(0, "Forgot 1 mark", "preloaded", "forget", "--repository", repositoryOf(pre), "-y")
	c.prints(4, "needs proof", "explain", pre, "--namespace", "bob")
	c.prints(0, "Marked 1 pair", "preloaded", "accept", "--image-id", id2, "--repository", pre, "--yes")
	c.prints(0, "may use", "explain", pre, "--namespace", "bob")

	c.watches(k, alice)

	backup := p.path("backup.db")
	c.run(0, "store", "backup", backup)
	c.run(1, "store", "backup", backup)
	if info, err := os.Stat(backup); err != nil || info.Mode() != 0o600 || info.Size() == 0 {
		t.Errorf("the backup is %v, %v; want a file of mode 0600 with something in it", info, err)
	}

	if os.Getuid() == 0 {
		otherUser := c.command(t.Context(), "status")
		otherUser.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if _, errs := c.finish(3, otherUser); !strings.Contains(errs, "permission denied") ||
			!strings.Contains(errs, "run it as root") {
			t.Errorf("another user gets %q", errs)
		}
	}
	p.stop()
	if _, errs := c.run(3, "status"); !strings.Contains(errs, "systemctl status pullgated") {
		t.Errorf("without a daemon it prints %q", errs)
	}
	for _, form := range formsOf(canary) {
		if strings.Contains(c.output.String(), form) {
			t.Errorf("pullgatectl has printed a credential as %s", form)
		}
	}
}

// With a pod source pullgatectl lists who would be denied, in shadow mode and by a policy that only reports. Nothing
// changes by the question.
func TestPullgatectlListsPodsThatWouldBeDenied(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
	serves(r, app, canary, id1)
	policies := t.TempDir()
	file := filepath.Join(policies, "dns.yaml")
	policy := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: dns}\nbinding: " +
		"{namespaces: [source]}\n" +
		"spec: {spec: {dnsPolicy: {whitelist: [Default]}}}\n"
	testkit.Must(t, os.WriteFile(file, []byte(policy), 0o600))
	x := (&criproxytest.Kubelet{}).PodFrom("source", "api")
	api := newAPIServer(t, x, tableCase{Image: app})
	spec, ok := api.pod["spec"].(map[string]any)
	if !ok {
		t.Fatalf("the pod of the API server has no spec: %v", api.pod)
	}
	spec["dnsPolicy"] = "ClusterFirst"
	p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true", api.settings(), "noPullImageSecretRecheck: true",
		"admission: {enforce: false, policies: "+policies+"}")
	p.start()
	p.until("pullgate_pod_source_synced", 1)
	c, k := newCtl(t, p), p.kubelet()
	k.MustPull(k.Pod("alice"), app, canary)
	c.prints(4, "source/"+x.UID+"  main       "+app+"  denied by dns", "pods", "--denied")
	c.prints(4, "Policies are not enforced", "pods", "--denied")
	testkit.Must(t, os.Remove(file))
	p.hup(reloaded)
	c.prints(4, "source/"+x.UID+"  main       "+app+"  needs proof", "pods", "--denied")
	c.prints(4, "needs proof to use "+app, "explain", app, "--pod-uid", x.UID)
	c.prints(4, `"state": "needs proof"`, "pods", "--denied", "-o", "json")
	c.prints(4, "This node does not enforce", "pods", "--denied")
}

func TestPullgatectlEndsDistrust(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
	p := prepare(t, r.Endpoint())
	p.start()
	p.stop()
	testkit.Must(t, os.Remove(p.path("state/records.db")))
	p.start()
	c := newCtl(t, p)
	c.prints(0, "in distrust since", "status")
	c.prints(4, "needs proof", "explain", pre, "--namespace", "bob")
	c.prints(0, "repo.test/any/pre", "distrust", "end", "--dry-run")
	c.prints(4, "needs proof", "explain", pre, "--namespace", "bob")
	if _, errs := c.run(1, "preloaded", "accept", "--all-untracked", "--yes"); !strings.Contains(errs, "distrust") {
		t.Errorf("preloaded accept in distrust prints %q", errs)
	}
	if got := p.metric("pullgate_store_distrusted"); got != 1 {
		t.Errorf("pullgate_store_distrusted = %v in distrust; want 1", got)
	}
	c.prints(0, "Distrust has ended", "distrust", "end", "--yes")
	if got := p.metric("pullgate_store_distrusted"); got != 0 {
		t.Errorf("pullgate_store_distrusted = %v after the end of distrust; want 0", got)
	}
	c.prints(0, "may use", "explain", pre, "--namespace", "bob")
	if out, _ := c.run(0, "status"); strings.Contains(out, "distrust") {
		t.Errorf("after the end of distrust the status is\n%s", out)
	}
	p.stop()
}

// watches checks that a decision is printed during the watch.
func (c *ctl) watches(k *criproxytest.Kubelet, pod *criproxytest.Pod) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	watch := c.command(ctx, "watch", "--limit", "1", "--repository", app, "-o", "json")
	var out bytes.Buffer
	watch.Stdout = &out
	testkit.Must(c.t, watch.Start())
	done := make(chan error, 1)
	go func() { done <- watch.Wait() }()
	for ticks := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case err := <-done:
			ticks.Stop()
			var d struct {
				Call, Verdict, Image string
				Pod                  struct{ UID string }
			}
			if err := errors.Join(err, json.Unmarshal(out.Bytes(), &d)); err != nil || d.Verdict != "VERDICT_REVERIFY" ||
				d.Image != app || d.Pod.UID != pod.UID {
				c.t.Errorf("watch prints %s, %v; want the hidden pre-check", &out, err)
			}
			return
		case <-ticks.C:
			k.Precheck(pod, app)
		}
	}
}
