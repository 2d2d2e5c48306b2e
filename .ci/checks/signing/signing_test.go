package signing_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"

	"github.com/pullgate/pullgate/checks/signing"
)

func value[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func file(t *testing.T, kind string, der []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestKeysInEveryFormMakeTheSameBundles(t *testing.T) {
	key := value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	pkcs8 := value(x509.MarshalPKCS8PrivateKey(key))(t)
	t.Setenv("COSIGN_PASSWORD", "secret")
	content := []byte("content")
	var first []byte
	for kind, der := range map[string][]byte{
		"PRIVATE KEY": pkcs8, "EC PRIVATE KEY": value(x509.MarshalECPrivateKey(key))(t),
		"ENCRYPTED SIGSTORE PRIVATE KEY": value(encrypted.Encrypt(pkcs8, []byte("secret")))(t),
	} {
		loaded := value(signing.Load(file(t, kind, der)))(t)
		bundle := value(loaded.File(content))(t)
		if first == nil {
			first = bundle
		}
		if !bytes.Equal(first, bundle) || loaded.Test {
			t.Errorf("%s: %s; want %s", kind, bundle, first)
		}
		var b struct {
			MessageSignature struct{ Signature []byte }
		}
		if err := json.Unmarshal(bundle, &b); err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); !ecdsa.VerifyASN1(&key.PublicKey, sum[:], b.MessageSignature.Signature) {
			t.Errorf("%s: the signature is not one of the content", kind)
		}
	}
}

func TestStatementIsSignedAsAnEnvelope(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	if err := signing.NewTestKey(name); err != nil {
		t.Fatal(err)
	}
	key := value(signing.Load(name))(t)
	bundle := value(key.Statement([]byte(`{"a":1}`)))(t)
	var b struct {
		VerificationMaterial struct{ PublicKey struct{ Hint string } }
		DSSEEnvelope         struct {
			Payload     []byte
			PayloadType string
			Signatures  []struct{ Sig []byte }
		}
	}
	if err := json.Unmarshal(bundle, &b); err != nil {
		t.Fatal(err)
	}
	if !key.Test || !strings.HasPrefix(b.VerificationMaterial.PublicKey.Hint, "TEST ") {
		t.Errorf("%s does not say that the key is for tests", bundle)
	}
	public, ok := value(x509.ParsePKIXPublicKey(value(key.Public())(t)))(t).(*ecdsa.PublicKey)
	sum := sha256.Sum256(dsse.PAE(b.DSSEEnvelope.PayloadType, b.DSSEEnvelope.Payload))
	if !ok || len(b.DSSEEnvelope.Signatures) != 1 || string(b.DSSEEnvelope.Payload) != `{"a":1}` ||
		!ecdsa.VerifyASN1(public, sum[:], b.DSSEEnvelope.Signatures[0].Sig) || bytes.Count(bundle, []byte("\n")) != 1 {
		t.Errorf("%s is not a signed envelope in one line", bundle)
	}
}

func TestOtherKeysAreErrors(t *testing.T) {
	p384 := value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	other := value(rsa.GenerateKey(rand.Reader, 2048))(t)
	p256 := value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	sealed := value(encrypted.Encrypt(value(x509.MarshalPKCS8PrivateKey(p256))(t), []byte("secret")))(t)
	for want, of := range map[string][2]string{
		"want P-256":       {"PRIVATE KEY", string(value(x509.MarshalPKCS8PrivateKey(p384))(t))},
		"want ECDSA":       {"PRIVATE KEY", string(value(x509.MarshalPKCS8PrivateKey(other))(t))},
		"want a private":   {"PUBLIC KEY", string(value(x509.MarshalPKIXPublicKey(p256.Public()))(t))},
		"asn1":             {"PRIVATE KEY", "x"},
		"does not decrypt": {"ENCRYPTED SIGSTORE PRIVATE KEY", string(sealed)},
	} {
		t.Setenv("COSIGN_PASSWORD", "wrong")
		if _, err := signing.Load(file(t, of[0], []byte(of[1]))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if err := os.Unsetenv("COSIGN_PASSWORD"); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Load(file(t, "ENCRYPTED SIGSTORE PRIVATE KEY", sealed)); err == nil ||
		!strings.Contains(err.Error(), "set COSIGN_PASSWORD") {
		t.Errorf("%v; want that the variable is missing", err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Load(empty); err == nil || !strings.Contains(err.Error(), "not a key in PEM form") {
		t.Errorf("%v; want that it is not a key", err)
	}
}
