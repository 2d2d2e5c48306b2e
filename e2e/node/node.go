// Package node starts a small node of real programs for tests and for the demo: containerd, a
// registry that requires credentials, images, pullgated, and a client that sends the same calls as a kubelet.
//
// All files are below one temporary directory, with sockets and ports of its own; the machine's own runtime is not
// used. Every process is ended by its own ID. If a program does not start, the error contains the last lines of its
// output.
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
	// ImageSpace is the size of a file system of its own for what containerd keeps, such as "1G"; "" for none.
	ImageSpace string
	// Mirrored are registries, such as "registry.k8s.io", for which containerd pulls from the public one.
	Mirrored []string
}

// New starts a node below a directory of its own. Close ends and removes all of it.
func New(ctx context.Context, options Options) (n *Node, err error) {
	if err := errors.Join(Check(), sweep(ctx)); err != nil {
		return nil, err
	}
	n = &Node{}
	if n.Dir, n.unlock, err = makeDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	defer host.Catch(&err)
	n.Public = host.Must(StartRegistry(ctx, n.path("public")))
	n.closers = append(n.closers, n.Public.Close)
	n.Private = host.Must(StartRegistry(ctx, n.path("private"), Alice(), Dora()))
	n.closers = append(n.closers, n.Private.Close)
	sleep := Image{Content: "pause", Entrypoint: []string{"/bin/sleep", "2147483647"}}
	pause := host.Must(n.Public.Push(ctx, "pause:1", sleep)).Name
	dir := n.path("containerd")
	if options.ImageSpace != "" {
		mountSpace(ctx, dir, options.ImageSpace)
	}
	n.Containerd = host.Must(StartContainerd(ctx, dir, options.Containerd, pause, n.mirror(options.Mirrored)))
	n.closers = append(n.closers, n.Containerd.Close)
	return n, nil
}

// mirror writes a hosts.toml for each of some registries, and returns the folder of the files; "" without any.
func (n *Node) mirror(registries []string) string {
	if len(registries) == 0 {
		return ""
	}
	text := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+n.Public.Host())
	for _, r := range registries {
		host.Check(os.MkdirAll(n.path("hosts/"+r), 0o755))
		host.Check(os.WriteFile(n.path("hosts/"+r+"/hosts.toml"), []byte(text), 0o644))
	}
	return n.path("hosts")
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

// Push builds an image and pushes it to the registry.
func (r *Registry) Push(ctx context.Context, name string, i Image) (p Pushed, err error) {
	defer host.Catch(&err)
	b := host.Must(i.Build())
	repository, _, _ := strings.Cut(name, ":")
	p = Pushed{Built: b, Name: r.Host() + "/" + name, Repository: repository}
	return p, b.Push(ctx, p.Name)
}

// Protect starts a pullgated before a runtime, such as the node's containerd or a [CRIO]; Close ends it.
func (n *Node) Protect(ctx context.Context, runtime string, settings ...string) (p *Pullgated, err error) {
	defer host.Catch(&err)
	n.pods++
	p = host.Must(StartPullgated(ctx, n.path(fmt.Sprintf("pullgate-%d", n.pods)), runtime, settings...))
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

// mountSpace mounts a file system in a file. Kubelets cannot determine the free space of one in memory.
func mountSpace(ctx context.Context, dir, size string) {
	host.Check(os.MkdirAll(dir, 0o711))
	file := dir + ".ext4"
	host.Must(host.Run(ctx, "truncate", "--size", size, file))
	host.Must(host.Run(ctx, "mkfs.ext4", "-q", "-O", "^has_journal", file))
	host.Must(host.Run(ctx, "mount", "-o", "loop", file, dir))
}

// Cgroup is the cgroup that the pods of the node are put under.
func (n *Node) Cgroup() string { return cgroupOf(n.Dir) }
