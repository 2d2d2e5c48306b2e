package systemd_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

const (
	kubeconfig = "/var/lib/kubelet/kubeconfig"
	dropIn     = "/etc/systemd/system/pullgated.service.d/override.conf" // which systemctl edit writes
	// worker is a node, and its token.
	worker = "worker"
)

// The pod source has a kubeconfig that runs a program for its token, in the sandbox of pullgated.service, and a real
// API server checks the token.
func TestCredentialProgram(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startAPIServer()
	tokens := s.serveTokens()
	s.program("credentialprogram", "../credentialprogram")
	s.do("dpkg", "--install", packed+"/"+newer+".deb")
	s.write(conf, configuration+"podSource: {kubeconfig: "+kubeconfig+"}\n")
	s.write("/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
	s.do("systemctl", "daemon-reload")
	runs := func(args string) {
		s.write(kubeconfig, string(server.Kubeconfig("exec: {apiVersion: client.authentication.k8s.io/v1, "+
			"interactiveMode: Never, command: credentialprogram, args: ["+tokens+args+"], "+
			"env: [{name: CREDENTIALPROGRAM, value: 'a \"b\" $HOME \\ `c`'}]}")))
		s.do("systemctl", "restart", unit)
	}
	s.step("it works in the sandbox, and caches in its home directory", func() {
		runs("")
		s.synced()
		if !s.exists("/var/lib/pullgate/.kube/cache/credentialprogram") {
			s.Error("its cache is not in the directory of pullgated")
		}
	})
	s.step("the sandbox forbids two things, and doctor names the lines", func() {
		const cache = "/var/lib/kubelet/pki"
		s.must(os.MkdirAll(s.machine.Path(cache), 0o755))
		runs(", --run-time-code, --cache-dir, " + cache)
		advice := s.unsynced()
		want := []string{"ReadWritePaths=-" + cache, "MemoryDenyWriteExecute=no"}
		m := regexp.MustCompile(`and works with (\S+) and (\S+): add that with systemctl edit pullgated`).FindStringSubmatch(
			advice)
		if m == nil || m[1] != want[0] || m[2] != want[1] {
			s.Fatalf("doctor advises\n%s\nwant the lines %q", advice, want)
		}
		s.write(dropIn, "[Service]\n"+m[1]+"\n"+m[2]+"\n")
		s.do("systemctl", "daemon-reload")
		s.do("systemctl", "restart", unit)
		s.synced()
	})
	s.step("one that fails everywhere is not a matter of the sandbox", func() {
		runs(", --no-such-flag")
		s.wantPrinted(s.unsynced(), "which fails without the sandbox of the unit too: ")
	})
	s.step("nor is an API server that is down", func() {
		runs("")
		s.synced()
		s.must(server.StopAPI())
		s.wantPrinted(s.unsynced(), "which prints a credential in the sandbox of the unit")
	})
}

// program builds a program of this module for the machine.
func (s *site) program(name, folder string) {
	s.Helper()
	built := filepath.Join(s.TempDir(), name)
	out, err := host.Run(s.Context(), "env", "CGO_ENABLED=0", "go", "build", "-o", built, folder)
	if err != nil {
		s.Fatalf("build %s: %v\n%s", name, err, out)
	}
	s.must(os.WriteFile(s.machine.Path("/usr/bin/"+name), testkit.Value(os.ReadFile(built))(s), 0o755))
}

// startAPIServer starts an API server that the machine reaches by its own loopback.
func (s *site) startAPIServer() *cluster.Cluster {
	s.Helper()
	c := testkit.Value(cluster.Start(s.Context(), filepath.Join(s.node.Dir, "cluster"), release.Kubernetes137, worker))(s)
	host.AtEnd(s.T, c.Close)
	at := testkit.Value(url.Parse(c.Config(cluster.Administrator).Host))(s)
	s.forwardInto(at.Host)
	return c
}

// serveTokens serves the token of the node to the machine, and returns the URL.
func (s *site) serveTokens() string {
	s.Helper()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(s)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, worker)
	})}
	go func() { _ = server.Serve(l) }()
	s.Cleanup(func() { s.must(server.Close()) })
	s.forwardInto(l.Addr().String())
	return "http://" + l.Addr().String()
}

// forwardInto listens on an address of the machine, and forwards to the same address of the host.
func (s *site) forwardInto(address string) {
	s.Helper()
	inside := testkit.Value(s.machine.Listen(s.Context(), address))(s)
	go forward(inside, address)
	s.outer.Cleanup(func() { s.must(inside.Close()) })
}

func (s *site) synced() {
	s.Helper()
	out := ""
	if !host.Within(time.Minute, func() bool {
		out, _ = s.machine.Run(s.Context(), "pullgatectl", "status", "--output=json")
		return regexp.MustCompile(`"synced": *true`).MatchString(out)
	}) {
		s.Fatalf("the pod source does not sync:\n%s", out)
	}
}

// unsynced returns what doctor advises about a pod source that is not synced.
func (s *site) unsynced() (advice string) {
	s.Helper()
	s.until("doctor to find the pod source not synced", func() bool {
		// It fails, because no kubelet runs on the machine.
		out, _ := s.machine.Run(s.Context(), "pullgatectl", "doctor", "--output=json")
		if strings.Contains(out, "ExecCredential") {
			s.Errorf("doctor prints a credential:\n%s", out)
		}
		var printed struct {
			Findings []struct{ Found, Remediation string }
		}
		s.must(json.NewDecoder(strings.NewReader(out)).Decode(&printed)) // a hint is after it
		for _, f := range printed.Findings {
			if strings.HasPrefix(f.Found, "the pod source is not synced with the API server") {
				advice = f.Remediation
			}
		}
		return advice != ""
	})
	return advice
}
