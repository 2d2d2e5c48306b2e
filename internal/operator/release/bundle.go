package release

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

// BundleSuffix is what the name of a bundle has after the name of the file that it signs.
const BundleSuffix = ".sigstore.json"

// What a caller may branch on. Each error of this package that has one of them names the file too.
var (
	// ErrNotSigned is returned if a file has no bundle.
	ErrNotSigned = errors.New("release: not signed")
	// ErrSignature is returned if a bundle is not a valid signature of its file by the key.
	ErrSignature = errors.New("release: invalid signature")
	// ErrKey is returned if the public key cannot be used.
	ErrKey = errors.New("release: unusable public key")
)

const (
	bundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	maxBundle       = 1 << 20
)

// VerifyFile returns nil if the bundle path + BundleSuffix is a valid signature of the content of the file path by the
// key. Both must be regular files, and not symbolic links. The file can change after the call: verify the copy that is
// used, in a folder that only root can write.
func VerifyFile(path string, publicKeyPEM []byte) (err error) {
	bundle, err := readFile(path+BundleSuffix, maxBundle)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return program.Hintf("copy "+filepath.Base(path)+BundleSuffix+" from the release into the folder of the file",
			"%s: %w: there is no %s", path, ErrNotSigned, filepath.Base(path)+BundleSuffix)
	case err != nil:
		return err
	}
	file, err := open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := Verify(file, bundle, publicKeyPEM); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Verify returns nil if a bundle is a valid signature of what content reads until its end, by the key.
func Verify(content io.Reader, bundle, publicKeyPEM []byte) error {
	key, err := ParseKey(publicKeyPEM)
	if err != nil {
		return err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, content); err != nil {
		return err
	}
	return verifySum(hash.Sum(nil), bundle, key)
}

// verifySum is Verify for content with a SHA-256.
func verifySum(sum, bundle []byte, key *ecdsa.PublicKey) error {
	b, err := parseBundle(bundle)
	if err != nil {
		return err
	}
	signature := b.GetMessageSignature()
	if signature == nil {
		return fmt.Errorf("%w: the bundle signs a statement, and not a file", ErrSignature)
	}
	// What the bundle says of the digest proves nothing, but tells a changed file from another key.
	if said := signature.GetMessageDigest(); said.GetAlgorithm() != protocommon.HashAlgorithm_SHA2_256 ||
		!bytes.Equal(said.GetDigest(), sum) {
		return program.Hintf("get the file and its bundle again, both from the same release",
			"%w: the bundle is of other content: it has the digest %s:%x, the file sha256:%x",
			ErrSignature, algorithm(said.GetAlgorithm()), said.GetDigest()[:min(len(said.GetDigest()), sha256.Size)], sum)
	}
	return checkSignature(key, sum, signature.GetSignature())
}

func algorithm(a protocommon.HashAlgorithm) string {
	return strings.ToLower(strings.ReplaceAll(a.String(), "SHA2_", "sha"))
}

// verifyStatement returns the payload of the in-toto statement that a bundle signs, if the key has signed it.
func verifyStatement(bundle []byte, key *ecdsa.PublicKey) ([]byte, error) {
	b, err := parseBundle(bundle)
	if err != nil {
		return nil, err
	}
	envelope := b.GetDsseEnvelope()
	const kind = "application/vnd.in-toto+json"
	if envelope.GetPayloadType() != kind || len(envelope.GetSignatures()) != 1 {
		return nil, fmt.Errorf("%w: the bundle does not have one in-toto statement with one signature", ErrSignature)
	}
	// The pre-authentication encoding of DSSE. Its library would bring SSH with it.
	sum := sha256.Sum256(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(envelope.GetPayload()),
		envelope.GetPayload()))
	return envelope.GetPayload(), checkSignature(key, sum[:], envelope.GetSignatures()[0].GetSig())
}

func checkSignature(key *ecdsa.PublicKey, sum, signature []byte) error {
	if !ecdsa.VerifyASN1(key, sum, signature) {
		return program.Hintf("use the key of the project, from a place other than the release itself; "+
			"do not use the file otherwise", "%w: it was not made with the key %s", ErrSignature, KeyID(key))
	}
	return nil
}

func parseBundle(data []byte) (*protobundle.Bundle, error) {
	if len(data) > maxBundle {
		return nil, fmt.Errorf("%w: the bundle has more than %d bytes", ErrSignature, maxBundle)
	}
	b := &protobundle.Bundle{}
	// It refuses unknown fields, and so does not read deep values that are not part of the format.
	if err := protojson.Unmarshal(data, b); err != nil {
		return nil, fmt.Errorf("%w: the bundle cannot be read: %s", ErrSignature, safetext.ASCII(err.Error(), 200))
	}
	if b.GetMediaType() != bundleMediaType {
		return nil, fmt.Errorf("%w: the bundle has the media type %q; want %s", ErrSignature,
			safetext.ASCII(b.GetMediaType(), 100), bundleMediaType)
	}
	if b.GetVerificationMaterial().GetPublicKey() == nil {
		return nil, fmt.Errorf("%w: the bundle was made with a certificate; want one that was made with a key",
			ErrSignature)
	}
	return b, nil
}

// ParseKey reads a public key in PEM form, which must be an ECDSA key on P-256.
func ParseKey(publicKeyPEM []byte) (*ecdsa.PublicKey, error) {
	const hint = "give the file cosign.pub that cosign generate-key-pair wrote"
	block, rest := pem.Decode(publicKeyPEM)
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, program.Hintf(hint, "%w: want one PUBLIC KEY in PEM form, and nothing else", ErrKey)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, program.Hintf(hint, "%w: %s", ErrKey, safetext.ASCII(err.Error(), 200))
	}
	key, ok := public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, program.Hintf(hint, "%w: want an ECDSA key on P-256", ErrKey)
	}
	return key, nil
}

// KeyID returns the SHA-256 of a public key in PKIX form, as sha256:HEX.
func KeyID(key *ecdsa.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(der))
}

// open opens a regular file, and neither follows a link nor waits for a pipe.
func open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s: is a symbolic link; want a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s: is not a regular file", path), err, file.Close())
	}
	return file, nil
}

// readFile reads a regular file that has at most limit bytes.
func readFile(path string, limit int64) (_ []byte, err error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s: has more than %d bytes", path, limit)
	}
	return data, err
}
