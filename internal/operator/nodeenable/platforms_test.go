package nodeenable_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/testkit"
)

// platforms are nodes as providers and distributions set them up: with the configuration of pullgated that they need.
func platforms() map[string]string {
	return map[string]string{
		"kubeadm-instance":      "",
		"eks-al2023":            "",
		"eks-al2023-config-dir": "",
		"eks-al2023-fast-image-pull": "imageEndpoint: unix:///run/soci-snapshotter-grpc/" +
			"soci-snapshotter-grpc.sock\n",
		"aks":     "",
		"gke-cos": "",
		"flatcar": "",
	}
}

// What the commands print on each platform, from a node without pullgate to one without it again, on which every file
// is byte for byte as before. Enable sets the pod source, too, which stays.
func TestPlatforms(t *testing.T) {
	for kind, needs := range platforms() {
		t.Run(kind, withNode(kind, func(n *node) {
			n.path, n.hides = configFile, "ProtectHome=yes"
			begin := func(content string) {
				n.put(n.path, content)
				n.startDaemon()
			}
			begin(header)
			got := n.states()
			if needs != "" {
				_, err := n.sw().Enable(n.t.Context())
				got += "\nnode enable, with the defaults:\n" + refusal(err)
				begin(header + needs)
			}
			before := n.snapshot()
			p := testkit.Value(n.sw().Enable(n.t.Context()))(n.t)
			got += "\nnode enable:\n" + strings.Join(p.Lines(), "\n") + "\n"
			if diff := cmp.Diff(before, n.snapshot()); diff != "" {
				n.t.Errorf("Enable changes the node before Apply:\n%s", diff)
			}
			must(n.t, n.sw().Apply(n.t.Context(), p))
			if !n.through() {
				n.t.Error("the kubelet does not dial pullgated")
			}
			got += "\n" + n.states()
			p = testkit.Value(n.sw().Disable(n.t.Context()))(n.t)
			got += "\nnode disable:\n" + strings.Join(p.Lines(), "\n") + "\n"
			must(n.t, n.sw().Apply(n.t.Context(), p))
			if n.through() || n.loaded() {
				n.t.Error("the kubelet still dials pullgated")
			}
			n.put(n.path, header+needs)
			testkit.Equal(n.t, "after disable", n.snapshot(), before)
			golden(n.t, kind, got)
		}))
	}
}

// states is what node status prints, and doctor about the kubelet.
func (n *node) states() string {
	n.t.Helper()
	st := testkit.Value(n.sw().Status(n.t.Context()))(n.t)
	got := "node status:\n" + strings.Join(st.Lines(), "\n") + "\n\ndoctor:\n"
	node := doctor.Node{Host: n.host(), Config: n.sw().Daemon.Config, NoNetwork: true}
	for _, f := range node.Examine(n.t.Context(), doctor.OnRequest) {
		if f.Check == "kubelet" {
			got += string(f.Level) + " " + f.String() + "\n"
		}
	}
	return got
}

// On Container-Optimized OS /etc is in memory: after a reboot, the script of the provider has written the unit again,
// and the drop-in is gone. What is on the disk, the journal, does not stop another enable, or a disable.
func TestEtcIsLostAtAReboot(t *testing.T) {
	for _, next := range []string{"enable", "disable"} {
		t.Run(next, withNode("gke-cos", func(n *node) {
			before := n.snapshot()
			must(n.t, n.enable())
			must(n.t, os.RemoveAll(filepath.Join(n.root, filepath.Dir(unitDropIn))))
			n.reload()
			n.restart()
			st := testkit.Value(n.sw().Status(n.t.Context()))(n.t)
			if st.Enabled || len(st.Wrong) != 1 || !strings.Contains(st.Wrong[0], unitDropIn+" is gone; run it again") {
				n.t.Errorf("Status = %+v; want not enabled, and what to do", st)
			}
			if next == "enable" {
				must(n.t, n.enable())
				if !n.through() {
					n.t.Error("the kubelet does not dial pullgated")
				}
			}
			must(n.t, n.disable())
			testkit.Equal(n.t, "after disable", n.snapshot(), before)
		}))
	}
}
