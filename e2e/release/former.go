package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// former is the last commit of pullgate before endorsements: it knows only format 1 of records.db.
const former = "013e53efd2f84373d1bdafd921ef13c3ccfc36b5"

// ErrNoHistory is the error of Former in a copy of the sources without the history of the repository, such as an
// unpacked release.
var ErrNoHistory = errors.New("the history of the repository is not there")

// Former builds the last version of pullgate that knows only format 1 of records.db, from the history of the
// repository, as Containerd does. It returns the folder with pullgated.
func Former(ctx context.Context) (dir string, err error) {
	mod, err := host.Upward(filepath.Join("cmd", "pullgated"))
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(mod))
	if _, err := host.Run(ctx, "git", "-C", root, "cat-file", "-e", former+"^{commit}"); err != nil {
		if _, fetched := host.Run(ctx, "git", "-C", root, "fetch", "--quiet", "origin", former); fetched != nil {
			return "", fmt.Errorf("%w: commit %s: %w", ErrNoHistory, former, err)
		}
	}
	return host.Cached(ctx, "pullgate "+former[:7], strings.Join([]string{"pullgate", former[:7], runtime.Version(), runtime.GOARCH}, "-"),
		func(ctx context.Context, out string) error {
			sources, err := os.MkdirTemp("", "former")
			if err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(sources) }()
			archive := filepath.Join(sources, "sources.tar")
			if _, err := host.Run(ctx, "git", "-C", root, "archive", "-o", archive, former, "go.mod", "go.sum", "cmd", "internal", "pkg", "proto"); err != nil {
				return err
			}
			if _, err := host.Run(ctx, "tar", "-C", sources, "-xf", archive); err != nil {
				return err
			}
			_, err = host.Run(ctx, "env", "-C", sources, "CGO_ENABLED=0", "GOWORK=off",
				"go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", out+"/", "./cmd/pullgated")
			return err
		})
}
