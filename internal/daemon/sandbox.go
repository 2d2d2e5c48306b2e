package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// A sandbox is what the unit of pullgated lets it write and see. The zero value restricts nothing.
type sandbox struct {
	strict   bool                // only the folders in writable can be written
	writable []string            // with everything below them
	hidden   map[string][]string // folders, by the setting that shows them
	visible  []string            // to which hidden does not apply
}

const daemonUnit = programName + ".service"

// sandboxOf returns the sandbox of the unit. Without systemd or the unit it restricts nothing.
func sandboxOf(ctx context.Context, run program.Runner) (s sandbox) {
	folders := map[string]string{"StateDirectory": "/var/lib", "RuntimeDirectory": "/run", "LogsDirectory": "/var/log"}
	values, loaded := program.Show(ctx, run, daemonUnit, "ProtectSystem", "ProtectHome", "PrivateTmp", "ReadWritePaths",
		"BindPaths", "BindReadOnlyPaths", "StateDirectory", "RuntimeDirectory", "LogsDirectory")
	if !loaded {
		return sandbox{}
	}
	s = sandbox{strict: values["ProtectSystem"] == "strict", hidden: map[string][]string{}}
	paths := func(property string) (all []string) {
		for _, word := range strings.Fields(values[property]) {
			path := strings.TrimLeft(word, "-+")
			if parts := strings.Split(path, ":"); strings.HasPrefix(property, "Bind") && len(parts) > 1 {
				path = parts[1] // FROM:TO:OPTIONS
			}
			all = append(all, path)
		}
		return all
	}
	s.writable = append(paths("ReadWritePaths"), paths("BindPaths")...)
	for property, parent := range folders {
		for _, name := range strings.Fields(values[property]) {
			name, _, _ = strings.Cut(name, ":")
			s.writable = append(s.writable, filepath.Join(parent, name))
		}
	}
	s.visible = append(paths("BindPaths"), paths("BindReadOnlyPaths")...)
	if v := values["ProtectHome"]; v == "yes" || v == "tmpfs" {
		s.hidden["ProtectHome=read-only"] = []string{"/home", "/root", "/run/user"}
	}
	if v := values["PrivateTmp"]; v == "yes" || v == "disconnected" {
		s.hidden["PrivateTmp=no"] = []string{"/tmp", "/var/tmp"}
	}
	return s
}

// writes returns why pullgated cannot write a folder.
func (s sandbox) writes(dir string) error {
	if err := s.sees(dir); err != nil {
		return err
	}
	if !s.strict || below(dir, s.writable) {
		return nil
	}
	return fmt.Errorf("%s does not let pullgated write %s; add ReadWritePaths=%s with systemctl edit %s, and create the folder", daemonUnit, dir, dir, daemonUnit)
}

// sees returns why pullgated does not see a path.
func (s sandbox) sees(path string) error {
	for setting, hidden := range s.hidden {
		if path != "" && below(path, hidden) && !below(path, s.visible) {
			return fmt.Errorf("%s hides %s from pullgated; move it, or add %s with systemctl edit %s", daemonUnit, path, setting, daemonUnit)
		}
	}
	return nil
}

// below reports whether a path, as it is written or with its symbolic links, is one of the folders or below it.
func below(path string, folders []string) bool {
	for _, p := range []string{filepath.Clean(path), resolved(path)} {
		for _, f := range folders {
			if f = filepath.Clean(f); p == f || strings.HasPrefix(p, strings.TrimSuffix(f, "/")+"/") {
				return true
			}
		}
	}
	return false
}

// resolved follows the symbolic links in the part of a path that exists.
func resolved(path string) string {
	found, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		return found
	case path == filepath.Dir(path):
		return path
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}
