package program

import (
	"context"
	"os/exec"
	"strings"
	"time"
)

const limit = 2 * time.Second

// A Runner runs a program and returns what it wrote to stdout.
type Runner func(ctx context.Context, name string, args ...string) ([]byte, error)

// Show returns properties of a unit; one that has several values has a line for each. loaded is false if systemd does
// not have the unit, or if there is no systemd. A nil Runner is one for this machine.
func Show(ctx context.Context, run Runner, unit string, properties ...string) (values map[string]string, loaded bool) {
	if run == nil {
		run = func(ctx context.Context, name string, args ...string) ([]byte, error) {
			return exec.CommandContext(ctx, name, args...).Output() //nolint:gosec // systemctl
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := run(ctx, "systemctl", "show", "--property=LoadState,"+strings.Join(properties, ","), "--", unit)
	if err != nil {
		return nil, false
	}
	values = map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		if before := values[k]; before != "" {
			v = before + "\n" + v
		}
		values[k] = v
	}
	return values, values["LoadState"] == "loaded"
}
