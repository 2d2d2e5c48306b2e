package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Containerd is a containerd with root, state and socket of its own.
type Containerd struct {
	*host.Process
	dir     string
	program string
}

// containerdConfig serves 1.6 and 2.x. restrict_oom_score_adj is for machines that lack CAP_SYS_RESOURCE.
const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.nri.v1.nri",
]
[grpc]
  address = %[3]q
[debug]
  level = "info"
[plugins."io.containerd.internal.v1.opt"]
  path = %[4]q
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = %[5]q
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %[9]q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = %[7]q
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[8]q
    conf_dir = %[6]q
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}`

// cniPlugin reports an address that no interface has: a runtime starts no pod without one.
const cniPlugin = `#!/bin/sh
[ "$CNI_COMMAND" != ADD ] || cat <<END
{"cniVersion": "0.4.0", "interfaces": [{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}],
 "ips": [{"version": "4", "interface": 0, "address": "192.0.2.1/32"}]}
END
`

// StartContainerd starts a containerd below dir. program is "" for the machine's own, and so is hosts, the folder of
// its hosts.toml files, if it has none.
func StartContainerd(ctx context.Context, dir, program, sandboxImage, hosts string) (c *Containerd, err error) {
	defer host.Catch(&err)
	c = &Containerd{dir: dir, program: cmp.Or(program, "containerd")}
	for _, sub := range []string{"root", "state", "opt", "cni", "cni-plugins"} {
		host.Check(os.MkdirAll(filepath.Join(dir, sub), 0o711))
	}
	text := fmt.Sprintf(containerdConfig, c.path("root"), c.path("state"), c.path("containerd.sock"), c.path("opt"),
		sandboxImage, c.path("cni"), c.path("runc"), c.path("cni-plugins"), hosts)
	// A pod without the network of the node has its loopback interface and no other.
	host.Check(
		os.WriteFile(c.path("config.toml"), []byte(text), 0o600),
		os.WriteFile(c.path("cni/10-none.conflist"), []byte(cniConfig), 0o600),
		os.WriteFile(c.path("cni-plugins/none"), []byte(cniPlugin), 0o700),
		os.Symlink("/usr/lib/cni/loopback", c.path("cni-plugins/loopback")),
	)
	return c, c.Start(ctx)
}

// Start starts it again after it was stopped or killed.
func (c *Containerd) Start(ctx context.Context) (err error) {
	c.Process, err = host.Start(ctx, "containerd", c.path("containerd.log"), func() (err error) {
		defer host.Catch(&err)
		k := host.Must(NewKubelet(ctx, c.Endpoint()))
		defer k.Close()
		return k.RuntimeReady(ctx)
	}, c.program, "--config", c.path("config.toml"))
	return err
}

// Restart stops and starts it.
func (c *Containerd) Restart(ctx context.Context) (err error) {
	defer host.Catch(&err)
	host.Check(c.Stop())
	return c.Start(ctx)
}

func (c *Containerd) path(name string) string { return filepath.Join(c.dir, name) }

// Endpoint is where its CRI is served.
func (c *Containerd) Endpoint() string { return "unix://" + c.path("containerd.sock") }

// Import loads an image from an archive, directly in containerd.
func (c *Containerd) Import(ctx context.Context, archive string) error {
	_, err := c.Ctr(ctx, "images", "import", archive)
	return err
}

// Ctr runs ctr, and returns what it printed.
func (c *Containerd) Ctr(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--address", c.path("containerd.sock"), "--namespace", "k8s.io"}, args...)
	return host.Run(ctx, "ctr", args...)
}

// Reboot has the effect of a reboot: all is killed, the state below /run is removed, and containerd starts again.
func (c *Containerd) Reboot(ctx context.Context) (err error) {
	defer host.Catch(&err)
	host.Check(c.Kill(), endContainers(ctx, c.dir), unmountBelow(c.dir))
	host.Check(os.RemoveAll(c.path("state")), os.RemoveAll(c.path("runc")))
	return c.Start(ctx)
}

// Close removes every pod, ends containerd, and removes the rest of its containers, which are also those that
// containerd refused to remove.
func (c *Containerd) Close() error {
	// Close is called at the end, when contexts have ended.
	ctx := context.Background()
	if c.Alive() {
		if k, dialErr := NewKubelet(ctx, c.Endpoint()); dialErr == nil {
			_ = k.RemoveAllPods(ctx)
			k.Close()
		}
	}
	return errors.Join(c.Stop(), endContainers(ctx, c.dir), unmountBelow(c.dir))
}

func unmountBelow(dir string) (err error) {
	defer host.Catch(&err)
	mounts := host.Must(os.ReadFile("/proc/self/mounts"))
	for _, line := range slices.Backward(strings.Split(string(mounts), "\n")) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			err = errors.Join(err, syscall.Unmount(fields[1], syscall.MNT_DETACH))
		}
	}
	return err
}
