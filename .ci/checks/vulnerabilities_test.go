package checks_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// database writes a database in the format of vuln.go.dev with one entry, which says that a function of a module is
// vulnerable in each version, and returns its URL.
func database(t *testing.T, function string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"index/db.json":      `{"modified": "2026-01-02T03:04:05Z"}`,
		"index/modules.json": `[{"path": "MODULE", "vulns": [{"id": "GO-2026-0001", "modified": "2026-01-02T03:04:05Z"}]}]`,
		"ID/GO-2026-0001.json": `{"schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-02T03:04:05Z",
			"summary": "a test", "database_specific": {"url": "https://pkg.go.dev/vuln/GO-2026-0001"},
			"affected": [{"package": {"name": "MODULE", "ecosystem": "Go"},
				"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
				"ecosystem_specific": {"imports": [{"path": "MODULE", "symbols": ["FUNCTION"]}]}}]}`,
	} {
		content = strings.NewReplacer("MODULE", "github.com/distribution/reference", "FUNCTION", function).Replace(content)
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "file://" + dir
}

// The step of a release fails if a vulnerable function is called, and says so if it has not looked.
func TestVulnerabilities(t *testing.T) {
	for name, tc := range map[string]struct {
		database string
		fails    bool
		want     string
	}{
		"called":             {database(t, "ParseDockerRef"), true, `(?s)GO-2026-0001.* calls reference\.ParseDockerRef`},
		"not called":         {database(t, "ParseAnyReference"), false, "affected by 0 vulnerabilities"},
		"no database":        {"", false, "govulncheck did NOT run: set GOVULNDB"},
		"an absent database": {"file://" + filepath.Join(t.TempDir(), "absent"), true, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, ".ci/vulnerabilities"), "./pkg/imageref")
			cmd.Env = append(os.Environ(), "GOVULNDB="+tc.database)
			out, err := cmd.CombinedOutput()
			if (err != nil) != tc.fails || !regexp.MustCompile(tc.want).Match(out) {
				t.Errorf("vulnerabilities: %v\n%s\nwant failed %t, with %q", err, out, tc.fails, tc.want)
			}
		})
	}
}
