package nodeenable_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// status returns the status of a daemon that runs with a configuration.
func status(t *testing.T, c config.Config) *adminv1.GetStatusResponse {
	t.Helper()
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return &adminv1.GetStatusResponse{Configuration: string(text)}
}

func TestRunningDaemon(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*config.Config)
		store  *adminv1.StoreStatus
		want   string
	}{
		{"defaults", func(*config.Config) {}, nil, "enforces NeverVerifyPreloadedImages"},
		{"shadow mode", func(c *config.Config) { c.NoPullImageSecretRecheck = true }, nil, "is in shadow mode: it records and counts, and denies nothing"},
		{"no policy", func(c *config.Config) { c.ImagePullCredentialsVerificationPolicy = "NeverVerify" }, nil, "requires no proof under the policy NeverVerify"},
		{"distrusted", func(*config.Config) {}, &adminv1.StoreStatus{Distrust: &adminv1.Distrust{}}, "enforces NeverVerifyPreloadedImages, and distrusts its store: no image is marked preloaded"},
		{"policy of the kubelet's file", func(c *config.Config) { c.KubeletConfig = "/var/lib/kubelet/config.yaml" }, nil, "enforces NeverVerifyPreloadedImages"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := config.Default()
			tc.change(&c)
			s := status(t, c)
			s.Store = tc.store
			got, err := nodeenable.RunningDaemon(c, "/etc/c.yaml", s)
			if err != nil || got.Enforces != tc.want || got.Listen != "unix:///run/pullgate/cri.sock" || got.Metrics != c.Metrics ||
				got.RuntimeEndpoint != c.RuntimeEndpoint || got.ImageEndpoint != c.ImageEndpoint || got.StateDir != c.StateDir {
				t.Errorf("Running = %+v, %v; want %+v, which %s", got, err, c, tc.want)
			}
		})
	}
}

func TestRunningWithAnotherConfiguration(t *testing.T) {
	for field, change := range map[string]func(*config.Config){
		"listen":          func(c *config.Config) { c.Listen = "unix:///x" },
		"runtimeEndpoint": func(c *config.Config) { c.RuntimeEndpoint = "unix:///x" },
		"imageEndpoint":   func(c *config.Config) { c.ImageEndpoint = "unix:///x" },
		"stateDir":        func(c *config.Config) { c.StateDir = "/x" },
		"metrics.listen":  func(c *config.Config) { c.Metrics.Listen = "127.0.0.1:1" },
	} {
		t.Run(field, func(t *testing.T) {
			c := config.Default()
			change(&c)
			_, err := nodeenable.RunningDaemon(c, "/etc/c.yaml", status(t, config.Default()))
			advice := program.HintOf(err)
			if advice == "" || !strings.Contains(err.Error(), "pullgated runs with "+field+` "`) || !strings.Contains(err.Error(), "/etc/c.yaml has") || !strings.Contains(advice, "restart pullgated") {
				t.Errorf("Running = %v; want an error about %s", err, field)
			}
		})
	}
	if _, err := nodeenable.RunningDaemon(config.Default(), "/etc/c.yaml", &adminv1.GetStatusResponse{Configuration: ": {"}); err == nil {
		t.Error("Running accepts an invalid configuration")
	}
}
