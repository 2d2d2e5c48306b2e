package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
)

func (n Node) kubelet(ctx context.Context) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := n.Discover(ctx, "")
	if err != nil {
		return n.kubeletProcesses(err)
	}
	next := n.judge("the kubelet of "+found.Unit.Name, found.Configured)
	if found.Running == nil {
		return append(next, n.kubeletFiles(ctx, found.Configured)...)
	}
	all := n.judge(found.Process.String(), *found.Running)
	if all[0].Level != next[0].Level {
		remediation := cmp.Or(next[0].Remediation, "restart the kubelet; running pods continue")
		all = append(all, warn(remediation, "%s, once it is restarted", next[0].Found)...)
	}
	return append(all, n.kubeletFiles(ctx, *found.Running)...)
}

func (n Node) kubeletFiles(ctx context.Context, s Settings) []Finding {
	if n.Stale != nil {
		if stale, err := n.Stale(ctx, n.Host, n.Config.Listen); err == nil && stale != "" {
			return append(n.kubeletRoot(s), warn("pullgatectl node enable", "%s", stale)...)
		}
	}
	return n.kubeletRoot(s)
}

func (n Node) kubeletRoot(s Settings) []Finding {
	if err := s.CheckRoot(n.Config.Admission.KubeletRoot); err != nil && n.Config.Admission.Policies != "" {
		return fail(program.HintOf(err), "%v", err)
	}
	return nil
}

func (n Node) rootDirectory(ctx context.Context) []Finding {
	if n.Config.Admission.Policies == "" {
		return nil
	}
	err := n.Host.CheckRoot(ctx, n.Unit, n.Config.Admission.KubeletRoot)
	if err == nil {
		return nil
	}
	return warn(program.HintOf(err), "%v", err)
}

// CheckRoot returns why policies would take the volumes of pods for hostPath volumes. The kubelet of the host shows it;
// without one, the directory does. unit is the unit that runs the kubelet; "" searches for one.
func (h Host) CheckRoot(ctx context.Context, unit, root string) error {
	found, err := h.Discover(ctx, unit)
	if err != nil {
		if _, err := os.Stat(filepath.Join(root, "pods")); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("admission.kubeletRoot: %s/pods not found; if a kubelet has run on this node, set "+
			"admission.kubeletRoot to its --root-dir", root)
	}
	return cmp.Or(found.Running, &found.Configured).CheckRoot(root)
}

func (n Node) kubeletProcesses(why error) (all []Finding) {
	if errors.Is(why, ErrSeveralKubelets) || errors.Is(why, fs.ErrPermission) {
		return unknown("run it as root; pullgatectl node status --unit UNIT shows it for one unit",
			"what the kubelet dials: %v", why)
	}
	for _, p := range n.running("kubelet", "k3s", "k3s-server", "k3s-agent", "rke2") {
		s, err := n.ProcessSettings(p.PID)
		if err != nil {
			all = append(all, unknown("check as root that the file exists and can be read", "what %s dials: %v", p, err)...)
			continue
		}
		all = slices.Concat(all, n.judge(p.String(), s), n.kubeletRoot(s))
	}
	if len(all) == 0 {
		all = append(all, unknown("run it on the node, as root, with the kubelet running",
			"what the kubelet dials: no kubelet process found: %v", why)...)
	}
	return all
}

func (n Node) judge(kubelet string, s Settings) []Finding {
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

// A Kind is how a node's kubelet is run, which decides where it is configured.
type Kind string

// The kinds of nodes.
const (
	KindKubelet Kind = "kubelet" // a systemd unit that runs the kubelet
	KindKubeadm Kind = "kubeadm" // the same as kubeadm sets it up
	KindK3s     Kind = "k3s"     // runs the kubelet within itself
	KindRKE2    Kind = "rke2"    // starts the kubelet, and is configured like k3s
)

// Rancher reports whether the kubelet is configured by k3s or RKE2.
func (k Kind) Rancher() bool { return k == KindK3s || k == KindRKE2 }

func units() []string {
	return []string{"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"}
}

// A Kubelet is how a node's kubelet is run and configured.
type Kubelet struct {
	Kind                     Kind
	Unit                     Unit
	ExecStart, ExecStartFrom string   // the command line of the unit as in the file ExecStartFrom, on one line
	Program                  string   // the name of the program that ExecStart runs, without its folder
	RancherConfig            string   // the configuration file of k3s or RKE2; "" elsewhere
	Configured               Settings // the settings of the kubelet when it starts the next time
	// Running are the settings of the running kubelet by its flags and the files now; nil if not found, as under k3s.
	Running *Settings
	Process Process // the running kubelet, if it was found
}

// Dials returns what the kubelet dials, by the file that sets it if a restart would not change that.
func (n Kubelet) Dials() Settings {
	r, c := n.Running, n.Configured
	if r != nil && (r.Runtime.Value != c.Runtime.Value || r.Image.Value != c.Image.Value) {
		return *r
	}
	return c
}

// Through reports whether settings send both services to one endpoint.
func (s Settings) Through(endpoint string) bool {
	return Same(s.Runtime.Value, endpoint) && Same(s.Image.Value, endpoint)
}

// Discover returns how the kubelet of a host is run and configured. unit is the unit that runs it; "" looks for one.
func (h Host) Discover(ctx context.Context, unit string) (Kubelet, error) {
	u, err := h.find(ctx, unit)
	if err != nil {
		return Kubelet{}, err
	}
	s, err := h.service(u)
	if err != nil {
		return Kubelet{}, err
	}
	args, before, config, err := h.arguments(s)
	if err != nil {
		return Kubelet{}, err
	}
	n := Kubelet{
		Kind: KindKubelet, Unit: u, ExecStart: s.execStart, ExecStartFrom: s.execStartFrom, Program: s.program(),
		RancherConfig: config, Process: h.kubeletOf(u.MainPID),
	}
	running := n.Process.words()
	switch {
	case config != "":
		n.Kind = Kind(n.Program)
	case slices.ContainsFunc(u.Files, func(f string) bool { return path.Base(f) == "10-kubeadm.conf" }):
		n.Kind = KindKubeadm
	}
	if config == "" && n.Program != "kubelet" {
		// A script: the flags that it gives the kubelet are known only while the kubelet runs.
		if n.Process.PID == 0 {
			return Kubelet{}, fmt.Errorf("%s runs %s, but no kubelet was found among its processes", u.Name, s.words[0].text)
		}
		args = running
	}
	if n.Configured, err = h.settings(args, before); err != nil || n.Process.PID == 0 {
		return n, err
	}
	now, err := h.settings(running, before)
	n.Running = &now
	return n, err
}

func (h Host) arguments(s service) (args []word, before Settings, config string, err error) {
	if !Kind(s.program()).Rancher() {
		return s.words[1:], kubeletDefaults(), "", nil
	}
	r, err := h.rancher(s)
	if err != nil {
		return nil, Settings{}, "", err
	}
	return r.kubeletArgs(h), r.before(), r.file, nil
}

// ProcessSettings returns the settings of the kubelet that a process runs: by the flags of the process and by files as
// they are now, and where the process is k3s or RKE2 by their configuration. It asks no unit, so that a variable of one
// that names another configuration of k3s is not seen; Discover sees it.
func (h Host) ProcessSettings(pid int) (Settings, error) {
	line := h.commandLine(pid)
	if len(line) == 0 || strings.TrimSpace(line[0]) == "" {
		return Settings{}, fmt.Errorf("process %d has no command line that can be read", pid)
	}
	args := append(strings.Fields(line[0]), line[1:]...) // k3s shows its first words as one
	words := append([]word{{text: args[0]}}, Process{PID: pid, Args: args}.words()...)
	configured, before, _, err := h.arguments(service{words: words, environment: map[string]word{}})
	if err != nil {
		return Settings{}, err
	}
	return h.settings(configured, before)
}

func (p Process) words() (all []word) {
	for _, arg := range p.Args[min(1, len(p.Args)):] {
		all = append(all, word{arg, fmt.Sprintf("the command line of process %d", p.PID)})
	}
	return all
}

func (h Host) find(ctx context.Context, name string) (Unit, error) {
	if name != "" {
		if path.Ext(name) == "" {
			name += ".service"
		}
		found, err := h.Units(ctx, name)
		if err != nil {
			return Unit{}, err
		}
		if !found[0].Loaded {
			return Unit{}, fmt.Errorf("%w: systemd has no unit %s", ErrNoKubelet, name)
		}
		return found[0], nil
	}
	all, err := h.Units(ctx, units()...)
	if err != nil {
		return Unit{}, err
	}
	loaded := slices.DeleteFunc(all, func(u Unit) bool { return !u.Loaded })
	if slices.ContainsFunc(loaded, Unit.Up) {
		loaded = slices.DeleteFunc(loaded, func(u Unit) bool { return !u.Up() })
	}
	var names []string
	for _, u := range loaded {
		names = append(names, u.Name)
	}
	switch len(loaded) {
	case 0:
		return Unit{}, fmt.Errorf("%w: systemd has none of the units %s", ErrNoKubelet, strings.Join(units(), ", "))
	case 1:
		return loaded[0], nil
	}
	return Unit{}, fmt.Errorf("%w: %s", ErrSeveralKubelets, strings.Join(names, " and "))
}

// Up reports whether a unit runs, or is about to.
func (u Unit) Up() bool { return u.Active != "inactive" && u.Active != "failed" }

const maxSize = 1 << 20

// A Host is the machine to inspect. The zero value is the one that this program runs on.
type Host struct {
	Root string // the folder that replaces /; "" is / itself
	// Command runs a program and returns what it wrote to stdout; nil runs it on this machine.
	Command func(ctx context.Context, name string, args ...string) ([]byte, error)

	changed map[string][]byte
}

// Run runs a program and returns what it wrote to stdout. Its error ends with what that wrote to stderr.
func (h Host) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	if h.Command != nil {
		return h.Command(ctx, name, args...)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // systemctl and journalctl, which the callers name
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		output := strings.Join(strings.Fields(stderr.String()), " ")
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", name, err, output)
	}
	return stdout.Bytes(), nil
}

// With returns the host as it would be if these files, by their absolute paths, had this content; nil stands for a
// file that is absent. Processes and units are as they are.
func (h Host) With(files map[string][]byte) Host {
	all := map[string][]byte{}
	maps.Copy(all, h.changed)
	maps.Copy(all, files)
	h.changed = all
	return h
}

// Path returns where a file of the host is.
func (h Host) Path(elements ...string) string {
	return filepath.Join("/", h.Root, filepath.Join(elements...))
}

// ReadFile returns the content of a regular file. One of more than 1 MiB is an error.
func (h Host) ReadFile(path string) ([]byte, error) {
	if content, ok := h.changed[filepath.Clean(path)]; ok {
		if content == nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return content, nil
	}
	return disk.Read(h.Path(path), maxSize)
}

// files returns all files below a folder in the order of filepath.WalkDir, which is the kubelet's; none if absent.
func (h Host) files(dir string) ([]string, error) {
	var all []string
	root := h.Path(dir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if path := filepath.Join(dir, rel); err == nil && !h.isChanged(path) {
			all = append(all, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for path, content := range h.changed {
		if content != nil && strings.HasPrefix(path, filepath.Clean(dir)+"/") {
			all = append(all, path)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return all, nil
}

func (h Host) isChanged(path string) bool {
	_, ok := h.changed[path]
	return ok
}

func (h Host) exists(path string) bool {
	content, changed := h.changed[filepath.Clean(path)]
	_, err := os.Stat(h.Path(path))
	return content != nil || !changed && err == nil
}

func (h Host) kubeletOf(mainPID int) Process {
	for _, pid := range append([]int{mainPID}, h.pids()...) {
		args := h.commandLine(pid)
		if len(args) > 0 && path.Base(args[0]) == "kubelet" && mainPID != 0 && h.descends(pid, mainPID) {
			return Process{pid, "kubelet", args}
		}
	}
	return Process{}
}

func (h Host) words(pid int) []word { return Process{PID: pid, Args: h.commandLine(pid)}.words() }

func (h Host) pids() (pids []int) {
	entries, _ := os.ReadDir(h.Path("/proc")) // without it no process is known
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func (h Host) commandLine(pid int) []string {
	content, err := os.ReadFile(h.Path(fmt.Sprintf("/proc/%d/cmdline", pid)))
	if err != nil || len(content) == 0 {
		return nil // it has ended, or is one of the kernel
	}
	return strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
}

func (h Host) descends(pid, ancestor int) bool {
	for range 32 { // the chain may change under the eyes
		if pid == ancestor || pid <= 1 {
			return pid == ancestor
		}
		stat, _ := os.ReadFile(h.Path(fmt.Sprintf("/proc/%d/stat", pid)))
		// The name of the program is in brackets and may contain any character.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			return false
		}
		pid, _ = strconv.Atoi(string(fields[1])) // 0 if it is not a number
	}
	return false
}
