package program

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// A Sandbox is what a unit of systemd lets its program write and see. The zero value restricts nothing.
type Sandbox struct {
	unit     string
	strict   bool                // only the folders in writable can be written
	writable []string            // with everything below them
	hidden   map[string][]string // folders, by the setting that shows them
	visible  []string            // to which hidden does not apply
}

const bind = "BindReadOnlyPaths="

// SandboxOf returns the sandbox of a unit. Without systemd or the unit it restricts nothing. A nil Runner is one for
// this machine.
func SandboxOf(ctx context.Context, run Runner, unit string) Sandbox {
	folders := map[string]string{"StateDirectory": "/var/lib", "RuntimeDirectory": "/run", "LogsDirectory": "/var/log"}
	values, loaded := Show(ctx, run, unit, "ProtectSystem", "ProtectHome", "PrivateTmp", "TemporaryFileSystem",
		"ReadWritePaths", "BindPaths", "BindReadOnlyPaths", "StateDirectory", "RuntimeDirectory", "LogsDirectory")
	if !loaded {
		return Sandbox{}
	}
	s := Sandbox{unit: unit, strict: values["ProtectSystem"] == "strict", hidden: map[string][]string{}}
	paths := func(property string) (all []string) {
		for word := range strings.FieldsSeq(values[property]) {
			path := strings.TrimLeft(word, "-+")
			switch parts := strings.Split(path, ":"); {
			case property == "TemporaryFileSystem":
				path = parts[0] // PATH:OPTIONS
			case len(parts) > 1:
				path = parts[1] // FROM:TO:OPTIONS
			}
			all = append(all, path)
		}
		return all
	}
	s.writable = append(paths("ReadWritePaths"), paths("BindPaths")...)
	for property, parent := range folders {
		for name := range strings.FieldsSeq(values[property]) {
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
	s.hidden[bind] = paths("TemporaryFileSystem")
	return s
}

// Writes returns why the program cannot write a folder, nil if it can.
func (s Sandbox) Writes(dir string) error {
	if err := s.Sees(dir); err != nil {
		return err
	}
	if !s.strict || below(dir, s.writable) {
		return nil
	}
	return fmt.Errorf("%s does not let its program write %s; add ReadWritePaths=%[2]s with systemctl edit %[1]s, "+
		"and create the folder", s.unit, dir)
}

// Sees returns why the program does not see a path, nil if it does, or if the path is "".
func (s Sandbox) Sees(path string) error {
	for setting, hidden := range s.hidden {
		if path == "" || !below(path, hidden) || below(path, s.visible) {
			continue
		}
		if setting == bind {
			setting += path
		}
		return fmt.Errorf("%s hides %s from its program; move it, or add %s with systemctl edit %[1]s", s.unit, path, setting)
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
