package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
)

// ownUnit is what systemd shows of pullgated.service.
const ownUnit = "LoadState=loaded\nProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\n" +
	"ReadWritePaths=\nBindPaths=\nBindReadOnlyPaths=\n" +
	"StateDirectory=pullgate\nRuntimeDirectory=pullgate\nLogsDirectory=pullgate\n"

// A configuration with which the unit does not start is an error before the start.
func TestExamineComparesTheSandboxOfTheUnit(t *testing.T) {
	type conf = config.Config
	const cannotWrite = "pullgated.service does not let its program write /srv/pullgate"
	for name, tc := range map[string]struct {
		unit     string
		change   func(c *conf)
		errors   []string
		warnings []string
	}{
		"the defaults":          {ownUnit, func(*conf) {}, nil, nil},
		"the directory of logs": {ownUnit, func(c *conf) { c.DecisionLog.Path = "/var/log/pullgate/d.log" }, nil, nil},
		"another stateDir": {
			ownUnit, func(c *conf) { c.StateDir = "/srv/pullgate" },
			[]string{"stateDir: " + cannotWrite},
			nil,
		},
		"another directory of logs": {
			ownUnit, func(c *conf) { c.DecisionLog.Path = "/srv/pullgate/d.log" },
			[]string{"decisionLog.path: " + cannotWrite},
			nil,
		},
		"another socket": {
			ownUnit,
			func(c *conf) { c.Admin.Listen = "unix:///srv/pullgate/a.sock" }, nil,
			[]string{"admin.listen: " + cannotWrite},
		},
		"a drop-in for it": {
			ownUnit + "ReadWritePaths=-/srv /other\n",
			func(c *conf) { c.StateDir = "/srv/pullgate" }, nil, nil,
		},
		"a mount for it": {
			ownUnit + "BindPaths=/data:/srv/pullgate:rbind\n",
			func(c *conf) { c.StateDir = "/srv/pullgate" }, nil, nil,
		},
		"a folder with a similar name": {
			ownUnit, func(c *conf) { c.StateDir = "/var/lib/pullgate-2" },
			[]string{"does not let its program write /var/lib/pullgate-2"},
			nil,
		},
		"another unit": {
			strings.Replace(ownUnit, "strict", "yes", 1),
			func(c *conf) { c.StateDir = "/srv/pullgate" }, nil, nil,
		},
		"no unit":    {"LoadState=not-found\n", func(c *conf) { c.StateDir = "/srv/pullgate" }, nil, nil},
		"no systemd": {"", func(c *conf) { c.StateDir = "/srv/pullgate" }, nil, nil},
		"a runtime below /tmp": {
			ownUnit, func(c *conf) { c.RuntimeEndpoint = "unix:///tmp/c.sock" }, nil,
			[]string{"runtimeEndpoint: pullgated.service hides /tmp/c.sock from its program; move it, or add PrivateTmp=no"},
		},
		"a kubeconfig below /root": {
			ownUnit, func(c *conf) { c.PodSource.Kubeconfig = "/root/k.conf" }, nil,
			[]string{"podSource.kubeconfig: pullgated.service hides /root/k.conf from its program; move it, or add " +
				"ProtectHome=read-only"},
		},
		"policies below /home": {
			ownUnit, func(c *conf) { c.Admission.Policies = "/home/p" },
			[]string{"admission.policies: pullgated.service hides /home/p"},
			nil,
		},
		"policies below /home, mounted": {
			ownUnit + "BindReadOnlyPaths=/home/p\n",
			func(c *conf) { c.Admission.Policies = "/home/p" }, nil, nil,
		},
		"state below /tmp, which is lost": {
			ownUnit, func(c *conf) { c.StateDir = "/tmp/pullgate" },
			[]string{"stateDir: pullgated.service hides /tmp/pullgate"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			tc.change(&c)
			got := map[Level][]string{}
			for _, f := range (Node{Config: c, Host: Host{Command: func(context.Context, string, ...string) ([]byte, error) {
				if tc.unit == "" {
					return nil, errors.New("no systemd")
				}
				return []byte(tc.unit), nil
			}}}).startSandbox(t.Context()) {
				got[f.Level] = append(got[f.Level], f.Found)
			}
			for kind, list := range map[string]struct {
				got  []string
				want []string
			}{"errors": {got[Fail], tc.errors}, "warnings": {got[Warn], tc.warnings}} {
				if !slices.EqualFunc(list.got, list.want, strings.Contains) {
					t.Errorf("%s %v; want %q", kind, list.got, list.want)
				}
			}
		})
	}
}

// Webhook runs the check of webhooks alone.
func (n Node) Webhook(ctx context.Context) []Finding { return n.webhook(ctx) }
