package configured

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/hint"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/pkg/policy"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// File returns the daemon as described by a configuration.
func File(c config.Config) nodeenable.Daemon {
	root := c.Admission.KubeletRoot
	if c.Admission.Policies == "" {
		root = ""
	}
	return nodeenable.Daemon{
		Listen: c.Listen, KubeletRoot: root, Runtime: c.RuntimeEndpoint, Image: c.ImageEndpoint,
		Metrics: c.Metrics.Listen, StateDir: c.StateDir, Enforces: "applies its configuration file",
	}
}

// Running returns the daemon as it describes itself, if the configuration that was read from path describes the same. Otherwise
// the error is a [hint.Error].
func Running(file config.Config, path string, status *adminv1.GetStatusResponse) (nodeenable.Daemon, error) {
	// pullgated has validated it, and adds fields that Parse would refuse beside kubeletConfig.
	var inForce config.Config
	if err := yaml.Unmarshal([]byte(status.GetConfiguration()), &inForce); err != nil {
		return nodeenable.Daemon{}, fmt.Errorf("read the configuration that pullgated runs with: %w", err)
	}
	running, inFile := File(inForce), File(file)
	for _, v := range []struct{ field, running, inFile string }{
		{"listen", running.Listen, inFile.Listen},
		{"runtimeEndpoint", running.Runtime, inFile.Runtime},
		{"imageEndpoint", running.Image, inFile.Image},
		{"stateDir", running.StateDir, inFile.StateDir},
		{"metrics.listen", running.Metrics, inFile.Metrics},
	} {
		if v.running != v.inFile {
			return nodeenable.Daemon{}, &hint.Error{
				Err:  fmt.Errorf("pullgated runs with %s %q, but %s has %q", v.field, v.running, path, v.inFile),
				Hint: "systemctl restart pullgated, then try again; give --config if its configuration is another file",
			}
		}
	}
	running.Enforces = enforces(status, inForce)
	return running, nil
}

// enforces describes in a few words whether pods will notice.
func enforces(s *adminv1.GetStatusResponse, c config.Config) string {
	switch mode := c.ImagePullCredentialsVerificationPolicy; {
	case c.NoPullImageSecretRecheck:
		return "is in shadow mode: it records and counts, and denies nothing"
	case mode == string(policy.ModeNeverVerify):
		return "requires no proof under the policy " + mode
	case s.GetStore().GetDistrust() != nil:
		return "enforces " + mode + ", and distrusts its store: no image is marked preloaded"
	default:
		return "enforces " + mode
	}
}
