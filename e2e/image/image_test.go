// Package image_test runs the programs of the container image in a real containerd.
package image_test

import (
	"crypto/x509/pkix"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A containerd imports the image. Its programs run, and without a command it is pullgate-policyd, as a user without
// rights and with a root directory that cannot be written, as in the Deployment of pullgate-policyd manifests.
func TestImageRuns(t *testing.T) {
	testkit.Must(t, node.Check())
	dir := t.TempDir()
	archive, began := build(t, dir), time.Now()
	c := testkit.Value(node.StartContainerd(t.Context(), filepath.Join(dir, "containerd"), "", "pause", ""))(t)
	host.AtEnd(t, c.Close)
	ctr := func(args ...string) string {
		t.Helper()
		if args[0] == "run" { // not where the machine has containers
			args = slices.Insert(args, 1, "--runc-root", filepath.Join(dir, "containerd/runc"))
		}
		return testkit.Value(c.Ctr(t.Context(), args...))(t)
	}
	ctr("images", "import", "--base-name", "image.test/pullgate", archive)
	const image = "image.test/pullgate:v0.0.1"
	for _, program := range []string{"pullgated", "pullgate-policyd", "pullgatectl", "pullgate-dispatcher"} {
		if got := ctr("run", "--rm", image, program, "/usr/bin/"+program, "--version"); !strings.HasPrefix(got, program+" ") {
			t.Errorf("%s --version prints %q", program, got)
		}
	}

	config, metrics := filepath.Join(dir, "config"), fmt.Sprintf("127.0.0.1:%d", testkit.Value(host.FreePort())(t))
	testkit.Must(t, os.Mkdir(config, 0o755))
	authority := testkit.Value(testkit.NewAuthority("webhook"))(t)
	pair := testkit.Value(authority.Issue(pkix.Name{CommonName: "webhook"}, time.Now().Add(time.Hour), "webhook.test"))(t)
	for name, data := range map[string][]byte{
		"tls.crt": pair.Certificate, "tls.key": pair.Key, "policyd.yaml": fmt.Appendf(nil, `
apiVersion: config.pullgate.dev/v1alpha1
kind: PolicydConfiguration
metrics: {listen: %q}
https: {listen: "127.0.0.1:%d", certFile: /etc/pullgate/tls.crt, keyFile: /etc/pullgate/tls.key}
`, metrics, testkit.Value(host.FreePort())(t)),
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(config, name), data, 0o644))
	}
	mount := "type=bind,src=" + config + ",dst=/etc/pullgate,options=rbind:ro"
	ctr("run", "--detach", "--net-host", "--read-only", "--mount", mount, image, "policyd")
	if !host.Within(10*time.Second, func() bool { return host.Answers("http://"+metrics+"/readyz")() == nil }) {
		t.Fatalf("no answer of the entry point; tasks are\n%s", ctr("tasks", "list"))
	}
	pid := regexp.MustCompile(`(?m)^policyd +(\d+) `).FindStringSubmatch(ctr("tasks", "list"))
	if pid == nil {
		t.Fatal("no task has the name")
	}
	status := testkit.Value(os.ReadFile("/proc/" + pid[1] + "/status"))(t)
	if !strings.Contains(string(status), "Uid:\t65532\t65532\t65532\t65532\nGid:\t65532\t") {
		t.Errorf("status of pullgate-policyd is\n%s\nwant the user and the group 65532", status)
	}
	t.Logf("%v without the build", time.Since(began).Round(time.Millisecond))
}

// build builds the signed image of the built programs: the layout has more than the image.
func build(t *testing.T, dir string) (archive string) {
	t.Helper()
	key := filepath.Join(dir, "key")
	sign := exec.CommandContext(t.Context(), "go", "run", "./sign", "test-key", key)
	sign.Dir = testkit.Value(host.Upward(".ci/checks"))(t)
	if out, err := sign.CombinedOutput(); err != nil {
		t.Fatalf("sign: %v\n%s", err, out)
	}
	programs := filepath.Dir(testkit.Value(node.Program("pullgated"))(t))
	cmd := exec.CommandContext(t.Context(), testkit.Value(host.Upward(".ci/image"))(t), dir, "0.0.1", programs)
	cmd.Env = append(os.Environ(), "VERSION=v0.0.1", "COMMIT=0123abc", "SOURCE_DATE_EPOCH=1700000000",
		"SIGNING_KEY="+key)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("image: %v\n%s", err, out)
	}
	return filepath.Join(dir, "pullgate-image-0.0.1.oci.tar")
}
