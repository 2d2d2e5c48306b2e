package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
)

// The commands of docs/webhook.md make a certificate that an API server accepts, and apply a webhook with its CA.
// Shows: 004-R4
func TestWebhookPage(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl on this machine")
	}
	page := testkit.Value(os.ReadFile("../../docs/webhook.md"))(t)
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Fatalf("docs/webhook.md has %d blocks of commands; want 2", len(blocks))
	}
	dir, bin := t.TempDir(), t.TempDir()
	policies := testkit.Value(filepath.Abs("../../docs/examples/restriction/policies"))(t)
	kubectl := "#!/bin/sh\ncase \"$1\" in apply) cat > applied.yaml ;; *) echo \"$@\" >> created ;; esac\n"
	testkit.Must(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700))
	for _, b := range blocks {
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(string(b[1]), "/etc/pullgate/policies", policies))
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", b[1], err, out)
		}
	}

	ca := testkit.Value(os.ReadFile(filepath.Join(dir, "ca.crt")))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	pair := testkit.Value(tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")))(t)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "pullgate-policyd.pullgate.svc"}); err != nil {
		t.Error(err)
	}
	applied := testkit.Value(os.ReadFile(filepath.Join(dir, "applied.yaml")))(t)
	for _, want := range []string{base64.StdEncoding.EncodeToString(ca), "kind: Deployment", "web.yaml"} {
		if !bytes.Contains(applied, []byte(want)) {
			t.Errorf("applied is\n%s\nwant %s", applied, want)
		}
	}
	created, err := os.ReadFile(filepath.Join(dir, "created"))
	if err != nil || bytes.Count(created, []byte("create secret")) != 2 {
		t.Errorf("created are %q, %v; want two Secrets", created, err)
	}
}
