package requirement_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

func signed(s requirement.Signer) requirement.Requirement {
	return requirement.Requirement{SignedBy: &s}
}

func key(public string) requirement.Requirement {
	return signed(requirement.Signer{Key: &requirement.Key{Public: []byte(public), Hash: "sha256"}})
}

func keyless(change func(*requirement.Signer)) requirement.Requirement {
	s := requirement.Signer{
		Keyless: &requirement.Keyless{
			Issuer: requirement.Exactly("https://issuer.test"), Subject: requirement.Glob("https://git.test/team/*"),
			Extensions: map[string]string{"1.2.3": "a", "1.2.4": "b"},
		},
		Log: &requirement.Log{},
	}
	change(&s)
	return signed(s)
}

func static(pass bool, message string) requirement.Requirement {
	return requirement.Requirement{Static: &requirement.Static{Pass: pass, Message: message}}
}

// different has requirements of which each two differ in something that decides.
func different(t *testing.T) []struct {
	name string
	requirement.Requirement
} {
	t.Helper()
	expression, err := requirement.Regexp("https://git.test/team/*")
	testkit.Must(t, err)
	same := func(*requirement.Signer) {}
	a, b, c := key("a"), key("b"), key("c")
	with := func(change func(*requirement.Keyless)) requirement.Requirement {
		return keyless(func(s *requirement.Signer) { change(s.Keyless) })
	}
	return []struct {
		name string
		requirement.Requirement
	}{
		{"zero", requirement.Requirement{}},
		{"pass", static(true, "")},
		{"key", a},
		{"another key", b},
		{"hash algorithm", signed(requirement.Signer{Key: &requirement.Key{Public: []byte("a"), Hash: "sha512"}})},
		{"repository", signed(requirement.Signer{Key: a.SignedBy.Key, Repository: "repo.test/signatures"})},
		{"any log", signed(requirement.Signer{Key: a.SignedBy.Key, Log: &requirement.Log{}})},
		{"a log", signed(requirement.Signer{Key: a.SignedBy.Key, Log: &requirement.Log{URL: "https://log.test"}})},
		{"a log by key", signed(requirement.Signer{Key: a.SignedBy.Key, Log: &requirement.Log{Keys: [][]byte{[]byte("l")}}})},
		{"timestamp", signed(requirement.Signer{Key: a.SignedBy.Key, Timestamp: &requirement.Timestamp{}})},
		{"timestamp by", signed(requirement.Signer{
			Key:       a.SignedBy.Key,
			Timestamp: &requirement.Timestamp{Chain: [][]byte{[]byte("l")}},
		})},
		{"identity", keyless(same)},
		{"issuer", with(func(k *requirement.Keyless) { k.Issuer = requirement.Exactly("https://other.test") })},
		{"subject", with(func(k *requirement.Keyless) { k.Subject = requirement.Glob("https://git.test/other/*") })},
		{"subject as an expression", with(func(k *requirement.Keyless) { k.Subject = expression })},
		{"subject as a text", with(func(k *requirement.Keyless) {
			k.Subject = requirement.Exactly("https://git.test/team/*")
		})},
		{"no subject", with(func(k *requirement.Keyless) { k.Subject = requirement.Text{} })},
		{"extension", with(func(k *requirement.Keyless) { k.Extensions = map[string]string{"1.2.3": "a"} })},
		{"extensions exchanged", with(func(k *requirement.Keyless) {
			k.Extensions = map[string]string{"1.2.3": "b", "1.2.4": "a"}
		})},
		{"roots", with(func(k *requirement.Keyless) { k.Roots = [][]byte{[]byte("r"), []byte("s")} })},
		{"other roots", with(func(k *requirement.Keyless) { k.Roots = [][]byte{[]byte("rs")} })},
		{"no SCT", with(func(k *requirement.Keyless) { k.IgnoreSCT = true })},
		{"certificate log", with(func(k *requirement.Keyless) { k.CTLogKeys = [][]byte{[]byte("l")} })},
		{"no log", keyless(func(s *requirement.Signer) { s.Log, s.Timestamp = nil, &requirement.Timestamp{} })},
		{"one of", requirement.AtLeast(1, a, b)},
		{"two of", requirement.AtLeast(2, a, b)},
		{"two of three", requirement.AtLeast(2, a, b, c)},
		{"another three", requirement.AtLeast(2, a, b, keyless(same))},
		{"nested", requirement.AtLeast(2, a, requirement.AtLeast(1, b, c))},
		{"nested otherwise", requirement.AtLeast(1, a, requirement.AtLeast(2, b, c))},
	}
}

func TestHashIsThatOfEarlierVersions(t *testing.T) {
	var text strings.Builder
	for _, r := range different(t) {
		fmt.Fprintf(&text, "%s %s\n", r.Hash("root"), r.name)
	}
	want, err := os.ReadFile("testdata/hashes.golden")
	testkit.Must(t, err)
	testkit.Equal(t, "testdata/hashes.golden", text.String(), string(want))
}

func TestHashesDiffer(t *testing.T) {
	name := map[string]string{}
	for _, r := range different(t) {
		for _, root := range []string{"root", "other"} {
			hash := r.Hash(root)
			if other, taken := name[hash]; taken && (other != r.name || r.UsesTrustedRoot()) {
				t.Errorf("%s and %s have the same hash", other, r.name)
			}
			name[hash] = r.name
		}
	}
}

func TestHashIgnoresWhatDoesNotDecide(t *testing.T) {
	a, b, c := key("a"), key("b"), key("c")
	same := func(*requirement.Signer) {}
	for name, pair := range map[string][2]requirement.Requirement{
		"order": {
			requirement.AtLeast(2, a, b, requirement.AtLeast(1, b, c)),
			requirement.AtLeast(2, requirement.AtLeast(1, c, b), b, a),
		},
		"a list of one": {requirement.Requirement{
			AtLeast: 1,
			Of:      []requirement.Requirement{{AtLeast: 1, Of: []requirement.Requirement{a}}},
		}, a},
		"message":   {static(false, "denied"), static(false, "")},
		"never met": {static(false, ""), requirement.Requirement{Of: []requirement.Requirement{a}}},
		"a text as a glob": {
			keyless(func(s *requirement.Signer) { s.Keyless.Issuer = requirement.Glob("https://issuer.test") }), keyless(same),
		},
		"order of roots": {
			keyless(func(s *requirement.Signer) { s.Keyless.Roots = [][]byte{[]byte("r"), []byte("s")} }),
			keyless(func(s *requirement.Signer) { s.Keyless.Roots = [][]byte{[]byte("s"), []byte("r"), []byte("s")} }),
		},
		"unused keys of certificate logs": {
			keyless(func(s *requirement.Signer) { s.Keyless.IgnoreSCT = true }),
			keyless(func(s *requirement.Signer) { s.Keyless.IgnoreSCT, s.Keyless.CTLogKeys = true, [][]byte{[]byte("l")} }),
		},
	} {
		if x, y := pair[0].Hash("root"), pair[1].Hash("root"); x != y || !strings.HasPrefix(x, "v1:") || len(x) != 67 {
			t.Errorf("%s: hashes %s, %s; want the same", name, x, y)
		}
	}
}

// A random tree has the same hash in every order, and another one after any change of a count or a leaf.
func TestHashOfRandomTrees(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	leaves := 0
	var tree func(depth int) requirement.Requirement
	tree = func(depth int) requirement.Requirement {
		if depth == 0 || random.IntN(3) == 0 {
			leaves++
			return key(fmt.Sprint(leaves))
		}
		of := make([]requirement.Requirement, 2+random.IntN(3))
		for i := range of {
			of[i] = tree(depth - 1)
		}
		return requirement.AtLeast(1+random.IntN(len(of)), of...)
	}
	for range 300 {
		r := tree(4)
		if shuffled := shuffle(random, r); shuffled.Hash("") != r.Hash("") {
			t.Fatalf("seed %d: another order has another hash:\n%s\n%s", seed, &r, &shuffled)
		}
		if changed := change(random, r); changed.Hash("") == r.Hash("") {
			t.Fatalf("seed %d: the same hash:\n%s\n%s", seed, &r, &changed)
		}
	}
}

func shuffle(random *rand.Rand, r requirement.Requirement) requirement.Requirement {
	r.Of = slices.Clone(r.Of)
	for i := range r.Of {
		r.Of[i] = shuffle(random, r.Of[i])
	}
	random.Shuffle(len(r.Of), func(i, j int) { r.Of[i], r.Of[j] = r.Of[j], r.Of[i] })
	return r
}

// change changes one count or one leaf.
func change(random *rand.Rand, r requirement.Requirement) requirement.Requirement {
	if r.SignedBy != nil {
		return key("changed")
	}
	r.Of = slices.Clone(r.Of)
	if i := random.IntN(len(r.Of) + 1); i < len(r.Of) {
		r.Of[i] = change(random, r.Of[i])
		return r
	}
	r.AtLeast = r.AtLeast%len(r.Of) + 1
	return r
}

func TestUsesTrustedRoot(t *testing.T) {
	a := key("a")
	own := [][]byte{[]byte("x")}
	complete := func(s *requirement.Signer) { s.Keyless.Roots, s.Keyless.CTLogKeys, s.Log.Keys = own, own, own }
	for _, tc := range []struct {
		name string
		r    requirement.Requirement
		want bool
	}{
		{"key", a, false},
		{"key with a log", signed(requirement.Signer{Key: a.SignedBy.Key, Log: &requirement.Log{}}), true},
		{"own log", signed(requirement.Signer{Key: a.SignedBy.Key, Log: &requirement.Log{Keys: own}}), false},
		{"timestamp", signed(requirement.Signer{Key: a.SignedBy.Key, Timestamp: &requirement.Timestamp{}}), true},
		{"own " +
			"timestamp", signed(requirement.Signer{Key: a.SignedBy.Key, Timestamp: &requirement.Timestamp{Chain: own}}), false},
		{"keyless", keyless(func(*requirement.Signer) {}), true},
		{"own roots only", keyless(func(s *requirement.Signer) { s.Keyless.Roots = own }), true},
		{"everything own", keyless(complete), false},
		{"without SCT", keyless(func(s *requirement.Signer) {
			complete(s)
			s.Keyless.CTLogKeys, s.Keyless.IgnoreSCT = nil, true
		}), false},
		{"one of the " +
			"nodes", requirement.AtLeast(1, a, requirement.AtLeast(1, a, keyless(func(*requirement.Signer) {}))), true},
	} {
		if got := tc.r.UsesTrustedRoot(); got != tc.want || (tc.r.Hash("r") != tc.r.Hash("s")) != tc.want {
			t.Errorf("%s: UsesTrustedRoot = %v; want %v, and the root in the hash likewise", tc.name, got, tc.want)
		}
	}
}

// Shows: 002-17, 002-19
func TestMet(t *testing.T) {
	a, b, c := key("a"), key("b"), key("c")
	for _, tc := range []struct {
		name string
		r    requirement.Requirement
		want map[string]bool // by the signers
	}{
		{"zero", requirement.Requirement{}, map[string]bool{"": false, "abc": false}},
		{"a key", a, map[string]bool{"": false, "a": true, "bc": false}},
		{"one of two", requirement.AtLeast(1, a, b), map[string]bool{"": false, "a": true, "b": true, "c": false}},
		{"all of two", requirement.AtLeast(2, a, b), map[string]bool{"": false, "a": false, "ab": true, "bc": false}},
		{
			"two of three", requirement.AtLeast(2, a, b, c),
			map[string]bool{"a": false, "ab": true, "ac": true, "bc": true, "abc": true},
		},
		{
			"nested", requirement.AtLeast(2, a, requirement.AtLeast(1, b, c)),
			map[string]bool{"a": false, "bc": false, "ab": true, "ac": true},
		},
		{"more than " +
			"all", requirement.Requirement{AtLeast: 3, Of: []requirement.Requirement{a, b}}, map[string]bool{"abc": false}},
		{"none of", requirement.Requirement{Of: []requirement.Requirement{a, b}}, map[string]bool{"": false, "abc": false}},
		{
			"negative",
			requirement.Requirement{AtLeast: -1, Of: []requirement.Requirement{a}},
			map[string]bool{"": false, "abc": false},
		},
		{"pass", static(true, ""), map[string]bool{"": true}},
		{"fail", static(false, ""), map[string]bool{"abc": false}},
		{"a key or pass", requirement.AtLeast(1, a, static(true, "")), map[string]bool{"": true}},
		{"all of no entry", requirement.AtLeast(0), map[string]bool{"abc": false}},
	} {
		for signers, want := range tc.want {
			if got := tc.r.Met(func(s *requirement.Signer) bool {
				return strings.Contains(signers, string(s.Key.Public))
			}); got != want {
				t.Errorf("%s, signed by %q: %v; want %v", tc.name, signers, got, want)
			}
		}
	}
	for name, tc := range map[string]struct {
		r    requirement.Requirement
		want bool
	}{
		"a key": {a, true}, "pass": {static(true, ""), false}, "fail": {static(false, ""), false},
		"zero":          {requirement.Requirement{}, false},
		"a key or pass": {requirement.AtLeast(1, a, static(true, "")), false},
		"a key or fail": {requirement.AtLeast(1, a, static(false, "")), true},
	} {
		if got := tc.r.NeedsSignature(); got != tc.want {
			t.Errorf("%s: NeedsSignature = %v; want %v", name, got, tc.want)
		}
	}
}

func TestRequirementInWords(t *testing.T) {
	for want, r := range map[string]requirement.Requirement{
		"nothing": static(true, ""), "no image is allowed": static(false, ""),
		"key sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb": key("a"),
		"identity https://git.test/team/* of issuer https://issuer.test":              keyless(func(*requirement.Signer) {}),
		"at least 1 of (identity https://git.test/team/* of issuer https://issuer.test; no signer)": requirement.AtLeast(1,
			keyless(func(*requirement.Signer) {}), signed(requirement.Signer{})),
	} {
		if got := r.String(); got != want {
			t.Errorf("String = %q; want %q", got, want)
		}
	}
}

func TestText(t *testing.T) {
	expression := func(s string) requirement.Text {
		x, err := requirement.Regexp(s)
		testkit.Must(t, err)
		return x
	}
	for name, tc := range map[string]struct {
		text    requirement.Text
		yes, no []string
		inWords string
	}{
		"zero":  {requirement.Text{}, nil, []string{"", "a"}, ""},
		"exact": {requirement.Exactly("a*"), []string{"a*"}, []string{"a", "ab", ""}, "a*"},
		"glob": {requirement.Glob("https://a.b/*@c?"), []string{"https://a.b/@cd", "https://a.b/x/y\n@cd"}, []string{"https" +
			"://aab/@cd", "https://a.b/@c", "xhttps://a.b/@cd", "https://a.b/@cd\n"}, "https://a.b/*@c?"},
		"expression": {expression("a|b+"), []string{"a", "bb"}, []string{"ab", "a\n", "", "xa"}, "matching a|b+"},
	} {
		for _, s := range tc.yes {
			if !tc.text.Matches(s) {
				t.Errorf("%s does not match %q", name, s)
			}
		}
		for _, s := range tc.no {
			if tc.text.Matches(s) {
				t.Errorf("%s matches %q", name, s)
			}
		}
		if got := tc.text.String(); got != tc.inWords {
			t.Errorf("%s: String = %q; want %q", name, got, tc.inWords)
		}
	}
	for _, invalid := range []string{"(", "a) | (b"} {
		if _, err := requirement.Regexp(invalid); err == nil {
			t.Errorf("Regexp(%q) = nil; want an error", invalid)
		}
	}
}

// Shows: 002-22
func TestExtensions(t *testing.T) {
	names := requirement.ExtensionNames()
	for i, name := range names {
		id, ok := requirement.ExtensionID(name)
		if want := fmt.Sprintf("1.3.6.1.4.1.57264.1.%d", i+2); !ok || id != want || requirement.ExtensionName(id) != name {
			t.Errorf("%s = %s, %v; want %s", name, id, ok, want)
		}
	}
	if _, ok := requirement.ExtensionID("other"); ok || requirement.ExtensionName("1.2") != "1.2" || len(names) != 5 {
		t.Errorf("%d extensions; want 5 and no others", len(names))
	}
}

func TestSignersOverlap(t *testing.T) {
	text := func(s string) requirement.Text {
		if s, ok := strings.CutPrefix(s, "matching "); ok {
			x, err := requirement.Regexp(s)
			testkit.Must(t, err)
			return x
		}
		return requirement.Glob(s)
	}
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a*", "ab", true},
		{"a*", "ba", false},
		{"a*", "*b", true},
		{"a*b", "ac*d", false},
		{"*", "", true},
		{"?", "", false},
		{"a?c*", "*bc", true},
		{"?", "é", true},
		{"?*", "?", true},
		{"a*b*c", "a*c*c", true},
		{"https://github.com/o/*", "https://github.com/*", true},
		{"https://github.com/o/*", "https://github.com/p/*", false},
		{"matching a+", "aa", true},
		{"matching a+", "b", false},
		{"matching a+", "matching a+", true},
		{"matching a+", "matching a*", false}, // not known
		{"matching a+", "a*", false},
	} {
		signer := func(subject string) *requirement.Signer {
			return &requirement.Signer{Keyless: &requirement.Keyless{Issuer: requirement.Exactly("i"), Subject: text(subject)}}
		}
		a, b := signer(tc.a), signer(tc.b)
		if got := a.Overlaps(b); got != tc.want || b.Overlaps(a) != got {
			t.Errorf("%s overlaps %s: %v, %v; want %v", tc.a, tc.b, got, b.Overlaps(a), tc.want)
		}
	}
	signer := func(change func(*requirement.Signer)) *requirement.Signer {
		s := &requirement.Signer{Keyless: &requirement.Keyless{
			Issuer: requirement.Exactly("i"), Subject: requirement.Glob("*"), Extensions: map[string]string{"1": "x"},
		}}
		change(s)
		return s
	}
	for name, tc := range map[string]struct {
		change func(*requirement.Signer)
		want   bool
	}{
		"equal":               {func(*requirement.Signer) {}, true},
		"other settings":      {func(s *requirement.Signer) { s.Repository, s.Log = "r", &requirement.Log{} }, true},
		"a further extension": {func(s *requirement.Signer) { s.Keyless.Extensions["2"] = "y" }, true},
		"another value":       {func(s *requirement.Signer) { s.Keyless.Extensions["1"] = "y" }, false},
		"another issuer":      {func(s *requirement.Signer) { s.Keyless.Issuer = requirement.Exactly("j") }, false},
		"other roots":         {func(s *requirement.Signer) { s.Keyless.Roots = [][]byte{{1}} }, false},
		"a key":               {func(s *requirement.Signer) { s.Keyless, s.Key = nil, &requirement.Key{} }, false},
	} {
		if got := signer(func(*requirement.Signer) {}).Overlaps(signer(tc.change)); got != tc.want {
			t.Errorf("%s: %v; want %v", name, got, tc.want)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
