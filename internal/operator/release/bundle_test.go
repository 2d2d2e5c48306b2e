package release_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/release"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// A signed file and the public key, in PEM form.
type signed struct {
	testing.TB

	path   string
	public []byte
	key    *ecdsa.PrivateKey
}

func publicPEM(tb testing.TB, key any) []byte {
	tb.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: sigstoretest.PublicDER(tb, key)})
}

func newSigned(tb testing.TB) signed {
	tb.Helper()
	key := sigstoretest.NewKey(tb)
	s := signed{tb, filepath.Join(tb.TempDir(), "pullgated"), publicPEM(tb, key.Public()), key}
	content := bytes.Repeat([]byte("program"), 100)
	testkit.Must(tb, os.WriteFile(s.path, content, 0o600))
	s.sign(tb, s.path, content)
	return s
}

func (s signed) bundle() string { return s.path + release.BundleSuffix }

func (s signed) sign(tb testing.TB, path string, content []byte) {
	tb.Helper()
	testkit.Must(tb, os.WriteFile(path+release.BundleSuffix, s.of(content), 0o600))
}

// of returns the bundle of content.
func (s signed) of(content []byte) []byte {
	s.Helper()
	return testkit.Value(json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"messageSignature": map[string]any{
			"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": sigstoretest.SumOf(content)},
			"signature":     sigstoretest.Sign(s, s.key, content),
		},
	}))(s)
}

func TestVerifyFile(t *testing.T) {
	replace := func(old, with string) func(*signed) {
		return func(s *signed) {
			data := string(testkit.Value(os.ReadFile(s.bundle()))(s))
			changed := strings.Replace(data, old, with, 1)
			if changed == data {
				s.Fatalf("%s has no %q", data, old)
			}
			testkit.Must(s, os.WriteFile(s.bundle(), []byte(changed), 0o600))
		}
	}
	bundleIs := func(text string) func(*signed) {
		return func(s *signed) {
			testkit.Must(s, os.WriteFile(s.bundle(), []byte(text), 0o600))
		}
	}
	publicIs := func(key any) func(*signed) {
		return func(s *signed) { s.public = publicPEM(s, key) }
	}
	rsaKey := testkit.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	p384 := testkit.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	for name, tc := range map[string]struct {
		change func(*signed)
		is     error
		want   string
	}{
		"valid": {func(*signed) {}, nil, ""},
		"empty file": {func(s *signed) {
			testkit.Must(s, os.WriteFile(s.path, nil, 0o600))
			s.sign(s, s.path, nil)
		}, nil, ""},
		"no bundle": {
			func(s *signed) { testkit.Must(s, os.Remove(s.bundle())) }, release.ErrNotSigned,
			"there is no pullgated.sigstore.json",
		},
		"no file": {
			func(s *signed) { testkit.Must(s, os.Remove(s.path)) }, os.ErrNotExist,
			"no such file",
		},
		"file cut": {
			func(s *signed) { testkit.Must(s, os.Truncate(s.path, 17)) }, release.ErrSignature,
			"the bundle is of other content",
		},
		"bundle of another file": {func(s *signed) {
			s.sign(s, s.path, []byte("other"))
		}, release.ErrSignature, "the bundle is of other content"},
		// The digest in a bundle is not signed.
		"bundle of another file that claims the digest": {func(s *signed) {
			data := testkit.Value(os.ReadFile(s.path))(s)
			var b map[string]any
			testkit.Must(s, json.Unmarshal(testkit.Value(os.ReadFile(s.bundle()))(s), &b))
			b["messageSignature"] = map[string]any{
				"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": sigstoretest.SumOf(data)},
				"signature":     sigstoretest.Sign(s, s.key, []byte("other")),
			}
			testkit.Must(s, os.WriteFile(s.bundle(), testkit.Value(json.Marshal(b))(s), 0o600))
		}, release.ErrSignature, "was not made with the key sha256:"},
		"other algorithm": {replace("SHA2_256", "SHA2_512"), release.ErrSignature, "it has the digest sha512:"},
		"another key":     {publicIs(sigstoretest.NewKey(t).Public()), release.ErrSignature, "was not made with the key"},
		"other media type": {
			replace("v0.3+json", "v0.2+json"), release.ErrSignature,
			"want application/vnd.dev.sigstore.bundle.v0.3+json",
		},
		"certificate": {
			replace(`"publicKey":{"hint":"x"}`, `"certificate":{"rawBytes":"AAAA"}`), release.ErrSignature,
			"made with a certificate",
		},
		"no material":  {replace(`"publicKey":{"hint":"x"}`, ``), release.ErrSignature, "made with a certificate"},
		"no signature": {replace(`"signature"`, `"signatur"`), release.ErrSignature, "unknown field"},
		"statement": {
			func(s *signed) { bundleStatement(*s) }, release.ErrSignature, "signs a statement",
		},
		"empty bundle":   {bundleIs(""), release.ErrSignature, "cannot be read"},
		"null":           {bundleIs("null"), release.ErrSignature, "cannot be read"},
		"empty object":   {bundleIs("{}"), release.ErrSignature, `has the media type ""`},
		"not JSON":       {bundleIs("\x1b[31m\x00"), release.ErrSignature, "cannot be read"},
		"deep":           {bundleIs(strings.Repeat(`{"a":[`, 80_000)), release.ErrSignature, "unknown field"},
		"deep list":      {bundleIs(strings.Repeat(`[`, 900_000)), release.ErrSignature, "cannot be read"},
		"trailing":       {replace(`{"mediaType`, `{} {"mediaType`), release.ErrSignature, "cannot be read"},
		"field twice":    {replace(`{"mediaType`, `{"mediaType":"x","mediaType`), release.ErrSignature, "duplicate field"},
		"huge bundle":    {bundleIs(strings.Repeat(" ", 1<<20) + "{}"), nil, "has more than 1048576 bytes"},
		"bundle is link": {asLink(signed.bundle), nil, "is a symbolic link"},
		"file is link":   {asLink(func(s signed) string { return s.path }), nil, "is a symbolic link"},
		"bundle is pipe": {func(s *signed) {
			testkit.Must(s, os.Remove(s.bundle()), syscall.Mkfifo(s.bundle(), 0o600))
		}, nil, "is not a regular file"},
		"file is folder": {func(s *signed) {
			testkit.Must(s, os.Remove(s.path), os.Mkdir(s.path, 0o700))
		}, nil, "is not a regular file"},
		"no key": {func(s *signed) { s.public = nil }, release.ErrKey, "want one PUBLIC KEY"},
		"two keys": {func(s *signed) {
			s.public = append(s.public, s.public...)
		}, release.ErrKey, "want one PUBLIC KEY"},
		"damaged key": {func(s *signed) {
			s.public = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})
		}, release.ErrKey, "unusable public key"},
		"RSA key": {publicIs(rsaKey.Public()), release.ErrKey, "want an ECDSA key"},
		"P-384":   {publicIs(p384.Public()), release.ErrKey, "on P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSigned(t)
			tc.change(&s)
			err := release.VerifyFile(s.path, s.public)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) ||
				tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("VerifyFile = %v; want %q, which is %v", err, tc.want, tc.is)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\x00\n") {
				t.Errorf("%q is not harmless on a terminal", err)
			}
		})
	}
}

func asLink(of func(signed) string) func(*signed) {
	return func(s *signed) {
		testkit.Must(s, os.Rename(of(*s), of(*s)+".real"), os.Symlink(of(*s)+".real", of(*s)))
	}
}

func bundleStatement(s signed) {
	statement := sigstoretest.BundleJSON(s, sigstoretest.KeyBundle(s, s.key, []byte("{}")))
	testkit.Must(s, os.WriteFile(s.bundle(), statement, 0o600))
}

// Whatever a bundle has, it is refused for content that the key has not signed.
func FuzzVerify(f *testing.F) {
	s := newSigned(f)
	f.Add(testkit.Value(os.ReadFile(s.bundle()))(f))
	f.Add(sigstoretest.BundleJSON(f, sigstoretest.KeyBundle(f, s.key, []byte("{}"))))
	f.Add([]byte(strings.Repeat("[", 100)))
	f.Fuzz(func(t *testing.T, bundle []byte) {
		if err := release.Verify(strings.NewReader("other"), bundle, s.public); err == nil {
			t.Errorf("%q verifies other content", bundle)
		}
	})
}

// Every cut and every flipped byte of a bundle is refused, or changes nothing of what is signed.
func TestDamagedBundlesNeverVerifyOtherContent(t *testing.T) {
	s := newSigned(t)
	content, bundle := testkit.Value(os.ReadFile(s.path))(t), testkit.Value(os.ReadFile(s.bundle()))(t)
	other := append([]byte{'P'}, content[1:]...)
	for n := range bundle {
		if err := release.Verify(bytes.NewReader(content), bundle[:n], s.public); err == nil {
			t.Errorf("the first %d bytes of a bundle verify", n)
		}
		for _, bit := range []byte{1, 0x20, 0x80} {
			damaged := bytes.Clone(bundle)
			damaged[n] ^= bit
			if err := release.Verify(bytes.NewReader(other), damaged, s.public); err == nil {
				t.Errorf("with byte %d changed by %#x, the bundle verifies other content", n, bit)
			}
		}
	}
	for n := range content {
		damaged := bytes.Clone(content)
		damaged[n] ^= 1
		if err := release.Verify(bytes.NewReader(damaged), bundle, s.public); err == nil {
			t.Errorf("content with byte %d changed verifies", n)
		}
	}
}
