package credential_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/pkg/credential"
)

func auth(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestFormsOfOneCredentialHaveOneID(t *testing.T) {
	key := credential.NewKey()
	want := key.ID(credential.New(credential.Login{Username: "user", Password: "pa:ss"}))
	both, of := credential.Login{Username: "user", Password: "pa:ss"}, auth("user:pa:ss")
	with := func(change func(*credential.Login)) credential.Login {
		l := both
		change(&l)
		return l
	}
	for name, l := range map[string]credential.Login{
		"the same again":             both,
		"auth":                       {Auth: of},
		"both forms":                 with(func(l *credential.Login) { l.Auth = of }),
		"auth padded with NUL":       {Auth: auth("user:pa:ss\x00\x00")},
		"both, auth padded with NUL": with(func(l *credential.Login) { l.Auth = auth("user:pa:ss\x00") }),
		"auth on two lines":          {Auth: of[:4] + "\r\n" + of[4:]},
	} {
		if c := credential.New(l); key.ID(c) != want || c.Anonymous() {
			t.Errorf("%s: ID %s, anonymous %v; want %s, false", name, key.ID(c), c.Anonymous(), want)
		}
	}
	for name, l := range map[string]credential.Login{
		"another password":               {Username: "user", Password: "pass"},
		"another user":                   {Username: "User", Password: "pa:ss"},
		"auth of another":                {Auth: auth("user:pass")},
		"auth that differs from the two": with(func(l *credential.Login) { l.Auth = auth("user:other") }),
		"no password":                    {Username: "user", Auth: of},
		"another server":                 with(func(l *credential.Login) { l.ServerAddress = "repo.test" }),
		"a token beside":                 with(func(l *credential.Login) { l.IdentityToken = "token" }),
		"a registry token beside":        with(func(l *credential.Login) { l.RegistryToken = "token" }),
		"the text of auth as a password": {Username: "user", Password: of},
	} {
		if got := key.ID(credential.New(l)); got == want || got == "" {
			t.Errorf("%s: ID %s; want one of its own", name, got)
		}
	}
}

func TestAnonymous(t *testing.T) {
	key := credential.NewKey()
	for want, all := range map[bool][]credential.Login{
		true: {
			{},
			{ServerAddress: "repo.test"},
			{Auth: auth(":")},
			{Auth: auth(":\x00\x00")},
			{Auth: auth(":"), ServerAddress: "repo.test"},
		},
		false: {
			{Username: "u"},
			{Password: "p"},
			{Username: " "},
			{Password: "\x00"},
			{Auth: auth("u:")},
			{Auth: auth(":p")},
			{Auth: auth("no colon")},
			{Auth: "="},
			{Auth: " "},
			{IdentityToken: "t"},
			{RegistryToken: "t"},
			{Auth: auth(":"), IdentityToken: "t"},
			{Auth: auth(":"), RegistryToken: "t"},
			{Auth: auth(":"), Username: "u"},
			{Auth: auth(":"), Password: "p"},
		},
	} {
		for n, l := range all {
			if c := credential.New(l); c.Anonymous() != want || (key.ID(c) == "") != want {
				t.Errorf("credential %d: anonymous %v, ID %q; want %v", n, c.Anonymous(), key.ID(c), want)
			}
		}
	}
	if !(credential.Credential{}).Anonymous() || key.ID(credential.Credential{}) != "" {
		t.Error("the zero Credential is not anonymous")
	}
}

// Different tuples of fields have different forms, wherever a character moves to.
func TestTuplesDoNotCollide(t *testing.T) {
	key := credential.NewKey()
	values := []string{"", "a", "ab", "aba"} // none is base64
	seen := map[credential.ID][6]string{}
	anonymous := 0
	for i := range 1 << (2 * 6) {
		var f [6]string
		for j := range f {
			f[j] = values[i>>(2*j)&3]
		}
		c := credential.New(credential.Login{
			Username: f[0], Password: f[1], Auth: f[2], ServerAddress: f[3],
			IdentityToken: f[4], RegistryToken: f[5],
		})
		if c.Anonymous() {
			anonymous++
			continue
		}
		id := key.ID(c)
		if other, ok := seen[id]; ok {
			t.Fatalf("%q and %q have one ID", f, other)
		}
		seen[id] = f
	}
	if anonymous != len(values) || len(seen) != 4096-len(values) {
		t.Errorf("%d anonymous, %d IDs; want 4 and 4092", anonymous, len(seen))
	}
	// Lengths within a field do not replace missing ones.
	a := credential.New(credential.Login{Username: "a", Password: "\x00\x00\x00\x00\x00\x00\x00\x01b"})
	if b := credential.New(credential.Login{
		Username: "a\x00\x00\x00\x00\x00\x00\x00\x01",
		Password: "b",
	}); key.ID(a) == key.ID(b) {
		t.Error("a field that looks like the length of the next one collides")
	}
}

// Shows: 001-26
func TestIDsBelongToOneKey(t *testing.T) {
	one, other := credential.NewKey(), credential.NewKey()
	c := credential.New(credential.Login{Username: "user", Password: "pass"})
	if one.ID(c) == other.ID(c) || one.Fingerprint() == other.Fingerprint() {
		t.Error("two keys give one ID or one fingerprint")
	}
	for name, s := range map[string]string{"ID": string(one.ID(c)), "fingerprint": one.Fingerprint()} {
		if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
			t.Errorf("%s %q; want 64 hexadecimal digits", name, s)
		}
	}
}

func FuzzNew(f *testing.F) {
	f.Add("user", "pass", "", "", "", "")
	f.Add("", "", auth("user:pass"), "repo.test", "", "")
	f.Add("u", "p", auth("u:p\x00"), "", "", "")
	f.Add("", "", auth(":"), "", "token", "")
	f.Add("", "", "=", "", "", "registry token")
	key := credential.NewKey()
	f.Fuzz(func(t *testing.T, username, password, authForm, server, identity, registry string) {
		c := credential.New(credential.Login{
			Username: username, Password: password, Auth: authForm, ServerAddress: server,
			IdentityToken: identity, RegistryToken: registry,
		})
		id := key.ID(c)
		if again := key.ID(credential.New(credential.Login{
			Username: username, Password: password, Auth: authForm,
			ServerAddress: server, IdentityToken: identity, RegistryToken: registry,
		})); again != id ||
			(id == "") != c.Anonymous() {
			t.Errorf("IDs %q and %q of one credential, anonymous %v", id, again, c.Anonymous())
		}
		if username+password+identity+registry != "" && c.Anonymous() {
			t.Error("what is sent is taken for anonymous")
		}
		for _, verb := range verbs() {
			// %p shows only the address of a function.
			if got := fmt.Sprintf(verb, c); got != "[redacted]" && verb != "%p" && verb != "%#p" && verb != "%w" {
				t.Errorf("%s prints %q", verb, got)
			}
		}
		if strings.Contains(username, ":") || strings.Trim(password, "\x00") != password {
			return
		}
		two, one := credential.New(credential.Login{
			Username: username, Password: password, ServerAddress: server,
			IdentityToken: identity, RegistryToken: registry,
		}),
			credential.New(credential.Login{
				Auth: auth(username + ":" + password), ServerAddress: server,
				IdentityToken: identity, RegistryToken: registry,
			})
		if key.ID(two) != key.ID(one) {
			t.Errorf("%q and %q as auth have another ID than as two fields", username, password)
		}
	})
}

func TestHasUsername(t *testing.T) {
	for name, tc := range map[string]struct {
		credential credential.Credential
		want       bool
	}{
		"nothing":                 {credential.Credential{}, false},
		"user name":               {credential.New(credential.Login{Username: "u"}), true},
		"password alone":          {credential.New(credential.Login{Password: "p"}), false},
		"identity token":          {credential.New(credential.Login{IdentityToken: "t"}), false},
		"registry token":          {credential.New(credential.Login{RegistryToken: "t"}), false},
		"auth":                    {credential.New(credential.Login{Auth: auth("u:p")}), true},
		"auth without user name":  {credential.New(credential.Login{Auth: auth(":p")}), false},
		"auth that is not base64": {credential.New(credential.Login{Auth: "?"}), false},
		"user name and auth without one": {
			credential.New(credential.Login{Username: "u", Password: "p", Auth: auth(":x")}),
			false,
		},
	} {
		if got := tc.credential.HasUsername(); got != tc.want {
			t.Errorf("HasUsername of %s = %v; want %v", name, got, tc.want)
		}
	}
}
