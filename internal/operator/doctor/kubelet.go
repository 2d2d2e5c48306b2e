package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// kubelet checks which endpoints the kubelet dials, now and after its next start.
func (n Node) kubelet(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := n.Discover(ctx, "")
	if err != nil {
		return n.kubeletProcesses(err)
	}
	next := n.judge("the kubelet of "+found.Unit.Name, found.Configured)
	if found.Running == nil {
		return append([]Finding{next}, n.kubeletFiles(ctx, found.Configured)...)
	}
	others := n.kubeletFiles(ctx, *found.Running)
	now := n.judge(process{found.Process.PID, "kubelet"}.String(), *found.Running)
	switch {
	case now.Level == OK && next.Level == Fail:
		next.Level = Warn
		next.Found += ", once it is restarted"
		return append([]Finding{now, next}, others...)
	case now.Level == Fail && next.Level == OK:
		return append([]Finding{now, warn("restart the kubelet; running pods continue", "%s, once it is restarted", next.Found)}, others...)
	}
	return append([]Finding{now}, others...)
}

// kubeletFiles checks the root directory of a kubelet, and the file that pullgatectl node enable wrote for it.
func (n Node) kubeletFiles(ctx context.Context, s Settings) []Finding {
	all := n.kubeletRoot(s)
	if n.Stale == nil {
		return all
	}
	if stale, err := n.Stale(ctx, n.Host, n.Config.Listen); err == nil && stale != "" {
		all = append(all, warn("pullgatectl node enable", "%s", stale))
	}
	return all
}

// kubeletRoot compares the root directory of a kubelet with admission.kubeletRoot, if there are policies.
func (n Node) kubeletRoot(s Settings) []Finding {
	if err := s.CheckRoot(n.Config.Admission.KubeletRoot); err != nil && n.Config.Admission.Policies != "" {
		return []Finding{fail(program.HintOf(err), "%v", err)}
	}
	return nil
}

// rootDirectory checks that the volumes of pods are where policies expect them.
func (n Node) rootDirectory(ctx context.Context) []Finding {
	if n.Config.Admission.Policies == "" {
		return nil
	}
	err := n.Host.CheckRoot(ctx, n.Unit, n.Config.Admission.KubeletRoot)
	if err == nil {
		return nil
	}
	return []Finding{warn(program.HintOf(err), "%v", err)}
}

// CheckRoot returns why policies would take the volumes of pods for hostPath volumes. The kubelet of the host shows it;
// without one, the directory does. unit is the unit that runs the kubelet; "" searches for one.
func (h Host) CheckRoot(ctx context.Context, unit, root string) error {
	found, err := h.Discover(ctx, unit)
	if err != nil {
		if _, err := os.Stat(filepath.Join(root, "pods")); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("admission.kubeletRoot: %s/pods not found; if a kubelet has run on this node, set admission.kubeletRoot to its --root-dir", root)
	}
	if found.Running != nil {
		return found.Running.CheckRoot(root)
	}
	return found.Configured.CheckRoot(root)
}

// kubeletProcesses checks the running kubelets, if no unit shows what a kubelet dials.
func (n Node) kubeletProcesses(why error) (all []Finding) {
	if errors.Is(why, ErrSeveralKubelets) || errors.Is(why, fs.ErrPermission) {
		return []Finding{unknown("run it as root; pullgatectl node status --unit UNIT shows it for one unit", "what the kubelet dials: %v", why)}
	}
	for _, p := range n.running("kubelet", "k3s", "k3s-server", "k3s-agent", "rke2") {
		s, err := n.ProcessSettings(p.pid)
		if err != nil {
			all = append(all, unknown("check as root that the file exists and can be read", "what %s dials: %v", p, err))
			continue
		}
		all = append(append(all, n.judge(p.String(), s)), n.kubeletRoot(s)...)
	}
	if len(all) == 0 {
		all = append(all, unknown("run it on the node, as root, with the kubelet running", "what the kubelet dials: no kubelet process found: %v", why))
	}
	return all
}

func (n Node) judge(kubelet string, s Settings) Finding {
	ours := socketPath(n.Config.Listen)
	switch {
	case !Same(s.Runtime.Value, ours):
		return fail("pullgatectl node enable sends it through "+ours,
			"%s dials %s (%s), which bypasses pullgate", kubelet, socketPath(s.Runtime.Value), s.Runtime.From)
	case !Same(s.Image.Value, ours):
		return fail("leave the image service endpoint empty or set it to unix://"+ours+", then restart the kubelet",
			"%s pulls through %s (%s): pullgate sees no pull", kubelet, socketPath(s.Image.Value), s.Image.From)
	}
	return ok("%s dials %s (%s)", kubelet, ours, s.Runtime.From)
}
