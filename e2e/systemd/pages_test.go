package systemd_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/node"
)

// An operator copies the commands of getting-started.md and upgrades.md in order, on a node with a private image.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kubelets()
	s.do("systemctl", "daemon-reload")
	s.do("systemctl", "start", "kubelet.service")
	unprotected := testkit.Value(node.NewKubelet(t.Context(), s.node.Containerd.Endpoint()))(s)
	s.k = unprotected
	s.want(node.Running, node.IfNotPresent, node.Alice())
	unprotected.Close()
	s.do("dpkg", "--install", packed+"/"+newer+".deb")
	repository := strings.TrimSuffix(s.app.Name, ":1")

	checks := map[string]func(printed string){
		"2. Start in shadow mode": func(printed string) {
			s.wantPrinted(printed, "Enforcing      no", "Runtime        unix://"+direct)
		},
		"3. Point the kubelet at pullgated": func(printed string) {
			s.wantPrinted(printed, "write /etc/systemd/system/kubelet.service.d/90-pullgate.conf", "unix://"+through)
			s.wantDials("kubelet.service", through)
			s.connect()
		},
		"4. Close private images that were there before": func(printed string) {
			s.wantPrinted(printed, repository)
			s.want(node.Running, node.Never)
		},
		"5. Find out who would be denied": func(printed string) { s.wantPrinted(printed, "This node does not enforce") },
		"6. Enforce": func(printed string) {
			s.wantPrinted(printed, "Enforcing      yes")
			s.want(node.NeverPulled, node.Never)
			s.want(node.Running, node.IfNotPresent, node.Alice())
		},
		"Go back": func(string) { s.wantDials("kubelet.service", direct) },
		"Take it off a node": func(string) {
			s.wantDials("kubelet.service", direct)
			if s.exists("/usr/bin/pullgated") {
				s.Error("pullgate is installed")
			}
		},
	}
	for _, c := range slices.Concat(commands(t, "../../docs/getting-started.md"), commands(t, "../../docs/upgrades.md")) {
		s.step(c.heading, func() {
			check := checks[c.heading]
			if check == nil {
				s.Fatalf("commands below %q, which this test does not know", c.heading)
			}
			check(s.do("/bin/sh", "-ec", strings.ReplaceAll(c.script, "registry.example/team-a/app", repository)))
			delete(checks, c.heading)
		})
	}
	for heading := range checks {
		t.Errorf("no commands below %q", heading)
	}
}

func (s *site) want(state, policy string, secrets ...node.Login) {
	s.Helper()
	if o := s.pod("team", policy, secrets...); o.State != state {
		s.Errorf("a pod with %s and %d secrets: %v; want %s", policy, len(secrets), o, state)
	}
}

func (s *site) wantPrinted(printed string, words ...string) {
	s.Helper()
	for _, w := range words {
		if !strings.Contains(printed, w) {
			s.Errorf("printed is\n%s\nwant %q", printed, w)
		}
	}
}

type block struct{ heading, script string }

// commands returns the blocks of a page that are marked as sh.
func commands(t *testing.T, page string) (all []block) {
	t.Helper()
	text := testkit.Value(os.ReadFile(page))(t)
	fence := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		for _, m := range fence.FindAllStringSubmatch(body, -1) {
			all = append(all, block{heading, m[1]})
		}
	}
	return all
}
