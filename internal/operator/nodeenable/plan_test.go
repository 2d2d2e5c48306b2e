package nodeenable_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func kinds(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../doctor/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no nodes: %v", err)
	}
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(filepath.Base(f), ".txtar"))
	}
	return all
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func refusal(err error) string {
	text := err.Error() + "\n"
	if advice := program.HintOf(err); advice != "" {
		text += "hint: " + advice + "\n"
	}
	return text
}

// Every kind of node: the plan of enable and, after it, the plan of disable.
func TestPlans(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, kind)
				before := n.snapshot()
				p, err := n.sw().Enable(t.Context())
				if err != nil {
					golden(t, kind, "enable: "+refusal(err))
					return
				}
				got := "enable:\n" + strings.Join(p.Lines(), "\n") + "\n"
				if after := n.snapshot(); after != before {
					t.Errorf("Enable changes the node before Apply:\n%s", cmp.Diff(before, after))
				}
				must(t, n.sw().Apply(t.Context(), p))
				p, err = n.sw().Disable(t.Context())
				must(t, err)
				golden(t, kind, got+"\ndisable:\n"+strings.Join(p.Lines(), "\n")+"\n")
			})
		})
	}
}

// enabling are the kinds of nodes on which enable works, one for each method.
func enabling() []string {
	return []string{"kubeadm-flags", "kubeadm-config", "plain-config-dir", "plain-script", "k3s", "rke2"}
}

func TestEnableAndBack(t *testing.T) {
	for _, kind := range enabling() {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, kind)
				before := n.snapshot()
				must(t, n.enable())
				if !n.through() {
					t.Fatal("the kubelet does not dial pullgated after enable")
				}
				enabled := n.snapshot()
				n.commands = nil
				p, err := n.sw().Enable(t.Context())
				if err != nil || len(p.Steps) != 0 || !strings.Contains(strings.Join(p.Found, " "), "Already enabled") {
					t.Errorf("Enable once more = %v, %v; want nothing to do", p.Lines(), err)
				}
				must(t, n.disable())
				if diff := cmp.Diff(before, n.snapshot()); diff != "" {
					t.Errorf("after disable (-before +after):\n%s", diff)
				}
				if n.through() {
					t.Error("the kubelet dials pullgated after disable")
				}
				p, err = n.sw().Disable(t.Context())
				if err != nil || len(p.Steps) != 0 || !strings.Contains(strings.Join(p.Found, " "), "Already disabled") {
					t.Errorf("Disable once more = %v, %v; want nothing to do", p.Lines(), err)
				}
				if err := n.enable(); err != nil || n.snapshot() != enabled {
					t.Errorf("enable after disable: %v\n%s", err, cmp.Diff(enabled, n.snapshot()))
				}
			})
		})
	}
}
