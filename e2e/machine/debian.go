package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

const (
	suite  = "bookworm"
	mirror = "http://deb.debian.org/debian"
)

// packages are what a machine has beside the least that makes a Debian.
func packages() []string { return []string{"systemd", "systemd-sysv", "dbus", "rpm"} }

// debian returns a folder with a Debian of the cache. Nothing is written to it again.
func debian(ctx context.Context) (string, error) {
	for program, pkg := range map[string]string{"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s is missing: install Debian's package %s, or run .ci/install-debs", program, pkg)
		}
	}
	include := strings.Join(packages(), ",")
	key := sha256.Sum256([]byte(include))
	what, name := "a Debian "+suite+" with systemd", "debian-"+suite+"-"+hex.EncodeToString(key[:4])
	return host.Cached(ctx, what, name, func(ctx context.Context, dir string) error {
		if _, err := host.Run(ctx, "debootstrap", "--variant=minbase", "--include="+include, suite, dir, mirror); err != nil {
			return fmt.Errorf("%w\n%s", err, host.Tail(filepath.Join(dir, "debootstrap/debootstrap.log"), 15))
		}
		return os.Chmod(dir, 0o755) // it is / of the machine
	})
}
