package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientauthentication "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
)

const (
	daemonUnit = "pullgated.service"
	// programLimit bounds one run of a program that prints a credential.
	programLimit = 10 * time.Second
	// maxQuoted bounds what is quoted of its error.
	maxQuoted = 300

	programPage = "see https://github.com/pullgate/pullgate/blob/main/docs/platforms.md#kubeconfigs-that-run-a-program"
	// notRun is the advice about a program that doctor does not run.
	notRun = " in the sandbox of the unit, which can forbid what it does: " + programPage
)

// sandboxProperties are the settings of pullgated.service, and of its drop-ins, that a program which it starts shares.
func sandboxProperties() []string {
	return []string{
		"User", "Group", "SupplementaryGroups", "Environment", "UMask", "CapabilityBoundingSet",
		"AmbientCapabilities", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateMounts", "PrivateTmp",
		"PrivateDevices", "PrivateNetwork", "PrivateUsers", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectHostname",
		"ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectControlGroups", "ProtectProc",
		"ProcSubset", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
		"LockPersonality", "MemoryDenyWriteExecute", "KeyringMode", "SystemCallArchitectures", "SystemCallFilter",
		"SystemCallErrorNumber", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "BindPaths", "BindReadOnlyPaths",
		"TemporaryFileSystem", "IPAddressAllow", "IPAddressDeny",
	}
}

// A line is one of a drop-in for pullgated.service, perhaps with others that it needs.
type line []string

// adds reports whether a setting adds to the values that the unit has.
func adds(setting string) bool {
	return slices.Contains([]string{
		"CapabilityBoundingSet", "ReadWritePaths", "RestrictAddressFamilies", "SystemCallFilter",
	}, setting)
}

// candidates are the lines that may let a program work in the sandbox.
func candidates(p *clientcmdapi.ExecConfig) []line {
	all := []line{{"ProtectHome=read-only"}}
	for _, dir := range folders(p) {
		all = append(all, line{"ReadWritePaths=-" + dir})
	}
	return append(all,
		line{"MemoryDenyWriteExecute=no"},
		line{"SystemCallFilter=@resources"},
		line{"SystemCallFilter=@privileged"},
		line{"RestrictAddressFamilies=AF_NETLINK"},
		line{"PrivateDevices=no", "DevicePolicy=auto"},
		line{"PrivateTmp=no"},
		line{"CapabilityBoundingSet=CAP_DAC_OVERRIDE"},
	)
}

// folders are the absolute paths in the arguments and variables of a program: it may have to write there.
func folders(p *clientcmdapi.ExecConfig) (all []string) {
	words := slices.Clone(p.Args)
	for _, e := range p.Env {
		words = append(words, e.Value)
	}
	for _, w := range words {
		if _, value, ok := strings.Cut(w, "="); ok {
			w = value
		}
		if w = path.Clean(w); path.IsAbs(w) && w != "/" && !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// programOf returns the program by which the user of a kubeconfig gets a credential, nil if there is none. Its command
// is an absolute path, or a name.
func (h Host) programOf(kubeconfig string) *clientcmdapi.ExecConfig {
	content, err := h.ReadFile(kubeconfig)
	if err != nil {
		return nil
	}
	c, err := clientcmd.Load(content)
	if err != nil || c.Contexts[c.CurrentContext] == nil {
		return nil
	}
	user := c.AuthInfos[c.Contexts[c.CurrentContext].AuthInfo]
	if user == nil || user.Exec == nil {
		return nil
	}
	if p := user.Exec; strings.Contains(p.Command, "/") && !filepath.IsAbs(p.Command) {
		p.Command = filepath.Join(filepath.Dir(kubeconfig), p.Command)
	}
	return user.Exec
}

// Sees returns why a unit hides a kubeconfig, or the program that it runs for a credential, from the program of the
// unit; nil if it does not.
func (h Host) Sees(ctx context.Context, unit, kubeconfig string) error {
	s := program.SandboxOf(ctx, h.Run, unit)
	err := s.Sees(kubeconfig)
	if p := h.programOf(kubeconfig); p != nil && filepath.IsAbs(p.Command) {
		err = errors.Join(err, s.Sees(p.Command))
	}
	return err
}

// credentialProgram is what to do if the program by which a kubeconfig gets a credential does not work for pullgated;
// "" if there is none. It runs the program, as pullgated does, in a transient unit with the sandbox of
// pullgated.service; and, if it fails there and not without the sandbox, with lines of a drop-in, to name those that it
// needs.
func (n Node) credentialProgram(ctx context.Context, kubeconfig string) (advice string) {
	p := n.programOf(kubeconfig)
	if p == nil {
		return ""
	}
	runs := fmt.Sprintf("; %s runs %s", kubeconfig, p.Command)
	sandbox, loaded := program.Show(ctx, n.Run, daemonUnit, append(sandboxProperties(), "StateDirectory",
		"RuntimeDirectory", "LogsDirectory")...)
	// What a user other than root has named or written does not run without the sandbox. What needs the cluster is not on
	// a node.
	if !loaded || n.NoNetwork || p.ProvideClusterInfo || !n.isRoots(append(filesOf(p.Command), kubeconfig)...) {
		return runs + notRun
	}
	t := trial{node: n, program: p, sandbox: sandbox}
	why := t.run(ctx, nil)
	if why == nil {
		return runs + ", which prints a credential in the sandbox of the unit"
	}
	all := candidates(p)
	switch outside := t.outside(ctx); {
	case errors.Is(outside, exec.ErrNotFound): // systemd-run
		return runs + notRun
	case outside != nil:
		return fmt.Sprintf("%s, which fails without the sandbox of the unit too: %s", runs, quoted(outside))
	case t.run(ctx, all) != nil:
		return fmt.Sprintf("%s, which fails in the sandbox of the unit and not without it: %s: %s", runs, quoted(why),
			programPage)
	}
	for _, l := range slices.Clone(all) {
		without := slices.DeleteFunc(slices.Clone(all), func(o line) bool { return slices.Equal(o, l) })
		if t.run(ctx, without) == nil {
			all = without
		}
	}
	return fmt.Sprintf("%s, which fails in the sandbox of the unit (%s) and works with %s: add that with systemctl edit "+
		"pullgated, below [Service], then systemctl restart pullgated", runs, quoted(why),
		strings.Join(slices.Concat(all...), " and "))
}

// filesOf returns the files that a command can be, of which the first one that exists is run.
func filesOf(command string) (files []string) {
	if filepath.IsAbs(command) {
		return []string{command}
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} { // of units of systemd
		files = append(files, path.Join(dir, command))
	}
	return files
}

// isRoots reports whether no user other than root can write files, as far as they exist, or replace them.
func (h Host) isRoots(files ...string) bool {
	for _, file := range files {
		for _, name := range []string{file, path.Dir(file)} {
			info, err := os.Stat(h.Path(name))
			if err == nil && disk.OthersWrite(info, 0) || err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false
			}
		}
	}
	return true
}

// A trial runs a program of a kubeconfig in transient units.
type trial struct {
	node    Node
	program *clientcmdapi.ExecConfig
	sandbox map[string]string
}

// run runs the program in the sandbox with lines added, and returns why it prints no credential.
func (t trial) run(ctx context.Context, lines []line) error {
	settings := maps.Clone(t.sandbox)
	delete(settings, "LoadState")
	// systemd would set the mode and the owner of directories that a transient unit has.
	for _, d := range [][2]string{
		{"StateDirectory", "/var/lib"}, {"RuntimeDirectory", "/run"}, {"LogsDirectory", "/var/log"},
	} {
		for dir := range strings.FieldsSeq(settings[d[0]]) {
			dir, _, _ = strings.Cut(dir, ":")
			settings["ReadWritePaths"] += " -" + path.Join(d[1], dir)
		}
		delete(settings, d[0])
	}
	settings["ReadWritePaths"] = strings.TrimSpace(settings["ReadWritePaths"])
	for _, l := range slices.Concat(lines...) {
		setting, value, _ := strings.Cut(l, "=")
		if adds(setting) {
			value = settings[setting] + " " + value
		}
		settings[setting] = strings.TrimSpace(value)
	}
	return t.start(ctx, settings)
}

// outside runs the program with the account and the variables of the unit, and without its sandbox.
func (t trial) outside(ctx context.Context) error {
	settings := map[string]string{}
	for _, name := range []string{"User", "Group", "SupplementaryGroups", "Environment"} {
		settings[name] = t.sandbox[name]
	}
	return t.start(ctx, settings)
}

func (t trial) start(ctx context.Context, settings map[string]string) error {
	args := []string{
		"--quiet", "--wait", "--pipe", "--collect", "--service-type=exec",
		fmt.Sprintf("--property=RuntimeMaxSec=%d", int(programLimit.Seconds())),
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		switch value := settings[name]; {
		case value == "" && name != "CapabilityBoundingSet": // its only one of which "" is not the default
		case name == "DeviceAllow":
			for one := range strings.SplitSeq(value, "\n") {
				args = append(args, "--property=DeviceAllow="+one)
			}
		default:
			args = append(args, "--property="+name+"="+value)
		}
	}
	info, err := json.Marshal(map[string]any{
		"apiVersion": t.program.APIVersion, "kind": "ExecCredential", "spec": map[string]any{"interactive": false},
	})
	if err != nil {
		return err
	}
	args = append(args, "--setenv=KUBERNETES_EXEC_INFO="+string(info))
	if len(t.program.Env) > 0 {
		file, err := t.writeVariables()
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(file) }() // in a folder that the next boot empties
		args = append(args, "--property=EnvironmentFile=/run/"+filepath.Base(file))
	}
	// The shell searches the path of the unit, and systemd-run that of this process.
	args = append(args, "--", "/bin/sh", "-c", `exec "$0" "$@"`, t.program.Command)
	ctx, cancel := context.WithTimeout(ctx, programLimit+patience)
	defer cancel()
	out, err := t.node.Run(ctx, "systemd-run", append(args, t.program.Args...)...)
	if err != nil {
		return err
	}
	var credential clientauthentication.ExecCredential // v1beta1 has the same fields
	if err := json.Unmarshal(out, &credential); err != nil || credential.Status == nil {
		return errors.New("it prints no ExecCredential with a status")
	}
	return nil
}

// writeVariables writes the variables of the kubeconfig to a file that root alone can read. They may have a secret, and
// everybody can see arguments, and the property Environment of a unit.
func (t trial) writeVariables() (file string, err error) {
	f, err := os.CreateTemp(t.node.Path("/run"), "pullgate-doctor-")
	if err != nil {
		return "", err
	}
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$", `\$`)
	for _, e := range t.program.Env {
		_, writeErr := fmt.Fprintf(f, "%s=\"%s\"\n", e.Name, escape.Replace(e.Value))
		err = errors.Join(err, writeErr)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func quoted(err error) string {
	text := []rune(err.Error())
	return string(text[:min(len(text), maxQuoted)])
}
