package doctor_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// newCRIO is a node without problems, with CRI-O.
func newCRIO(t *testing.T) *testNode {
	t.Helper()
	n := newNode(t)
	n.Status.Runtime.Name, n.Status.Runtime.Version = "cri-o", "1.36.3"
	n.directory("/etc/crio/auth", 0o755) // CRI-O makes this directory
	return n
}

func TestVersionsOfCRIO(t *testing.T) {
	for _, tc := range []struct {
		name, version string
		level         doctor.Level
		found         string
	}{
		{"cri-o", "1.36.3", doctor.OK, "CRI-O is version 1.36.3: 1.34.4 and 1.36.3 were tested by hand"},
		{"cri-o", "1.34.4", doctor.OK, "CRI-O is version 1.34.4"},
		{"cri-o", "1.33.13", doctor.Warn, "CRI-O is version 1.33.13, older than"},
		{"cri-o", "main", doctor.Unknown, "cri-o main, which is not a version"},
		{"docker", "28.0.1", doctor.Warn, "the runtime is docker 28.0.1, which pullgate was never tested with"},
	} {
		n := newCRIO(t)
		n.Status.Runtime.Name, n.Status.Runtime.Version = tc.name, tc.version
		wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "versions", tc.level, tc.found)
	}
	// Without the daemon the check runs the CRI-O program.
	n := newCRIO(t)
	n.Status.Runtime.Name, n.Status.Runtime.Version = "", ""
	n.process(strconv.Itoa(os.Getpid()), "crio")
	n.versions[os.Getpid()] = "crio version 1.36.3\n"
	wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "versions", doctor.OK, "CRI-O is version 1.36.3")
	wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "cri-o", doctor.OK, "holds no credentials of namespaces")
}

func TestCredentialsOfNamespacesNeedTheSetting(t *testing.T) {
	for name, change := range map[string]func(n *testNode){
		"an auth file": func(n *testNode) { n.file("/etc/crio/auth/team-a-00.json", 0o600, "{}") },
		"a configured directory": func(n *testNode) {
			n.file("/etc/crio/crio.conf.d/10-auth.conf", 0o600, "[crio.image]\nnamespaced_auth_dir = \"/srv/auth\"\n")
			n.directory("/srv/auth/in-use", 0o700)
		},
		"the credential provider": func(n *testNode) {
			n.kubeletArgs("--container-runtime-endpoint=unix:///run/pullgate/cri.sock", "--image-credential-provider-config=/etc/providers.yaml")
			n.file("/etc/providers.yaml", 0o600, "providers:\n- name: crio-credential-provider\n")
		},
	} {
		n := newCRIO(t)
		wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "cri-o", doctor.OK, "holds no credentials of namespaces")
		change(n)
		all := n.Examine(t.Context(), doctor.OnRequest)
		wantFinding(t, all, "cri-o", doctor.Fail, "such a pull opens the image to every pod")
		if !doctor.Failed(all) {
			t.Errorf("%s: doctor does not fail", name)
		}
		n.Config.RuntimeCredentials = "perNamespace"
		wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "cri-o", doctor.OK, "runtimeCredentials is perNamespace")
		// Another runtime does not read these files.
		n.Config.RuntimeCredentials = "none"
		n.Status.Runtime.Name, n.Status.Runtime.Version = "containerd", "2.1.4"
		if all := n.Examine(t.Context(), doctor.OnRequest); doctor.Failed(all) {
			t.Errorf("%s, with containerd: doctor fails: %+v", name, all)
		}
	}
}

func TestSearchRegistriesOfShortNames(t *testing.T) {
	n := newCRIO(t)
	n.file("/etc/containers/registries.conf", 0o644, "unqualified-search-registries = [\"docker.io\"]\n")
	for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
		if f.Check == "cri-o" && f.Level != doctor.OK {
			t.Errorf("with docker.io alone: %+v; want nothing", f)
		}
	}
	n.file("/etc/containers/registries.conf.d/10.conf", 0o644, "unqualified-search-registries = [\"quay.io\", \"docker.io\"]\n")
	wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "cri-o", doctor.Warn, "10.conf has CRI-O look for short names in quay.io")
	n.file("/etc/containers/registries.conf", 0o644, "[[")
	wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "cri-o", doctor.Unknown, "registries.conf")
}
