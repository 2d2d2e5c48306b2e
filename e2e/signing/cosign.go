// Package signing signs images in the two forms that cosign writes, with static keys, and stores the signatures in the
// repositories of the images.
package signing

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// A Cosign is the program, with a key of its own.
type Cosign struct {
	program, dir string
}

// signingConfig makes cosign sign without asking any server.
const signingConfig = `{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json"}`

// NewCosign builds cosign unless it is built, and has it make a key below dir, which is empty.
func NewCosign(ctx context.Context, dir string) (c *Cosign, err error) {
	defer host.Catch(&err)
	c = &Cosign{host.Must(release.Cosign(ctx)), dir}
	host.Check(os.WriteFile(c.path("config.json"), []byte(signingConfig), 0o600))
	return c, c.run(ctx, "generate-key-pair")
}

func (c *Cosign) path(name string) string { return filepath.Join(c.dir, name) }

// Public returns its public key as PEM.
func (c *Cosign) Public() (string, error) {
	data, err := os.ReadFile(c.path("cosign.pub"))
	return string(data), err
}

// Key returns the file of its private key, whose password is empty.
func (c *Cosign) Key() string { return c.path("cosign.key") }

// SignFile signs a file in the present form, with its key and without any server. It writes the bundle
// file.sigstore.json.
func (c *Cosign) SignFile(ctx context.Context, file string) error {
	return c.run(ctx, "sign-blob", "--yes", "--key", c.Key(), "--signing-config", c.path("config.json"),
		"--bundle", file+".sigstore.json", file)
}

// VerifyFile returns nil if cosign accepts the bundle file.sigstore.json of a file by its key.
func (c *Cosign) VerifyFile(ctx context.Context, file string) error {
	return c.run(ctx, "verify-blob", "--key", c.path("cosign.pub"), "--insecure-ignore-tlog",
		"--bundle", file+".sigstore.json", file)
}

// VerifyProvenance is VerifyFile for a bundle with a statement about the file, whose predicate is SLSA provenance v1.
func (c *Cosign) VerifyProvenance(ctx context.Context, file, bundle string) error {
	return c.run(ctx, "verify-blob-attestation", "--key", c.path("cosign.pub"), "--insecure-ignore-tlog",
		"--type", "slsaprovenance1", "--bundle", bundle, file)
}

// VerifyLayout returns nil if cosign accepts the signature of an image in an image layout by its key.
func (c *Cosign) VerifyLayout(ctx context.Context, dir string) error {
	return c.run(ctx, "verify", "--local-image", "--key", c.path("cosign.pub"), "--insecure-ignore-tlog", dir)
}

func (c *Cosign) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Dir = c.dir
	// Nothing of the user's configuration counts.
	cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=", "HOME="+c.dir, "DOCKER_CONFIG="+c.dir, "SIGSTORE_NO_CACHE=true")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cosign %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Sign signs the manifest or index with a digest in the present form, with its key and without any server.
func (c *Cosign) Sign(ctx context.Context, r *Repository, digest string) error {
	return c.on(ctx, r, digest, "sign", "--yes", "--key", c.path("cosign.key"), "--signing-config", c.path("config.json"))
}

// SignLegacy is Sign in the older form.
func (c *Cosign) SignLegacy(ctx context.Context, r *Repository, digest string) error {
	return c.on(ctx, r, digest, "sign", "--yes", "--key", c.path("cosign.key"),
		"--use-signing-config=false", "--tlog-upload=false", "--new-bundle-format=false")
}

// Attest stores the content of a file as an attestation of a type, of the manifest or index with a digest.
func (c *Cosign) Attest(ctx context.Context, r *Repository, digest, predicateType, file string, legacy bool) error {
	form := []string{"--signing-config", c.path("config.json")}
	if legacy {
		form = []string{"--use-signing-config=false", "--tlog-upload=false", "--new-bundle-format=false"}
	}
	return c.on(ctx, r, digest, append([]string{
		"attest", "--yes", "--key", c.path("cosign.key"), "--type", predicateType, "--predicate", file,
	}, form...)...)
}

// on runs a command about the manifest or index with a digest.
func (c *Cosign) on(ctx context.Context, r *Repository, digest string, command ...string) error {
	args := append([]string{command[0], "--allow-http-registry"}, command[1:]...)
	if r.login != nil {
		args = append(args, "--registry-username", r.login.Username, "--registry-password", r.login.Password)
	}
	return c.run(ctx, append(args, r.String()+"@"+digest)...)
}

// Verify returns nil if cosign accepts the manifest or index with a digest by a key, and why it does not otherwise.
func (c *Cosign) Verify(ctx context.Context, r *Repository, public, digest string) error {
	return c.verify(ctx, r, public, digest, "verify")
}

// VerifyAttestation is Verify for an attestation of a type.
func (c *Cosign) VerifyAttestation(ctx context.Context, r *Repository, public, digest, predicateType string) error {
	return c.verify(ctx, r, public, digest, "verify-attestation", "--type", predicateType)
}

func (c *Cosign) verify(ctx context.Context, r *Repository, public, digest string, command ...string) (err error) {
	defer host.Catch(&err)
	key := host.Must(os.CreateTemp(c.dir, "verify-*.pub"))
	host.Must(key.WriteString(public))
	host.Check(key.Close())
	return c.on(ctx, r, digest, append(command, "--key", key.Name(), "--insecure-ignore-tlog")...)
}

// VerifyWith is Verify with other flags than those for a key.
func (c *Cosign) VerifyWith(ctx context.Context, r *Repository, digest string, flags ...string) error {
	return c.on(ctx, r, digest, append([]string{"verify"}, flags...)...)
}
