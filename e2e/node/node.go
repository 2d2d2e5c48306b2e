package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// Alice is the login that owns the private images.
func Alice() Login { return Login{Username: "team-a", Password: "canary-5f2d-of-team-a"} }

// Mallory is a login that the registry does not know.
func Mallory() Login { return Login{Username: "team-b", Password: "canary-77c0-of-team-b"} }

// Dora is another login that the registry knows.
func Dora() Login { return Login{Username: "team-d", Password: "canary-91ab-of-team-d"} }

// A Node is containerd, a registry that asks for credentials and one that does not.
type Node struct {
	Dir        string
	Containerd *Containerd
	Private    *Registry
	Public     *Registry
	pods       int
	closers    []func() error
	unlock     func()
}

// Check returns what is missing to run a node here, and what to do about it.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("containers are started here for real, which needs root; run it as root on a Debian machine")
	}
	for program, pkg := range map[string]string{
		"containerd": "containerd", "runc": "runc", "docker-registry": "docker-registry",
		"htpasswd": "apache2-utils", "ctr": "containerd", "mkfs.ext4": "e2fsprogs",
	} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: install Debian's package %s, or run .ci/install-debs", program, pkg)
		}
	}
	_, err := busyboxPath()
	return err
}

// Options are how a node differs from the usual one. The zero value is the usual one.
type Options struct {
	// Containerd is the program to run, "" for the machine's.
	Containerd string
	// ImageSpace is the size of a file system of its own for what containerd keeps, such as "1G".
	// "" keeps it on the disk of the node's directory.
	ImageSpace string
	// Mirrored are registries, such as "registry.k8s.io", whose images containerd pulls from the registry that needs no
	// credential.
	Mirrored []string
}

// New starts a node below a directory of its own. Close ends and removes all of it.
func New(ctx context.Context, options Options) (n *Node, err error) {
	if err := Check(); err != nil {
		return nil, err
	}
	if err := sweep(ctx); err != nil {
		return nil, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	dir, unlock, err := makeDir()
	if err != nil {
		return nil, err
	}
	n = &Node{Dir: dir, unlock: unlock}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.Public, err = StartRegistry(ctx, n.path("public")); err != nil {
		return n, err
	}
	n.closers = append(n.closers, n.Public.Close)
	if n.Private, err = StartRegistry(ctx, n.path("private"), Alice(), Dora()); err != nil {
		return n, err
	}
	n.closers = append(n.closers, n.Private.Close)
	pause, err := n.PushPublic(ctx, "pause:1", Image{Content: "pause", Entrypoint: []string{"/bin/sleep", "2147483647"}})
	if err != nil {
		return n, err
	}
	if options.ImageSpace != "" {
		if err := mountSpace(ctx, n.path("containerd"), options.ImageSpace); err != nil {
			return n, err
		}
	}
	hosts, err := n.mirror(options.Mirrored)
	if err != nil {
		return n, err
	}
	if n.Containerd, err = StartContainerd(ctx, n.path("containerd"), options.Containerd, pause.Name, hosts); err != nil {
		return n, err
	}
	n.closers = append(n.closers, n.Containerd.Close)
	return n, nil
}

// mirror writes a hosts.toml for each of some registries, and returns the folder of the files; "" without any.
func (n *Node) mirror(registries []string) (string, error) {
	if len(registries) == 0 {
		return "", nil
	}
	text := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+n.Public.Host())
	for _, r := range registries {
		if err := os.MkdirAll(n.path("hosts/"+r), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(n.path("hosts/"+r+"/hosts.toml"), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return n.path("hosts"), nil
}

func (n *Node) path(name string) string { return filepath.Join(n.Dir, name) }

// A Pushed image is one that a registry has.
type Pushed struct {
	*Built
	// Name is how a pod asks for it.
	Name string
	// Repository is its repository within the registry.
	Repository string
}

// PushPrivate builds an image and pushes it to the registry that asks for credentials.
func (n *Node) PushPrivate(ctx context.Context, name string, i Image) (Pushed, error) {
	login := Alice()
	return n.Push(ctx, n.Private, name, i, &login)
}

// PushPublic builds an image and pushes it to the registry that needs no credential.
func (n *Node) PushPublic(ctx context.Context, name string, i Image) (Pushed, error) {
	return n.Push(ctx, n.Public, name, i, nil)
}

// Push builds an image and pushes it to a registry, with a login if it asks for one.
func (n *Node) Push(ctx context.Context, r *Registry, name string, i Image, login *Login) (Pushed, error) {
	b, err := i.Build()
	if err != nil {
		return Pushed{}, err
	}
	repository := name
	if tag := strings.LastIndex(name, ":"); tag >= 0 {
		repository = name[:tag]
	}
	p := Pushed{Built: b, Name: r.Host() + "/" + name, Repository: repository}
	return p, b.Push(ctx, p.Name, login)
}

// Protect starts a pullgated before the node's containerd; Close ends it.
func (n *Node) Protect(ctx context.Context, settings ...string) (*Pullgated, error) {
	return n.ProtectRuntime(ctx, n.Containerd.Endpoint(), settings...)
}

// ProtectRuntime is Protect with a runtime's endpoint, such as that of a [CRIO].
func (n *Node) ProtectRuntime(ctx context.Context, runtime string, settings ...string) (*Pullgated, error) {
	n.pods++
	p, err := StartPullgated(ctx, n.path(fmt.Sprintf("pullgate-%d", n.pods)), runtime, settings...)
	if err != nil {
		return nil, err
	}
	n.closers = append(n.closers, func() error { return p.Stop() })
	return p, nil
}

// Close ends every part and removes the node's directory.
func (n *Node) Close() error {
	var err error
	for _, f := range slices.Backward(n.closers) {
		err = errors.Join(err, f())
	}
	err = errors.Join(err, unmountBelow(n.Dir), removeCgroups(n.Dir), os.RemoveAll(n.Dir))
	n.unlock()
	return err
}

// mountSpace makes a file system in a file and mounts it. It is not one in memory, since kubelets cannot
// determine the free space of those.
func mountSpace(ctx context.Context, dir, size string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	file := dir + ".ext4"
	if _, err := host.Run(ctx, "truncate", "--size", size, file); err != nil {
		return err
	}
	if _, err := host.Run(ctx, "mkfs.ext4", "-q", "-O", "^has_journal", file); err != nil {
		return err
	}
	_, err := host.Run(ctx, "mount", "-o", "loop", file, dir)
	return err
}

// Cgroup is the cgroup that the pods of the node are put under.
func (n *Node) Cgroup() string { return cgroupOf(n.Dir) }
