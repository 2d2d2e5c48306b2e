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
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

const (
	suite  = "bookworm"
	mirror = "http://deb.debian.org/debian"
	// buildLimit is how long the download may take.
	buildLimit = 15 * time.Minute
)

// packages are what a machine has beside the least that makes a Debian.
func packages() []string { return []string{"systemd", "systemd-sysv", "rpm"} }

// debian returns a folder with a Debian, made once and kept in the cache folder of the user. Nothing is ever
// written to it again.
func debian(ctx context.Context) (string, error) {
	for program, pkg := range map[string]string{"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s is missing: install Debian's package %s, or run .ci/install-debs", program, pkg)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep a Debian: %w; set XDG_CACHE_HOME", err)
	}
	include := strings.Join(packages(), ",")
	key := sha256.Sum256([]byte(include))
	dir := filepath.Join(cache, "pullgate", "debian-"+suite+"-"+hex.EncodeToString(key[:4]))
	unlock, err := host.Lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	began := time.Now()
	fmt.Fprintf(os.Stderr, "Fetching a Debian %s with systemd, which takes a minute the first time …\n", suite)
	part := dir + ".part" // beside it, so that dir is there whole or not at all
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if _, err := host.Run(ctx, "debootstrap", "--variant=minbase", "--include="+include, suite, part, mirror); err != nil {
		return "", fmt.Errorf("%w; see %s", err, filepath.Join(part, "debootstrap/debootstrap.log"))
	}
	fmt.Fprintf(os.Stderr, "Fetched it in %v; it stays in %s\n", time.Since(began).Round(time.Second), dir)
	return dir, os.Rename(part, dir)
}
