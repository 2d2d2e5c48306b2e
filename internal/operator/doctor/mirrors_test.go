package doctor_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

func TestMirrors(t *testing.T) {
	const hosts = "/etc/containerd/certs.d/docker.io/hosts.toml"
	const config = "/etc/containerd/config.toml"
	hostsFile := func(content string) func(*testNode) {
		return func(n *testNode) { n.file(hosts, 0o644, content) }
	}
	serve := func(address string, status int, then func(*testNode)) func(*testNode) {
		return func(n *testNode) { n.serve(address, status); then(n) }
	}
	const one = "server = \"https://registry-1.docker.io\"\n[host.\"https://mirror.test\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
	play(t, []row{
		{"requires credentials", serve("mirror.test:443", http.StatusUnauthorized, hostsFile(one)), "mirrors", doctor.OK, "the mirror https://mirror.test (" + hosts + ") requires credentials", ""},
		{"forbids", serve("mirror.test:443", http.StatusForbidden, hostsFile(one)), "mirrors", doctor.OK, "requires credentials", ""},
		{"requires no credentials", serve("mirror.test:443", http.StatusOK, hostsFile(one)), "mirrors", doctor.Warn, "serves requests without credentials", "private images"},
		{"answers with another status", serve("mirror.test:443", http.StatusBadGateway, hostsFile(one)), "mirrors", doctor.Unknown, "answers with status 502", "requires credentials"},
		{"redirects", serve("mirror.test:443", http.StatusFound, hostsFile(one)), "mirrors", doctor.Unknown, "answers with status 302", "requires credentials"},
		{"is unavailable", hostsFile(one), "mirrors", doctor.Unknown, "does not respond", "once it is available"},
		{"is not asked", func(n *testNode) { n.NoNetwork = true; hostsFile(one)(n) }, "mirrors", doctor.Unknown, "whether the mirror https://mirror.test", "--no-network"},
		{
			"with a path of its own", serve("mirror.test:80", http.StatusOK, hostsFile("[host.\"http://user:hunter2@mirror.test/v2/cache\"]\noverride_path = true\n")),
			"mirrors", doctor.Warn, "the mirror http://mirror.test/v2/cache (", "",
		},
		{"a server elsewhere", serve("other.test:443", http.StatusOK, hostsFile("server = \"https://other.test\"\n")), "mirrors", doctor.Warn, "https://other.test", ""},
		{"the registry itself", hostsFile("server = \"https://docker.io\"\n"), "mirrors", doctor.OK, "no mirror", ""},
		{"a credential in a header", hostsFile("server = \"https://docker.io\"\n[header]\n  authorization = \"Basic hunter2\"\n"), "mirrors", doctor.Warn, hosts + " gives the runtime credentials of its own", "pull secrets"},
		{"a file that cannot be read", hostsFile("server = "), "mirrors", doctor.Unknown, hosts + ": toml:", "correct the file"},
		{"version 2", serve("mirror.test:443", http.StatusOK, func(n *testNode) {
			n.file("/etc/hosts.d/docker.io/hosts.toml", 0o644, one)
			n.file(config, 0o644, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/hosts.d\"\n")
		}), "mirrors", doctor.Warn, "(/etc/hosts.d/docker.io/hosts.toml)", ""},
		{"version 3, two directories, imported", serve("mirror.test:443", http.StatusOK, func(n *testNode) {
			n.file("/etc/b/docker.io/hosts.toml", 0o644, one)
			n.file(config, 0o644, "version = 3\nimports = [\"conf.d/*.toml\"]\n")
			n.file("/etc/containerd/conf.d/1.toml", 0o644, "[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/etc/a:/etc/b'\n")
		}), "mirrors", doctor.Warn, "(/etc/b/docker.io/hosts.toml)", ""},
		{"the old way", serve("mirror.test:80", http.StatusOK, func(n *testNode) {
			n.file(config, 0o644, "[plugins.cri.registry.mirrors.\"docker.io\"]\n  endpoint = [\"http://mirror.test\"]\n")
		}), "mirrors", doctor.Warn, "(" + config + ")", ""},
		{"the runtime's own credentials", func(n *testNode) {
			n.file(config, 0o644, "[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"x.test\".auth]\n  password = \"hunter2\"\n")
		}, "mirrors", doctor.Warn, config + " gives the runtime credentials of its own", "pull secrets"},
		{"the file of the containerd that runs", serve("mirror.test:80", http.StatusOK, func(n *testNode) {
			n.process("500", "containerd", "/usr/bin/containerd", "-c", "/opt/c.toml")
			n.file("/opt/c.toml", 0o644, "[plugins.cri.registry.mirrors.\"docker.io\"]\n  endpoint = [\"http://mirror.test\"]\n")
			n.file(config, 0o644, "not read [")
		}), "mirrors", doctor.Warn, "(/opt/c.toml)", ""},
		{"twice the same", serve("mirror.test:443", http.StatusUnauthorized, func(n *testNode) {
			hostsFile(one)(n)
			n.file("/etc/containerd/certs.d/_default/hosts.toml", 0o644, "[host.'mirror.test']\n")
		}), "mirrors", doctor.OK, "requires credentials", ""},
	})
}

func TestEachMirrorIsAskedOnceWithoutCredentials(t *testing.T) {
	n := newNode(t)
	asked := n.serve("mirror.test:80", http.StatusUnauthorized)
	n.file("/etc/containerd/certs.d/a/hosts.toml", 0o644,
		"[host.\"http://user:hunter2@mirror.test/x?token=hunter2\"]\n[host.\"http://user:hunter2@mirror.test/x?token=hunter2\".header]\nAuthorization = \"Bearer hunter2\"\n"+
			"[host.\"http://mirror.test/y/\"]\noverride_path = true\n[host.\"http://mirror.test/z/v2\"]\n")
	for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
		if strings.Contains(f.Found+f.Remediation, "hunter2") {
			t.Errorf("%+v shows a credential", f)
		}
	}
	slices.Sort(*asked)
	if want := []string{"GET /x/v2/ ", "GET /y/ ", "GET /z/v2/ "}; !slices.Equal(*asked, want) {
		t.Errorf("the mirror was asked %q; want %q", *asked, want)
	}
}
