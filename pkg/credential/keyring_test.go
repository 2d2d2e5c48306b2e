package credential_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// testKey is the key of every configuration.
var testKey = credential.NewKey()

// config makes a configuration. The user of each entry has the name of its key.
func config(tb testing.TB, keys ...string) credential.Sealed {
	tb.Helper()
	auths := map[string]any{}
	for _, k := range keys {
		auths[k] = map[string]string{"username": k, "password": "p"}
	}
	return parse(tb, map[string]any{"auths": auths})
}

func parse(tb testing.TB, file any) credential.Sealed {
	tb.Helper()
	payload := testkit.Value(json.Marshal(file))(tb)
	return testkit.Value(credential.ParseDockerConfigJSON(payload, testKey))(tb)
}

// user returns the ID that config makes for a key.
func user(name string) credential.ID {
	return testKey.ID(credential.New(credential.Login{Username: name, Password: "p"}))
}

// offered returns the credentials that pull secrets offer, as "from:user".
func offered(tb testing.TB, secrets []credential.Sealed, repository string, users ...string) []string {
	tb.Helper()
	names := map[credential.ID]string{}
	for _, u := range users {
		names[user(u)] = u
	}
	got := []string{}
	for _, o := range credential.SealedKeyring(secrets).Lookup(repository) {
		got = append(got, fmt.Sprintf("%d:%s", o.From, names[o.ID]))
	}
	return got
}

// The first cases are those of the Kubernetes documentation, page "Images", on the interpretation of config.json.
func TestKeysMatchAsKubeletsDo(t *testing.T) {
	for _, tc := range []struct {
		key, image string
		want       bool
	}{
		{"my-registry.example/images", "my-registry.example/images", true},
		{"my-registry.example/images", "my-registry.example/images/my-image", true},
		{"my-registry.example/images", "my-registry.example/images/another-image", true},
		{"my-registry.example/images", "my-registry.example/other", false},
		{"*.my-registry.example/images", "sub.my-registry.example/images/my-image", true},
		{"*.my-registry.example/images", "a.sub.my-registry.example/images/my-image", false},
		{"*.my-registry.example/images", "my-registry.example/images/my-image", false},
		{"*.kubernetes.example", "abc.kubernetes.example/app", true},
		{"*.kubernetes.example", "kubernetes.example/app", false},
		{"*.*.kubernetes.example", "abc.kubernetes.example/app", false},
		{"*.*.kubernetes.example", "abc.def.kubernetes.example/app", true},
		{"prefix.*.example", "prefix.kubernetes.example/app", true},
		{"*-good.kubernetes.example", "prefix-good.kubernetes.example/app", true},
		{"*-good.kubernetes.example", "prefix-bad.kubernetes.example/app", false},
		{"my-registry.example/sub-path", "my-registry.example/sub-path/my-image", true},
		{"my-registry.example", "my-registry.example/sub-path/my-image", true},
		// The documentation about globs in the path and names without their registry.
		{"my-registry.example/*", "my-registry.example/images", false},
		{"my-registry", "my-registry.example/images", false},
		{"example", "my-registry.example/images", false},
		// Schemes and docker's API versions.
		{"https://repo.test", "repo.test/app", true},
		{"http://repo.test", "repo.test/app", true},
		{"https://repo.test/", "repo.test/app", true},
		{"https://repo.test/v1/", "repo.test/app", true},
		{"repo.test/v2/", "repo.test/app", true},
		{"https://repo.test/v2/team", "repo.test/team/app", true},
		{"https://repo.test/v2/team", "repo.test/v2/team/app", false},
		{"repo.test/v2", "repo.test/app", false},
		{"repo.test/v2", "repo.test/v2/app", true},
		{"repo.test/v3/", "repo.test/app", false},
		{"ftp://repo.test", "repo.test/app", false},
		{"HTTPS://repo.test", "repo.test/app", false},
		// Ports.
		{"repo.test:5000", "repo.test:5000/app", true},
		{"repo.test:5000", "repo.test/app", false},
		{"repo.test", "repo.test:5000/app", false},
		{"repo.test:443", "repo.test/app", false},
		{"*.test:5000", "repo.test:5000/app", true},
		{"repo.test:*", "repo.test:5000/app", false},
		{"localhost:5000", "localhost:5000/app", true},
		{"[::1]:5000", "[::1]:5000/app", true},
		// Paths: prefixes of the text, case-sensitive.
		{"repo.test/team", "repo.test/team-b/app", true},
		{"repo.test/team/", "repo.test/team-b/app", false},
		{"repo.test/team/", "repo.test/team/app", true},
		{"repo.test/team/app", "repo.test/team/app", true},
		{"repo.test/team/app:1", "repo.test/team/app", false},
		{"repo.test/a%62c", "repo.test/abc/app", true},
		{"repo.test/team?x=y", "repo.test/team/app", true},
		{"repo.test/team#x", "repo.test/team/app", true},
		{"user:pass@repo.test", "repo.test/app", true},
		// Hosts.
		{"Repo.test", "repo.test/app", false},
		{"r?po.test", "repo.test/app", false}, // a URL's query begins at the question mark
		{"[a-z]epo.test", "repo.test/app", false},
		{"*", "repo.test/app", false},
		{"*", "localhost/app", true},
		{"*.*", "repo.test/app", true},
		{"repo.test.", "repo.test/app", false},
		{"", "repo.test/app", false},
		{"/", "repo.test/app", false},
		{"/app", "repo.test/app", false},
		{"\x7f", "repo.test/app", false},
		{"repo.test/%zz", "repo.test/app", false},
		// Docker's own registry.
		{"docker.io", "docker.io/library/busybox", true},
		{"docker.io/library", "docker.io/library/busybox", true},
		{"docker.io/team", "docker.io/library/busybox", false},
		{"https://index.docker.io/v1/", "docker.io/library/busybox", true},
		{"index.docker.io", "docker.io/library/busybox", true},
		{"index.docker.io", "index.docker.io/library/busybox", true},
		{"index.docker.io/team", "docker.io/team/app", false},
		{"index.docker.io", "busybox", true},
		{"index.docker.io", "team/app", true},
		{"index.docker.io", "repo.test/app", false},
		{"index.docker.io", "localhost/app", true},
		{"index.docker.io", "/app", false},
		{"registry-1.docker.io", "docker.io/library/busybox", false},
		{"*.docker.io", "docker.io/library/busybox", false},
	} {
		if got := len(offered(t, []credential.Sealed{config(t, tc.key)}, tc.image, tc.key)) == 1; got != tc.want {
			t.Errorf("%q matches %s: %v; want %v", tc.key, tc.image, got, tc.want)
		}
	}
}

func TestLookupOrdersByPatternThenBySecret(t *testing.T) {
	const docker, alias, url = "docker.io/library/b", "index.docker.io", "https://index.docker.io/v1/"
	for name, tc := range map[string]struct{ secrets, image, want string }{
		"the longer path first": {
			"repo.test repo.test/team repo.test/team/app", "repo.test/team/app",
			"0:repo.test/team/app 0:repo.test/team 0:repo.test",
		},
		"the pattern before the secret": {"repo.test|repo.test/team", "repo.test/team/app", "1:repo.test/team 0:repo.test"},
		"one pattern, the secrets in their order": {
			"repo.test|https://repo.test/v1/|http://repo.test", "repo.test/app",
			"0:repo.test 1:https://repo.test/v1/ 2:http://repo.test",
		},
		"a wildcard last":                 {"*.test|repo.test", "repo.test/app", "1:repo.test 0:*.test"},
		"the order is that of bytes":      {"*.test/team|repo.test", "repo.test/team/app", "1:repo.test 0:*.test/team"},
		"docker's alias if nothing else":  {alias + "|other.test", docker, "0:" + alias},
		"and not beside anything else":    {alias + "|docker.io", docker, "1:docker.io"},
		"docker's alias from all secrets": {alias + "|" + url, docker, "0:" + alias + " 1:" + url},
		"nothing":                         {"|other.test", "repo.test/app", ""},
		"no secrets":                      {"", "repo.test/app", ""},
	} {
		var ring []credential.Sealed
		for keys := range strings.SplitSeq(tc.secrets, "|") {
			ring = append(ring, config(t, strings.Fields(keys)...))
		}
		users := strings.FieldsFunc(tc.secrets, func(r rune) bool { return r == ' ' || r == '|' })
		testkit.Equal(t, name, offered(t, ring, tc.image, users...), strings.Fields(tc.want))
	}
}

func TestEntriesAreReadAsKubeletsReadThem(t *testing.T) {
	for _, tc := range []struct {
		name, entry        string
		username, password string
	}{
		{"two fields", `{"username":"u","password":"p"}`, "u", "p"},
		{"auth", `{"auth":"` + auth("u:p") + `"}`, "u", "p"},
		{"auth wins", `{"username":"x","password":"y","auth":"` + auth("u:p") + `"}`, "u", "p"},
		{"auth without padding", `{"auth":"` + strings.TrimRight(auth("u:pa"), "=") + `"}`, "u", "pa"},
		{"a password with colons", `{"auth":"` + auth("u:p:q:") + `"}`, "u", "p:q:"},
		{"a NUL is part of the password", `{"auth":"` + auth("u:p\x00") + `"}`, "u", "p\x00"},
		{"names in any case", `{"USERNAME":"u","PassWord":"p"}`, "u", "p"},
		{"the last of two fields", `{"username":"x","username":"u","password":"p"}`, "u", "p"},
		{
			"fields that are not sent are ignored",
			`{"username":"u","password":"p","email":"e","identitytoken":"t","registrytoken":"t","extra":[1]}`, "u", "p",
		},
		{"nulls", `{"username":"u","password":"p","auth":null,"email":null}`, "u", "p"},
		{"no password", `{"username":"u"}`, "u", ""},
	} {
		c, err := credential.ParseDockercfg([]byte(`{"repo.test":`+tc.entry+`}`), testKey)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		offers := credential.SealedKeyring{c}.Lookup("repo.test/app")
		want := testKey.ID(credential.New(credential.Login{Username: tc.username, Password: tc.password}))
		if len(offers) != 1 || offers[0].ID != want {
			t.Errorf("%s: %d offers, or another credential; want %q, %q", tc.name, len(offers), tc.username, tc.password)
		}
	}
}

func TestAnEmptyEntryIsAnonymousAndHasNoID(t *testing.T) {
	empty := `{"auth":"` + auth(":") + `"}`
	for _, entry := range []string{`{}`, `null`, `{"username":"","password":""}`, empty, `{"email":"e"}`} {
		c := testkit.Value(credential.ParseDockercfg([]byte(`{"repo.test":`+entry+`}`), testKey))(t)
		ring := credential.SealedKeyring{c}
		if offers := ring.Lookup("repo.test/app"); len(offers) != 0 || c.Len() != 1 {
			t.Errorf("%s: %d offers of %d entries; want none of one", entry, len(offers), c.Len())
		}
	}
	// It still prevents the use of docker's alias, as in a kubelet.
	c := testkit.Value(credential.ParseDockercfg([]byte(`{"docker.io":{},"index.docker.io":{"username":"u"}}`),
		testKey))(t)
	ring := credential.SealedKeyring{c}
	if offers := ring.Lookup("docker.io/library/busybox"); len(offers) != 0 {
		t.Errorf("%d sealed offers beside an empty one; want none", len(offers))
	}
}

func TestMalformedPayloadsAreRefusedAsAWhole(t *testing.T) {
	const good = `"other.test":{"username":"u","password":"p"}`
	for _, payload := range []string{
		``, ` `, `x`, `[]`, `"auths"`, `1`, `{"auths":[]}`, `{"auths":"x"}`, `{"auths":{` + good, `{"auths":{` + good + `}}x`,
		`{"auths":{` + good + `,"repo.test":"x"}}`,
		`{"auths":{` + good + `,"repo.test":{"username":1}}}`,
		`{"auths":{` + good + `,"repo.test":{"email":{}}}}`,
		`{"auths":{` + good + `,"repo.test":{"auth":"%"}}}`,
		`{"auths":{` + good + `,"repo.test":{"auth":" ` + auth("u:p") + `"}}}`,
		`{"auths":{` + good + `,"repo.test":{"auth":"` + base64.URLEncoding.EncodeToString([]byte("u:\xff\xff\xff")) + `"}}}`,
		`{"auths":{` + good + `,"repo.test":{"auth":"` + auth("no colon") + `"}}}`,
		`{"auths":{` + good + `,"repo.test":` + strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000) + `}}`,
	} {
		c, err := credential.ParseDockerConfigJSON([]byte(payload), testKey)
		if !errors.Is(err, credential.ErrMalformed) || c.Len() != 0 {
			t.Errorf("%.80s: %d entries, %v; want ErrMalformed", payload, c.Len(), err)
		}
	}
	const others = `{"credsStore":"x","HttpHeaders":{"a":"b"}}`
	for _, payload := range []string{`{}`, `null`, `{"auths":null}`, `{"auths":{}}`, others} {
		if c, err := credential.ParseDockerConfigJSON([]byte(payload), testKey); err != nil || c.Len() != 0 {
			t.Errorf("%s: %d entries, %v; want none, nil", payload, c.Len(), err)
		}
	}
}

func TestAKeyThatIsNotAURLIsSkippedAlone(t *testing.T) {
	c := config(t, "repo.test", "%zz", "a b", "repo.test:port", strings.Repeat("a", 600))
	if got := offered(t, []credential.Sealed{c}, "repo.test/app", "repo.test"); c.Len() != 1 || len(got) != 1 {
		t.Errorf("%d entries, %q offered; want the one that is a URL", c.Len(), got)
	}
}

func TestPayloadsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"auths":{`)
	for i := range credential.MaxEntries {
		fmt.Fprintf(&b, `"r%d.test":{"auth":"YTpi"},`, i)
	}
	most := strings.TrimSuffix(b.String(), ",") + "}}"
	if c, err := credential.ParseDockerConfigJSON([]byte(most), testKey); err != nil || c.Len() != credential.MaxEntries {
		t.Errorf("%d entries, %v; want %d, nil", c.Len(), err, credential.MaxEntries)
	}
	for name, payload := range map[string]string{
		"one entry more": b.String() + `"more.test":{}}}`,
		"one byte more":  `{}` + strings.Repeat(" ", credential.MaxPayload-1),
	} {
		if c, err := credential.ParseDockerConfigJSON([]byte(payload), testKey); !errors.Is(err, credential.ErrTooLarge) ||
			c.Len() != 0 {
			t.Errorf("%s: %d entries, %v; want ErrTooLarge", name, c.Len(), err)
		}
	}
	if _, err := credential.ParseDockerConfigJSON([]byte(`{}`+strings.Repeat(" ", credential.MaxPayload-2)),
		testKey); err != nil {
		t.Errorf("%d bytes: %v; want nil", credential.MaxPayload, err)
	}
}

func TestNewSealedIsOneIDForSeveralPatterns(t *testing.T) {
	ring := credential.SealedKeyring{credential.NewSealed([]string{"*.repo.test", "repo.test/team", "%zz"}, "id")}
	for in, n := range map[string]int{"a.repo.test/x": 1, "repo.test/team/x": 1, "repo.test/x": 0, "b.a.repo.test/x": 0} {
		if got := ring.Lookup(in); len(got) != n || n == 1 && got[0] != (credential.SealedOffer{ID: "id"}) {
			t.Errorf("Lookup(%s) = %v; want %d offers", in, got, n)
		}
	}
	if n := credential.NewSealed([]string{"repo.test"}, "").Len(); n != 0 {
		t.Errorf("%d entries with the ID of an anonymous credential; want none", n)
	}
	if small, large := (credential.Sealed{}).Size(), ring[0].Size(); small <= 0 || large <= small {
		t.Errorf("sizes %d and %d; want them to grow", small, large)
	}
}

func FuzzParseDockerConfig(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `{"auths":{"repo.test":{"username":"u","password":"p"}}}`,
		`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}`,
		`{"*.repo.test:5000/team":{"auth":"dTpw"},"[::1]:1":{}}`, `{"auths":{"a":null}}`, `{"auths":{"[a-":{"auth":"dTpw"}}}`,
		`{"a":` + strings.Repeat(`[`, 100),
	} {
		f.Add([]byte(s), "repo.test/team/app")
		f.Add([]byte(s), "docker.io/library/busybox")
	}
	f.Fuzz(func(t *testing.T, payload []byte, repository string) {
		for name, parse := range map[string]func([]byte, credential.Key) (credential.Sealed,
			error){"json": credential.ParseDockerConfigJSON, "cfg": credential.ParseDockercfg} {
			c, err := parse(payload, testKey)
			if err != nil && (c.Len() != 0 || !errors.Is(err, credential.ErrMalformed) &&
				!errors.Is(err, credential.ErrTooLarge)) {
				t.Errorf("%s: %d entries, %v; want one of the two errors and nothing", name, c.Len(), err)
			}
			_ = credential.SealedKeyring{c, c}.Lookup(repository)
		}
	})
}

func TestFirstReturnsTheBeginningOfLookup(t *testing.T) {
	rings := []credential.SealedKeyring{{
		config(t, "repo.test/team/app", "repo.test", "*.test/team", "other.test", "index.docker.io"),
		config(t, "repo.test/team", "r*.test", "[r]epo.test", "repo.test:443"),
		{},
	}}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	keys := []string{
		"repo.test/team/app", "repo.test/team", "repo.test", "*.test", "docker.io", "docker.io/library",
		"*.io", "index.docker.io", "https://index.docker.io/v1/",
	}
	users := []map[string]string{{}, {"username": "alice"}, {"username": "bob"}} // the first is anonymous
	for range 500 {
		ring := make(credential.SealedKeyring, random.IntN(4))
		for i := range ring {
			auths := map[string]any{}
			for range random.IntN(4) {
				auths[keys[random.IntN(len(keys))]] = users[random.IntN(len(users))]
			}
			ring[i] = parse(t, map[string]any{"auths": auths})
		}
		rings = append(rings, ring)
	}
	for i, ring := range rings {
		for _, repository := range []string{"repo.test/team/app", "repo.test/x", "docker.io/library/b", "none.example/x"} {
			var all []credential.SealedOffer // without repetitions
			for _, o := range ring.Lookup(repository) {
				if !slices.Contains(all, o) {
					all = append(all, o)
				}
			}
			for n := range len(all) + 2 {
				got, whole := ring.First(repository, n)
				if diff := cmp.Diff(all[:min(n, len(all))], got, cmpopts.EquateEmpty()); diff != "" || !whole {
					t.Errorf("keyring %d: First(%s, %d), whole %v (-lookup +first):\n%s", i, repository, n, whole, diff)
				}
			}
		}
	}
	again := credential.NewSealed([]string{"repo.test", "repo.test/team", "r*.test"}, "one")
	if got, _ := (credential.SealedKeyring{again, again}).First("repo.test/team/app", 16); len(got) != 2 {
		t.Errorf("First = %v; want the credential once for each of two Secrets", got)
	}
}

// globs returns the pull secrets of a pod that tries passwords: every entry matches repo.test.
func globs(tb testing.TB, key credential.Key, secrets int, host string) credential.SealedKeyring {
	tb.Helper()
	auths := map[string]any{}
	for i := range 4000 {
		k := strings.Repeat("*", 1+i%64) + host[:1] + strings.Repeat("*", 1+i/64) + host[1:]
		auths[k] = map[string]string{"username": "u", "password": fmt.Sprint(i)}
	}
	// One Secret many times: sealing each entry would take longer than the tested code.
	return slices.Repeat(credential.SealedKeyring{parse(tb, map[string]any{"auths": auths})}, secrets)
}

func TestTheWorkOfFirstIsBounded(t *testing.T) {
	key := credential.NewKey()
	got, whole := globs(t, key, 15, "repo.test").First("repo.test/team/app", credential.MaxOffers)
	if len(got) != credential.MaxOffers || !whole {
		t.Errorf("First of entries that all match = %d, %v; want %d, true", len(got), whole, credential.MaxOffers)
	}
	none := globs(t, key, 15, "repx.test")
	if got, whole := none.First("repo.test/team/app", credential.MaxOffers); len(got) != 0 || whole {
		t.Errorf("First of thousands of wildcards that do not match = %d, %v; want none, and false", len(got), whole)
	}
	// A valid Secret beside such Secrets is considered.
	good := append(none, config(t, "repo.test"))
	if got, _ := good.First("repo.test/team/app", credential.MaxOffers); len(got) != 1 {
		t.Errorf("First = %d beside Secrets with too many wildcards; want 1", len(got))
	}
}

// A kubelet ignores a Secret of another type, also if it has the content of a pull secret.
func TestParsePullSecret(t *testing.T) {
	const auths = `{"repo.test": {"username": "u", "password": "p"}}`
	data := map[string][]byte{
		".dockerconfigjson": []byte(`{"auths": ` + auths + `}`), ".dockercfg": []byte(auths),
	}
	for kind, want := range map[string]error{
		"kubernetes.io/dockerconfigjson": nil, "kubernetes.io/dockercfg": nil,
		"Opaque": credential.ErrNoPullSecret, "": credential.ErrNoPullSecret, "kubernetes.io/tls": credential.ErrNoPullSecret,
	} {
		s, err := credential.ParsePullSecret(kind, data, credential.NewKey())
		if !errors.Is(err, want) || (s.Len() == 1) != (want == nil) {
			t.Errorf("Secret of the type %q = %d entries, %v; want %v", kind, s.Len(), err, want)
		}
		if _, err := credential.ParsePullSecret(kind, nil, credential.NewKey()); !errors.Is(err, credential.ErrNoPullSecret) {
			t.Errorf("empty Secret of the type %q = %v; want ErrNoPullSecret", kind, err)
		}
	}
	data[".dockercfg"] = []byte(`{"repo.test": {"auth": "?"}}`)
	if _, err := credential.ParsePullSecret("kubernetes.io/dockercfg", data, credential.NewKey()); !errors.Is(err,
		credential.ErrMalformed) {
		t.Errorf("Secret with a malformed auth = %v; want ErrMalformed", err)
	}
}
