package daemon_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

const (
	other      = "repo.test/other/app:1"
	nodeToken  = "n0de-cAnary-0ne"
	nodeToken2 = "n0de-cAnary-tw0"
)

// A node is a daemon with a registry that accepts every password that begins with "n0de" or "tenant".
type node struct {
	*process
	runtime *criproxytest.Runtime
	file    string // the node's docker configuration
	k       *criproxytest.Kubelet
}

func newNode(t *testing.T, settings ...string) *node {
	t.Helper()
	r := criproxytest.NewRuntime(t)
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if p := auth.GetPassword(); !strings.HasPrefix(p, "n0de") && !strings.HasPrefix(p, "tenant") {
				return criproxytest.Image{}, criproxytest.Denied(name)
			}
			return criproxytest.Image{ID: map[string]string{app: id1, other: id2}[name], Names: []string{name}}, nil
		}
	})
	p := prepare(t, r.Endpoint())
	n := &node{process: p, runtime: r, file: p.path("config.json")}
	p.configure(append(settings, "kubeletSkipsAlwaysPrecheck: true", "nodeCredentials: {dockerConfigFiles: ["+n.file+"]}",
		p.decisionLog())...)
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.process.start("-v", "10")
	n.k = n.process.kubelet()
}

// offers replaces the node's docker configuration by a rename, as kubelets and cloud agents do.
func (n *node) offers(repository, password string) {
	n.t.Helper()
	content := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, repository,
		base64.StdEncoding.EncodeToString([]byte("tenant:"+password)))
	testkit.Must(n.t, os.WriteFile(n.file+".new", []byte(content), 0o600))
	testkit.Must(n.t, os.Rename(n.file+".new", n.file))
}

// wantLog waits until the log contains a text the given number of times.
func (n *node) wantLog(text string, times int) {
	n.t.Helper()
	eventually(n.t, text, func() bool { return strings.Count(n.out.String(), text) >= times })
}

// pulled makes a new pod of a namespace pull with a password.
func (n *node) pulled(namespace, image, password string) {
	n.t.Helper()
	if _, err := n.k.Pull(n.t.Context(), n.k.Pod(namespace), image, password); err != nil {
		n.t.Fatalf("%s pulls %s: %v", namespace, image, err)
	}
}

// runs reports whether a new pod may run an image without showing a credential for it.
func (n *node) runs(namespace, image string, want bool) {
	n.t.Helper()
	before := n.runtime.Calls("PullImage")
	if got := n.k.Precheck(n.k.Pod(namespace), image) != ""; got != want || n.runtime.Calls("PullImage") != before {
		n.t.Errorf("%s may run %s: %v; want %v, and no registry asked", namespace, image, got, want)
	}
}

// provide runs the built credential provider around one that returns a password, and returns its output.
func (n *node) provide(password, request string) (stdout, stderr string) {
	n.t.Helper()
	bin := pullgated(n.t)
	answer := `{"kind":"CredentialProviderResponse",` + apiVersion + `,"cacheDuration":"1h",` +
		`"auth":{"*.test/team":{"username":"tenant","password":"` + password + `"}}}`
	cmd := exec.Command(bin, "credential-provider", "--socket", n.path("run/admin.sock"), "--state-dir", n.path("state"),
		"--", "printf", "%s", answer)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(request), &out, &errs
	if err := cmd.Run(); err != nil || out.String() != answer {
		n.t.Fatalf("credential-provider = %q, %v, %s; want the plugin's answer", &out, err, &errs)
	}
	return out.String(), errs.String()
}

const (
	apiVersion = `"apiVersion":"credentialprovider.kubelet.k8s.io/v1"`
	asks       = `{"kind":"CredentialProviderRequest",` + apiVersion + `,"image":"repo.test/team/app:1"}`
)

// leaksNothing searches everything that the daemon has written for secrets.
func (n *node) leaksNothing() {
	n.t.Helper()
	page, err := n.get("/metrics")
	testkit.Must(n.t, err)
	n.stop()
	written := map[string][]byte{"log": []byte(n.out.String()), "metrics": []byte(page)}
	err = filepath.WalkDir(n.path("state"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			written[path], err = os.ReadFile(path)
		}
		return err
	})
	if err == nil {
		written["decision log"], err = os.ReadFile(n.path("decisions.log"))
	}
	if err != nil || len(written) < 5 || len(written["decision log"]) == 0 {
		n.t.Fatalf("%d places were looked at, %v; want log, metrics, store, key and decision log", len(written), err)
	}
	for where, content := range written {
		for _, secret := range []string{nodeToken, nodeToken2} {
			for _, form := range formsOf(secret) {
				if bytes.Contains(content, []byte(form)) {
					n.t.Errorf("%s holds a credential as %s", where, form)
				}
			}
		}
	}
}

// Shows: 001-16
func TestNodesFileOpensAndRotationNeedsNoRegistry(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.offers("repo.test/team", nodeToken)
	n.start()
	n.pulled("alice", app, nodeToken)
	n.runs("bob", app, true)

	// The token is rotated. The registry is not needed, neither without a credential nor with the new one.
	n.offers("repo.test/team", nodeToken2)
	n.wantLog("Node credentials read", 2)
	n.runs("carol", app, true)
	before := n.runtime.Calls("PullImage")
	dave := n.k.Pod("dave")
	prechecked(t, n.k, "pre-check", dave, app, id1)
	if n.runtime.Calls("PullImage") != before {
		t.Error("the registry was asked after the rotation")
	}

	// Another repository, for which the file does not offer the token, and the old token: both are credentials of a pod.
	n.pulled("alice", other, nodeToken2)
	n.runs("bob", other, false)

	// The file and its credentials are gone; the images that it opened stay open.
	testkit.Must(t, os.Remove(n.file))
	n.wantLog("Node credentials absent", 1)
	n.runs("erin", app, true)
	n.leaksNothing()
}

func TestPodsOwnCredentialDoesNotOpen(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.offers("repo.test/team", nodeToken)
	n.start()
	n.pulled("alice", app, "tenant-alice")
	n.runs("bob", app, false)

	// A credential that the node once offered is now a pod's own as well.
	n.offers("repo.test/team", nodeToken2)
	n.wantLog("Node credentials read", 2)
	n.pulled("carol", app, nodeToken)
	n.runs("bob", app, false)
	n.pulled("dave", app, nodeToken2)
	n.runs("bob", app, true)
}

func TestReportedCredentialOpens(t *testing.T) {
	n := newNode(t)
	n.start()
	for path, want := range map[string]fs.FileMode{"run": 0o700 | fs.ModeDir, "run/admin.sock": 0o600 | fs.ModeSocket} {
		if info, err := os.Lstat(n.path(path)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info, err, want)
		}
	}
	// If it is bound to a service account that cannot be read, it is a pod's own.
	if _, stderr := n.provide(nodeToken2, asksFor("t")); !strings.Contains(stderr, "no valid claims") {
		t.Errorf("credential-provider prints %q; want why it is not reported", stderr)
	}
	n.pulled("alice", app, nodeToken2)
	n.runs("bob", app, false)

	if _, stderr := n.provide(nodeToken, asks); stderr != "" {
		t.Errorf("credential-provider prints %q; want nothing", stderr)
	}
	n.wantLog("Node credentials reported", 1)
	n.pulled("alice", other, nodeToken) // it is not for this repository
	n.runs("bob", other, false)
	n.pulled("carol", app, nodeToken)
	n.runs("bob", app, true)
	n.leaksNothing()
}

// asksFor is a request with a service account token.
func asksFor(token string) string {
	return strings.Replace(asks, `"image"`, `"serviceAccountToken":"`+token+`","image"`, 1)
}

// accountToken returns a service account token of team-a with a name and a UID.
func accountToken(name, uid string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"system:serviceaccount:team-a:`+name+
		`","kubernetes.io":{"namespace":"team-a","serviceaccount":{"name":"`+name+`","uid":"`+uid+`"}}}`)) + "." + nodeToken2
}

// Without a pod source: the kubelet pulls for each pod, and a rotated token needs no registry.
// Shows: 001-18
func TestCredentialOfAServiceAccountProvesForIt(t *testing.T) {
	n := newNode(t)
	n.start()
	pull := func(namespace, token string, asked int, ok bool, what string) {
		t.Helper()
		x, before := n.k.Pod(namespace), n.runtime.Calls("PullImage")
		n.k.Precheck(x, app)
		_, err := n.k.Pull(t.Context(), x, app, token)
		if got := n.runtime.Calls("PullImage") - before; got != asked || (err == nil) != ok {
			t.Errorf("%s: %v after %d pulls; want success: %v, after %d", what, err, got, ok, asked)
		}
	}
	give := func(token, account, uid string) {
		t.Helper()
		if _, stderr := n.provide(token, asksFor(accountToken(account, uid))); stderr != "" {
			t.Errorf("credential-provider prints %q; want nothing", stderr)
		}
	}
	give(nodeToken, "builder", "u-1")
	n.wantLog("Credentials of a service account reported", 1)
	pull("team-a", nodeToken, 1, true, "the first pod")
	n.runs("team-b", app, false)
	give("ended", "builder", "u-1")
	pull("team-a", "ended", 0, true, "a rotated token")
	pull("team-b", "ended", 1, false, "the token in another namespace")
	give("ended-too", "builder", "u-2")
	pull("team-a", "ended-too", 1, false, "the recreated account")

	n.stop()
	n.start()
	pull("team-a", "ended", 1, false, "a token that was reported before a restart")
	give("again", "builder", "u-1")
	pull("team-a", "again", 0, true, "a token that was reported after it")
	n.leaksNothing()
}

// The kubelet goes on with what it has in its cache.
func TestReportsSurviveARestart(t *testing.T) {
	for name, end := range map[string]func(n *node){"stop": (*node).stop, "kill": (*node).kill} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.start()
			n.provide(nodeToken, asks)
			n.pulled("alice", app, nodeToken)
			end(n)
			if _, stderr := n.provide(nodeToken, asks); !strings.Contains(stderr, "not reported") ||
				strings.Contains(stderr, nodeToken) {
				t.Errorf("credential-provider prints %q without the daemon; want the reason, and no credential", stderr)
			}
			n.start()
			n.runs("bob", app, true)
			n.runtime.SetImages()
			n.runtime.Do(func(r *criproxytest.Runtime) {
				r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
					return criproxytest.Image{ID: id2, Names: []string{name}}, nil
				}
			})
			n.pulled("carol", app, nodeToken)
			n.runs("bob", app, true)
			n.leaksNothing()
		})
	}
}

// namespaces writes the configuration with the namespaces of the node's credentials, "" for none.
func (n *node) namespaces(list string) {
	n.t.Helper()
	if list != "" {
		list = ", namespaces: " + list
	}
	n.configure("kubeletSkipsAlwaysPrecheck: true", "nodeCredentials: {dockerConfigFiles: ["+n.file+"]"+list+"}",
		n.decisionLog())
}

// wantPull makes a new pod of a namespace pull with a password.
func (n *node) wantPull(namespace, password, want string) {
	n.t.Helper()
	_, err := n.k.Pull(n.t.Context(), n.k.Pod(namespace), app, password)
	if got := status.Convert(err).Message(); want == "" && err != nil || !strings.Contains(got, want) {
		n.t.Errorf("%s pulls with %s: %v; want %q", namespace, password, err, want)
	}
}

func TestNodeCredentialsPerNamespace(t *testing.T) {
	const others = "pullgate: repository repo.test/team/app: the registry credentials of this node are for other " +
		"namespaces"
	n := newNode(t)
	n.offers("repo.test/team", nodeToken)
	n.start()
	n.pulled("alice", app, nodeToken)
	n.runs("bob", app, true)

	// A reload closes what is on the node, and opens it again.
	n.namespaces("[alice]")
	n.hup("Configuration reloaded")
	n.runs("alice", app, true)
	n.runs("bob", app, false)
	n.wantPull("bob", nodeToken, others)
	n.namespaces("[]")
	n.hup("Configuration reloaded")
	n.runs("alice", app, false)
	n.namespaces("")
	n.hup("Configuration reloaded")
	n.runs("bob", app, true)
	n.namespaces("[alice]")
	n.hup("Configuration reloaded")

	// The kubelet may have read the new file already, or still have the old token, also after a crash.
	n.offers("repo.test/team", nodeToken2)
	n.wantPull("bob", nodeToken2, others)
	n.wantPull("bob", nodeToken, others)
	n.kill()
	n.start()
	n.wantPull("bob", nodeToken, others)
	n.runs("bob", app, false)
	n.runs("alice", app, true)
	n.wantPull("alice", nodeToken2, "")

	// A pull without a credential opens it to all; this registry denies that.
	n.wantPull("bob", "", "401")
	n.wantPull("bob", "tenant-bob", "")
	n.stop()

	// What the node has offered is not known: then each credential may be the node's.
	saved := n.path("state/node-credentials.json")
	testkit.Must(t, os.Truncate(saved, 100))
	n.start()
	n.wantLog("Failed to read the node credentials of earlier runs", 1)
	n.wantPull("bob", "tenant-bob", others)
	n.wantPull("alice", nodeToken2, "")
	n.stop()
	testkit.Must(t, os.Remove(saved))
	n.start()
	n.wantPull("bob", "tenant-bob", "")
	n.leaksNothing()
}

// A credential that pullgated does not know would count as one of the pod that pulls with it.
func TestUnreportedAnswerIsWithheld(t *testing.T) {
	n := newNode(t)
	n.namespaces("[alice]")
	n.start()
	n.provide(nodeToken, asks)
	n.wantPull("bob", nodeToken, "for other namespaces")
	n.kill()
	cmd := exec.Command(pullgated(t), "credential-provider", "--socket", n.path("run/admin.sock"),
		"--state-dir", n.path("state"), "--", "echo", "{}")
	cmd.Stdin = strings.NewReader(asks)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || len(out) > 0 ||
		!strings.Contains(string(failed.Stderr), "is withheld from the kubelet") {
		t.Errorf("credential-provider = %q, %v; want nothing, and the reason", out, err)
	}
	n.start()
	n.wantPull("bob", nodeToken, "for other namespaces")
}

// The wrapper must know it before the kubelet can run it, and withhold nothing where nothing is enforced.
func TestReservedIsOnDiskAtOnce(t *testing.T) {
	n := newNode(t)
	saved := n.path("state/node-credentials.json")
	want := func(what string, want bool) {
		t.Helper()
		if got := nodecreds.Reserved(saved); got != want {
			t.Errorf("%s: Reserved = %v; want %v", what, got, want)
		}
	}
	n.namespaces("[alice]")
	n.start()
	want("at the start", true)
	n.configure("nodeCredentials: {namespaces: [alice]}", "imagePullCredentialsVerificationPolicy: NeverVerify")
	n.hup("Configuration reloaded")
	want("with NeverVerify", false)
	n.namespaces("[alice]")
	n.hup("Configuration reloaded")
	want("with the default policy again", true)
	n.stop()
	n.configure("nodeCredentials: {namespaces: [alice]}", "noPullImageSecretRecheck: true")
	n.start()
	want("in shadow mode", false)
}

// The kubelet kills a plugin that takes too long. The process that the plugin wraps must end with it.
func TestPluginEndsWithItsWrapper(t *testing.T) {
	bin := pullgated(t)
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "terminated": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			pid := filepath.Join(t.TempDir(), "pid")
			cmd := exec.Command(bin, "credential-provider", "--", "sh", "-c",
				`echo $$ >"$0".new; mv "$0".new "$0"; exec sleep 1000`, pid)
			testkit.Must(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			var plugin int
			eventually(t, "the plugin to start", func() bool {
				text, err := os.ReadFile(pid)
				if err == nil {
					_, err = fmt.Sscan(string(text), &plugin)
				}
				return err == nil
			})
			testkit.Must(t, cmd.Process.Signal(sig))
			_ = cmd.Wait()
			eventually(t, "the plugin to end", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", plugin))
				// the process has ended, but its parent has not waited for it yet
				return err != nil || bytes.Contains(stat, []byte(") Z "))
			})
			if code := cmd.ProcessState.ExitCode(); sig == syscall.SIGTERM && code != 128+int(syscall.SIGTERM) {
				t.Errorf("exit code %d; want that of the plugin, which the signal ended", code)
			}
		})
	}
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}
