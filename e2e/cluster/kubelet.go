package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// A Kubelet is a real kubelet with a root directory of its own.
type Kubelet struct {
	*host.Process

	cluster *Cluster
	release string
	program string
	name    string
	dir     string
	cgroup  string
	ports   []int
	flags   []string
}

// Settings are fields of a KubeletConfiguration.
type Settings map[string]any

// NewKubelet prepares the kubelet of a release, such as "1.37", for a node below dir, with its pods under a cgroup.
// Start starts it.
func (c *Cluster) NewKubelet(ctx context.Context, version, dir, name, cgroup string) (k *Kubelet, err error) {
	defer host.Catch(&err)
	k = &Kubelet{cluster: c, release: version, name: name, dir: dir, cgroup: cgroup}
	k.program = host.Must(release.Kubernetes(ctx, version, "kubelet"))
	if strings.HasPrefix(dir, "/var/lib/") || strings.HasPrefix(dir, "/var/log/") {
		return nil, fmt.Errorf("%s: a kubelet does not see this place in its namespace; set TMPDIR to another one", dir)
	}
	for _, sub := range []string{"root", "manifests", "pods", "plugins"} {
		host.Check(os.MkdirAll(k.path(sub), 0o711))
	}
	k.ports = host.Must(host.FreePorts(2))
	host.Check(os.WriteFile(k.path("kubeconfig"), c.Kubeconfig("token: "+name), 0o600))
	return k, os.WriteFile(k.path("start"), []byte(k.privateView()), 0o700)
}

// Kubeconfig returns the path of the file by which the kubelet knows the API server and itself.
func (k *Kubelet) Kubeconfig() string { return k.path("kubeconfig") }

// Root returns the kubelet's root directory, below which it keeps the volumes of pods.
func (k *Kubelet) Root() string { return k.path("root") }

// Name is the name of the kubelet's node.
func (k *Kubelet) Name() string { return k.name }

// privateView is a script that starts the kubelet in a mount namespace, with its own folders and kernel settings.
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

// Start starts it before a CRI endpoint, the first time or again, with more settings.
func (k *Kubelet) Start(ctx context.Context, endpoint string, settings Settings) (err error) {
	defer host.Catch(&err)
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
	if k.release != release.Kubernetes130 { // which does not know it
		config["failCgroupV1"] = false
	}
	maps.Copy(config, settings)
	host.Check(os.WriteFile(k.path("config.yaml"), host.Must(yaml.Marshal(config)), 0o600))
	health := fmt.Sprintf("http://127.0.0.1:%d/healthz", k.ports[1])
	args := []string{
		"--mount", "--propagation", "private", k.path("start"),
		k.program,
		"--config", k.path("config.yaml"), "--kubeconfig", k.path("kubeconfig"), "--root-dir", k.path("root"),
		"--cert-dir", k.path("pki"), "--hostname-override", k.name, "--node-ip", host.Must(host.OwnAddress()), "--v=2",
	}
	args = append(args, k.flags...)
	k.Process, err = host.Start(ctx, "kubelet", k.path("kubelet.log"), host.Answers(health), "unshare", args...)
	return err
}

func (k *Kubelet) path(parts ...string) string {
	return filepath.Join(append([]string{k.dir}, parts...)...)
}

// Manifest puts a static pod on the node.
func (k *Kubelet) Manifest(p *corev1.Pod) (err error) {
	defer host.Catch(&err)
	text := host.Must(yaml.Marshal(p))
	// The kubelet must not see half of it; it skips names that begin with a dot.
	hidden := k.path("manifests", "."+p.Name)
	return errors.Join(os.WriteFile(hidden, text, 0o600), os.Rename(hidden, k.path("manifests", p.Name+".yaml")))
}

// RemoveManifest removes a static pod.
func (k *Kubelet) RemoveManifest(name string) error {
	return os.Remove(k.path("manifests", name+".yaml"))
}

// Output returns what a container of a pod has printed over all its restarts.
func (k *Kubelet) Output(namespace, pod, uid, container string) (all string, err error) {
	defer host.Catch(&err)
	for _, f := range host.Must(filepath.Glob(k.path("pods", namespace+"_"+pod+"_"+uid, container, "*.log"))) {
		all += host.Must(host.ContainerLog(f))
	}
	return all, nil
}
