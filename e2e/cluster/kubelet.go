package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Kubelet is a real kubelet with a root directory of its own.
type Kubelet struct {
	*host.Process

	cluster *Cluster
	name    string
	dir     string
	cgroup  string
	ports   []int
	flags   []string
}

// Settings are fields of a KubeletConfiguration.
type Settings map[string]any

// NewKubelet prepares the kubelet of a node below dir; Start starts it. cgroup is the one that its
// pods are put under.
func (c *Cluster) NewKubelet(dir, name, cgroup string) (*Kubelet, error) {
	k := &Kubelet{cluster: c, name: name, dir: dir, cgroup: cgroup}
	if strings.HasPrefix(dir, "/var/lib/") || strings.HasPrefix(dir, "/var/log/") {
		return nil, fmt.Errorf("%s: a kubelet does not see this place in its namespace; set TMPDIR to another one", dir)
	}
	for _, sub := range []string{"root", "manifests", "pods", "plugins"} {
		if err := os.MkdirAll(k.path(sub), 0o711); err != nil {
			return nil, err
		}
	}
	var err error
	if k.ports, err = host.FreePorts(2); err != nil {
		return nil, err
	}
	if err := os.WriteFile(k.path("kubeconfig"), c.Kubeconfig("token: "+name), 0o600); err != nil {
		return nil, err
	}
	return k, os.WriteFile(k.path("start"), []byte(k.privateView()), 0o700)
}

// Kubeconfig returns the path of the file by which the kubelet knows the API server and itself.
func (k *Kubelet) Kubeconfig() string { return k.path("kubeconfig") }

// Root returns the kubelet's root directory, below which it keeps the volumes of pods.
func (k *Kubelet) Root() string { return k.path("root") }

// Name is the name of the kubelet's node.
func (k *Kubelet) Name() string { return k.name }

// privateView is a script that starts the kubelet in a mount namespace of its own. There it has folders of its own
// where its paths are fixed, and finds the kernel settings that it would write: the machine is not changed, and two
// kubelets can run side by side.
func (k *Kubelet) privateView() string {
	lines := []string{"#!/bin/sh", "set -eu"}
	bind := func(from, to string) {
		lines = append(lines, fmt.Sprintf("[ -e %[2]s ] && mount --bind '%[1]s' %[2]s", from, to))
	}
	// It makes /var/log/containers and /var/lib/kubelet/device-plugins, whatever its root directory is.
	lines = append(lines, "mount -t tmpfs none /var/log", "mount -t tmpfs none /var/lib")
	lines = append(lines, "mkdir -p '"+k.path("kernel")+"'")
	for setting, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := k.path("kernel", strings.ReplaceAll(setting, "/", "."))
		lines = append(lines, fmt.Sprintf("echo %s > '%s'", value, file))
		bind(file, "/proc/sys/"+setting)
	}
	return strings.Join(append(lines, `exec "$@"`), "\n") + "\n"
}

// SetFlags gives flags to every start from now on, beside those that a node of one test needs.
func (k *Kubelet) SetFlags(flags ...string) { k.flags = flags }

// Start starts it before a CRI endpoint, the first time or again. settings are added to what a node
// of one test needs.
func (k *Kubelet) Start(ctx context.Context, endpoint string, settings Settings) error {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": endpoint,
		"address":                  "127.0.0.1", "port": k.ports[0], "readOnlyPort": 0,
		"healthzPort": k.ports[1], "healthzBindAddress": "127.0.0.1",
		"authentication": map[string]any{"anonymous": Settings{"enabled": true}, "webhook": Settings{"enabled": false}},
		"authorization":  Settings{"mode": "AlwaysAllow"},
		"staticPodPath":  k.path("manifests"), "fileCheckFrequency": "1s",
		"podLogsDir": k.path("pods"), "volumePluginDir": k.path("plugins"),
		// The machine is shared, and has cgroups of whatever version.
		"cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": []string{}, "cgroupRoot": k.cgroup,
		"failSwapOn": false, "localStorageCapacityIsolation": false, "makeIPTablesUtilChains": false,
		"evictionHard": map[string]string{"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
	}
	if k.cluster.release != "1.30" { // which does not know it
		config["failCgroupV1"] = false
	}
	maps.Copy(config, settings)
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(k.path("config.yaml"), text, 0o600); err != nil {
		return err
	}
	health := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(k.ports[1])) + "/healthz"
	address, err := host.OwnAddress()
	if err != nil {
		return err
	}
	args := []string{
		"--mount", "--propagation", "private", k.path("start"), filepath.Join(k.cluster.programs, "kubelet"),
		"--config", k.path("config.yaml"), "--kubeconfig", k.path("kubeconfig"), "--root-dir", k.path("root"),
		"--cert-dir", k.path("pki"), "--hostname-override", k.name, "--node-ip", address, "--v=2",
	}
	args = append(args, k.flags...)
	k.Process, err = host.Start(ctx, "kubelet", k.path("kubelet.log"), answers(health), "unshare", args...)
	return err
}

func (k *Kubelet) path(parts ...string) string {
	return filepath.Join(append([]string{k.dir}, parts...)...)
}

// Manifest puts a static pod on the node.
func (k *Kubelet) Manifest(p *corev1.Pod) error {
	text, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	// The kubelet must not see half of it; it skips names that begin with a dot.
	hidden := k.path("manifests", "."+p.Name)
	return errors.Join(os.WriteFile(hidden, text, 0o600), os.Rename(hidden, k.path("manifests", p.Name+".yaml")))
}

// RemoveManifest removes a static pod.
func (k *Kubelet) RemoveManifest(name string) error {
	return os.Remove(k.path("manifests", name+".yaml"))
}

// Output returns what a container of a pod has printed over all its restarts.
func (k *Kubelet) Output(namespace, pod, uid, container string) (string, error) {
	files, err := filepath.Glob(k.path("pods", namespace+"_"+pod+"_"+uid, container, "*.log"))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, f := range files {
		text, err := host.ContainerLog(f)
		if err != nil {
			return "", err
		}
		all.WriteString(text)
	}
	return all.String(), nil
}
