package doctor

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// The oldest supported versions.
const (
	oldestKubelet    = 28 // 1.28
	oldestContainerd = 6  // 1.6
	oldestCRIO       = 34 // 1.34, the oldest tested version
)

// versionIn returns the first version of three numbers in a text.
func versionIn(text string) (*version.Version, error) {
	return version.ParseGeneric(regexp.MustCompile(`\bv?\d{1,4}\.\d{1,4}\.\d{1,4}`).FindString(text))
}

// versions compares the versions of kubelet and runtime with the supported ones.
func (n Node) versions(ctx context.Context) (all []Finding) {
	kubelets := n.running("kubelet", "k3s", "k3s-server", "k3s-agent")
	if len(kubelets) == 0 {
		all = append(all, unknown("run it on the node, as root, with the kubelet running", "no kubelet process found"))
	}
	for _, p := range kubelets {
		v, err := n.versionOf(ctx, p)
		switch {
		case err != nil:
			all = append(all, unknown("run it as root", "which version %s is: %v", p, err))
		case v.LessThan(version.MajorMinor(1, oldestKubelet)):
			all = append(all, fail("upgrade the kubelet", "%s is version %s, older than 1.%d, the oldest that is supported", p, v, oldestKubelet))
		default:
			all = append(all, ok("%s is version %s", p, v))
		}
	}
	return append(all, n.runtimeVersion(ctx))
}

func (n Node) runtimeVersion(ctx context.Context) Finding {
	name, text := n.Status.GetRuntime().GetName(), n.Status.GetRuntime().GetVersion()
	if text == "" { // without the daemon
		p, err := n.peer(ctx, socketPath(n.Config.RuntimeEndpoint))
		if err != nil || p.name == "" {
			return unknown("start the runtime and pullgated, which asks it; run it as root", "which version the runtime is")
		}
		v, err := n.versionOf(ctx, p)
		if err != nil {
			return unknown("start pullgated, which asks it", "which version %s is: %v", p, err)
		}
		name, text = p.name, v.String()
	}
	v, err := versionIn(text)
	switch {
	case (name == crio || name == "crio") && err == nil:
		return crioVersion(v)
	case !strings.HasPrefix(name, "containerd") && name != crio && name != "crio":
		return warn("use containerd or CRI-O; if you keep it, watch pullgate_pulls_unresolved_total and see that pods without a credential are denied",
			"the runtime is %s %s, which pullgate was never tested with", name, text)
	case err != nil:
		return unknown("check it with crictl version", "the runtime is %s %s, which is not a version that can be compared", name, text)
	case restoresUnderAnyName(v):
		return warn("upgrade containerd, or set enable_experimental_restore_via_create = false in its configuration; leave allowRestores of pullgated at false",
			"containerd %s restores containers from checkpoint images on any image of the node and under any name; pullgated refuses restored containers unless allowRestores is true", v)
	case v.LessThan(version.MajorMinor(1, oldestContainerd)):
		return fail("upgrade containerd", "containerd is version %s, older than 1.%d, the oldest that is supported", v, oldestContainerd)
	}
	return ok("containerd is version %s", v)
}

// restoresUnderAnyName reports whether a containerd lets a checkpoint image use any image of the node and give it any
// name.
func restoresUnderAnyName(v *version.Version) bool {
	last, affected := map[uint]uint{1: 8, 2: 4, 3: 1}[v.Minor()]
	return v.Major() == 2 && affected && v.Patch() <= last
}

// crioVersion reports whether a version of CRI-O was tested.
func crioVersion(v *version.Version) Finding {
	const how = "1.34.4 and 1.36.3 were tested by hand; each change is tested with runtimes that answer as CRI-O does"
	if v.LessThan(version.MajorMinor(1, oldestCRIO)) {
		return warn("upgrade CRI-O to 1.34 or newer", "CRI-O is version %s, older than those that were tested: %s", v, how)
	}
	return ok("CRI-O is version %s: %s", v, how)
}

// versionOf runs the program of a process to get its version.
func (n Node) versionOf(ctx context.Context, p process) (*version.Version, error) {
	if !n.ownProcess(p.pid) {
		return nil, errors.New("it is not a process of the node itself, so its program cannot be run")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := n.Run(ctx, n.path("/proc", strconv.Itoa(p.pid), "exe"), "--version")
	if err != nil {
		return nil, err
	}
	v, err := versionIn(string(out))
	if err != nil {
		return nil, errors.New("--version does not print a version")
	}
	return v, nil
}
