package checks_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The checklist that is read and the one that is followed are the same.
func TestReleaseFollowsItsChecklist(t *testing.T) {
	steps := func(file, pattern string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
			all = append(all, m[1])
		}
		return all
	}
	written := steps("docs/design/releasing.md", `(?m)^\d+\. \*\*(.+)\.\*\*`)
	followed := steps(".ci/release", `(?m)^step "(.+)"$`)
	if len(written) == 0 || !slices.Equal(written, followed) {
		t.Errorf("docs/design/releasing.md lists %q, make release follows %q; want the same", written, followed)
	}
}

func TestChangelogIsReadyOrHasAnError(t *testing.T) {
	const ready = "# Changelog\n\n## 1.2.3 – 2026-12-24\n\nStore format: 3.\n\n### Added\n\n- Something.\n\n" +
		"## 1.2.2 – 2026-11-24\n"
	for name, tc := range map[string]struct{ old, new, want string }{
		"ready":                  {"", "", ""},
		"still unreleased":       {"1.2.3 – 2026-12-24", "Unreleased", "newest section is '## Unreleased'"},
		"of another version":     {"1.2.3 –", "1.2.4 –", "newest section is '## 1.2.4"},
		"without a date":         {" – 2026-12-24", "", "newest section is '## 1.2.3'"},
		"without a store format": {"Store format: 3.", "", "does not contain 'Store format: 3.'"},
		"of another format":      {"format: 3.", "format: 1.", "does not contain 'Store format: 3.'"},
		"without a change":       {"- Something.", "", "names no change"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "CHANGELOG.md")
			text := strings.Replace(ready, tc.old, tc.new, 1)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), filepath.Join(root, ".ci/changelog"), "v1.2.3", file).CombinedOutput()
			if (err == nil) != (tc.want == "") || !strings.Contains(string(out), tc.want) {
				t.Errorf("changelog = %v, %s; want %q", err, out, tc.want)
			}
		})
	}
}
