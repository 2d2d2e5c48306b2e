package nodeenable

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/pkg/policy"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A Daemon is the pullgated of a node, as described by its configuration.
type Daemon struct {
	// Listen, Runtime and Image are its endpoints: the one that the kubelet has to dial, and those that pullgated dials.
	Listen, Runtime, Image string
	// Metrics is the address of its metrics, host:port; "" if they are off.
	Metrics string
	// StateDir is the directory that it writes to.
	StateDir string
	// Admission has its policies, and where they expect the volumes of pods.
	Admission config.Admission
	// Enforces describes in a few words whether it enforces verdicts.
	Enforces string
}

// DaemonOf returns the daemon as described by a configuration.
func DaemonOf(c config.Config) Daemon {
	return Daemon{
		Listen: c.Listen, Admission: c.Admission, Runtime: c.RuntimeEndpoint, Image: c.ImageEndpoint,
		Metrics: c.Metrics.Listen, StateDir: c.StateDir, Enforces: "applies its configuration file",
	}
}

// RunningDaemon returns the daemon as it describes itself. If it runs with another configuration than its file, which
// was read from path, the error is a [program.HintError]: a restart would change where it listens or what it forwards
// to.
func RunningDaemon(file config.Config, path string, status *adminv1.GetStatusResponse) (Daemon, error) {
	// pullgated has validated it, and adds fields that Parse would refuse beside kubeletConfig.
	var inForce config.Config
	if err := yaml.Unmarshal([]byte(status.GetConfiguration()), &inForce); err != nil {
		return Daemon{}, fmt.Errorf("read the configuration that pullgated runs with: %w", err)
	}
	running, inFile := DaemonOf(inForce), DaemonOf(file)
	for _, v := range []struct{ field, running, inFile string }{
		{"listen", running.Listen, inFile.Listen},
		{"runtimeEndpoint", running.Runtime, inFile.Runtime},
		{"imageEndpoint", running.Image, inFile.Image},
		{"stateDir", running.StateDir, inFile.StateDir},
		{"metrics.listen", running.Metrics, inFile.Metrics},
	} {
		if v.running != v.inFile {
			return Daemon{}, &program.HintError{
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
