package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/machine"
)

// The files of a node, by their paths in it, as templates.
//
//go:embed all:files
var files embed.FS

// readyLimit is how long it takes at most on a slow machine until a Node is Ready.
const readyLimit = 90 * time.Second

// A Node is a machine with a containerd and a kubelet.
type Node struct {
	*machine.Machine
	Name string

	fleet  *Fleet
	dir    string
	taint  string
	number int
	lines  []*line // to the API server, by both of its addresses, and to the registries
}

func (n *Node) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}

// join boots the machine, and returns when its Node is Ready.
func (n *Node) join(ctx context.Context) (err error) {
	defer host.Catch(&err)
	// What overlayfs and the kubelet's figures of free space need is a real file system, which is no overlay.
	binds := map[string]string{
		"/var/lib/containerd": n.path("containerd"), "/var/lib/kubelet": n.path("kubelet"), "/dev/kmsg": "/dev/kmsg",
	}
	for _, dir := range []string{n.dir, n.path("containerd"), n.path("kubelet")} {
		host.Check(os.MkdirAll(dir, 0o755))
	}
	host.Check(n.SetMachineID(NewMachineID()))
	flags := []string{
		"--bind-ro=" + n.path("machine-id") + ":/etc/machine-id",
		"--system-call-filter=@keyring bpf", "--capability=CAP_SYSLOG", // of runc, of the kubelet
		"--bind-ro=" + n.fleet.kubelet + ":/usr/bin/kubelet",
	}
	for _, plugin := range []string{"loopback", "ptp", "host-local"} {
		flags = append(flags, "--bind-ro=/usr/lib/cni/"+plugin+":/opt/cni/bin/"+plugin)
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		flags = append(flags, "--bind-ro="+host.Must(exec.LookPath(program))+":/usr/bin/"+program)
	}
	// Its own file of the ID would be the same on every machine. The unit would replace a mounted one, and fail.
	flags = append(flags, "systemd.mask=systemd-machine-id-commit.service")
	n.Machine = host.Must(machine.Start(ctx, n.dir, n.fleet.base.Cgroup()+"/"+n.Name, binds, flags...))
	host.Check(n.place(), n.Connect(ctx))
	host.Must(n.Run(ctx, "hostname", n.Name))
	host.Must(n.Run(ctx, "systemctl", "daemon-reload"))
	host.Must(n.Run(ctx, "systemctl", "enable", "--now", "node-setup.service", "containerd.service", "kubelet.service"))
	return n.WaitReady(ctx)
}

// place writes the files of the node, and the certificate of its kubelet.
func (n *Node) place() (err error) {
	defer host.Catch(&err)
	const certificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	values := map[string]any{
		"Name": n.Name, "Address": n.address(), "Pods": n.pods(), "Pause": n.fleet.pause, "Taint": n.taint,
	}
	err = fs.WalkDir(files, "files", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text := host.Must(files.ReadFile(path))
		var b bytes.Buffer
		host.Check(host.Must(template.New(path).Parse(string(text))).Execute(&b, values))
		return n.write(strings.TrimPrefix(path, "files"), b.Bytes())
	})
	host.Check(err)
	kubeconfig := n.fleet.Kubeconfig("client-certificate: " + certificate + ", client-key: " + certificate)
	return errors.Join(
		os.MkdirAll(n.Path("/etc/kubernetes/manifests"), 0o700),
		n.write("/etc/hostname", []byte(n.Name+"\n")),
		n.write("/etc/kubernetes/kubelet.conf", kubeconfig),
		n.write(certificate, host.Must(n.fleet.NodeCertificate(n.Name, 24*time.Hour, "system:nodes"))),
	)
}

func (n *Node) write(path string, content []byte) error {
	mode := os.FileMode(0o600)
	if bytes.HasPrefix(content, []byte("#!")) {
		mode = 0o755
	}
	inside := n.Path(path)
	return errors.Join(os.MkdirAll(filepath.Dir(inside), 0o755), os.WriteFile(inside, content, mode))
}

// NewMachineID returns the ID of a machine that does not exist yet.
func NewMachineID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

// SetMachineID changes the ID by which systemd and the kubelet know the machine.
func (n *Node) SetMachineID(id string) error {
	return os.WriteFile(n.path("machine-id"), []byte(id+"\n"), 0o644)
}

// address is the node's IP address, which is different for each node.
func (n *Node) address() string {
	return fmt.Sprintf("192.0.2.%d", 10+n.number)
}

// pods is what the IP addresses of the node's pods begin with.
func (n *Node) pods() string { return fmt.Sprintf("10.244.%d.", n.number) }

// kubernetes is the IP address of the Service of the API server.
const kubernetes = "10.96.0.1"

// Connect gives the machine its addresses, and connects it to API server and registries. A reboot ends both.
func (n *Node) Connect(ctx context.Context) (err error) {
	defer host.Catch(&err)
	n.Cut()
	for _, address := range []string{n.address(), kubernetes} {
		host.Must(host.Run(ctx, "nsenter", fmt.Sprintf("--net=%s", n.Path("/proc/1/ns/net")),
			"ip", "address", "replace", address+"/32", "dev", "lo"))
	}
	api, registry := strings.TrimPrefix(n.fleet.Config("").Host, "https://"), n.fleet.Registry.Host()
	owned := n.fleet.Owned.Host()
	for address, target := range map[string]string{
		api: api, kubernetes + ":443": api, registry: registry, owned: owned,
	} {
		n.lines = append(n.lines, open(host.Must(n.Listen(ctx, address)), target))
	}
	return nil
}

// Cut cuts the machine and its pods off from API server and registry: connections end, and new ones are refused.
func (n *Node) Cut() {
	for _, l := range n.lines {
		l.close()
	}
	n.lines = nil
}

// Reboot reboots the machine, which is connected afterwards.
func (n *Node) Reboot(ctx context.Context) error {
	return errors.Join(n.Machine.Reboot(ctx), n.Connect(ctx))
}

// Object is the Node at the API server.
func (n *Node) Object(ctx context.Context) (*corev1.Node, error) {
	return n.fleet.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
}

// WaitReady waits until the Node is Ready since the last boot.
func (n *Node) WaitReady(ctx context.Context) error {
	boot, err := n.Run(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	state := "it is not registered since the last boot"
	ready := func() bool {
		o, err := n.Object(ctx)
		if err != nil || o.Status.NodeInfo.BootID != strings.TrimSpace(boot) {
			return ctx.Err() != nil
		}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady {
				state = c.Reason + ": " + c.Message
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}
	if !host.Within(readyLimit, ready) || ctx.Err() != nil {
		journal, _ := n.Run(context.WithoutCancel(ctx), "journalctl", "--no-pager", "--lines=40", "--unit=kubelet",
			"--unit=containerd", "--unit=node-setup")
		return fmt.Errorf("%s is not Ready: %s\n%s", n.Name, state, journal)
	}
	return nil
}

// Get returns the content of a URL, as the machine sees it.
func (n *Node) Get(url string) (string, error) {
	transport := &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}
	return host.GetBy(&http.Client{Transport: transport, Timeout: 10 * time.Second}, url)
}

// Journal returns the messages of some units since a time.
func (n *Node) Journal(ctx context.Context, since time.Time, units ...string) (string, error) {
	args := []string{"--no-pager", "--output=short-iso-precise", fmt.Sprintf("--since=@%d", since.Unix())}
	for _, u := range units {
		args = append(args, "--unit="+u)
	}
	return n.Run(ctx, "journalctl", args...)
}

// Leave powers the machine off, for good. Its Node stays.
func (n *Node) Leave() error {
	if n.Machine == nil {
		return nil
	}
	n.Cut()
	return n.Close()
}
