package policy_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

const allowlisted = string(policy.ModeNeverVerifyAllowlistedImages)

// The content of testdata/policies.yaml.
type table struct {
	Valid   []string `json:"valid"`
	Invalid []struct {
		Pattern string `json:"pattern"`
		Because string `json:"because"`
	} `json:"invalid"`
	Matches []struct {
		List         []string `json:"list"`
		Image        string   `json:"image"`
		ResolvedAsID bool     `json:"resolved_as_id"`
		Match        bool     `json:"match"`
	} `json:"matches"`
	Combined []struct {
		Policy    string   `json:"policy"`
		List      []string `json:"list"`
		Error     string   `json:"error"`
		Effective string   `json:"effective"`
	} `json:"combined"`
}

func policies(tb testing.TB) table {
	tb.Helper()
	data := testkit.Value(os.ReadFile("testdata/policies.yaml"))(tb)
	var all table
	testkit.Must(tb, yaml.UnmarshalStrict(data, &all))
	if got := [4]int{len(all.Valid), len(all.Invalid), len(all.Matches), len(all.Combined)}; got != [4]int{5, 10, 10, 3} {
		tb.Fatalf("testdata/policies.yaml has %v lines; want 5, 10, 10 and 3, or this test runs too few of them", got)
	}
	return all
}

func mustNew(tb testing.TB, mode string, list ...string) policy.Policy {
	tb.Helper()
	p := testkit.Value(policy.New(mode, list))(tb)
	return p
}

// Shows: 001-09
func TestConformanceOfSyntax(t *testing.T) {
	all := policies(t)
	for _, s := range all.Valid {
		if _, err := policy.New(allowlisted, []string{s}); err != nil {
			t.Errorf("New with %q = %v; want nil", s, err)
		}
	}
	mustNew(t, allowlisted, all.Valid...)
	for _, l := range all.Invalid {
		_, err := policy.New(allowlisted, []string{"repo.test/fine", l.Pattern})
		if err == nil || !strings.Contains(err.Error(), l.Because) {
			t.Errorf("New with %q = %v; want an error that says %q", l.Pattern, err, l.Because)
		}
	}
}

// Shows: 001-09
func TestConformanceOfMatching(t *testing.T) {
	for _, l := range policies(t).Matches {
		n := testkit.Value(imageref.Parse(l.Image))(t)
		p := mustNew(t, allowlisted, l.List...)
		got := p.Judge(policy.Evidence{Repository: n.Repository(), ByID: l.ResolvedAsID})
		if (got.Reason == policy.Allowlisted) != l.Match || (got.Verdict == policy.Allow) != l.Match {
			t.Errorf("%q under %q: %v by %s; want a match: %v", l.Image, l.List, got.Verdict, got.Reason, l.Match)
		}
		if got := p.Allowlisted(n.Repository()); !l.ResolvedAsID && got != l.Match {
			t.Errorf("%q: Allowlisted(%q) = %v; want %v", l.List, n.Repository(), got, l.Match)
		}
		if l.ResolvedAsID != n.IsImageID() {
			t.Errorf("%q: IsImageID = %v; want %v", l.Image, n.IsImageID(), l.ResolvedAsID)
		}
	}
}

func TestConformanceOfCombinations(t *testing.T) {
	for _, l := range policies(t).Combined {
		p, err := policy.New(l.Policy, l.List)
		var says []string
		switch l.Error {
		case "":
			if err != nil || string(p.Mode()) != l.Effective {
				t.Errorf("New(%q, %q) = %s, %v; want %s, nil", l.Policy, l.List, p.Mode(), err, l.Effective)
			}
			continue
		case "names the four valid values":
			says = []string{
				`"` + l.Policy + `"`, "NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages",
				"AlwaysVerify",
			}
		case "the list needs NeverVerifyAllowlistedImages":
			says = []string{"preloadedImagesVerificationAllowlist", "needs NeverVerifyAllowlistedImages"}
		default:
			t.Fatalf("error: %s is unknown to this test", l.Error)
		}
		for _, want := range says {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("New(%q, %q) = %v; want an error with %s", l.Policy, l.List, err, want)
			}
		}
	}
}

func TestAllowlistMatchesNormalisedRepositories(t *testing.T) {
	for _, c := range []struct {
		pattern string
		match   string // repositories, separated by one space
		not     string
	}{
		{"busybox", "docker.io/library/busybox", "docker.io/busybox docker.io/library/busybox2 docker.io/team/busybox " +
			"repo.test/busybox"},
		{"docker.io/busybox", "docker.io/library/busybox", "docker.io/team/busybox"},
		{"index.docker.io/busybox", "docker.io/library/busybox", "index.docker.io/busybox"},
		{"index.docker.io/team/app", "docker.io/team/app", "docker.io/team/app/x"},
		{"team/app", "docker.io/team/app", "team/app repo.test/team/app"},
		{
			"team/*", "docker.io/team/app docker.io/team/deep/app",
			"docker.io/team docker.io/teammate/app docker.io/library/team repo.test/team/app",
		},
		{"library/*", "docker.io/library/busybox", "docker.io/team/app"},
		{"docker.io/library/*", "docker.io/library/busybox", "docker.io/library docker.io/team/app"},
		{"docker.io/*", "docker.io/library/busybox docker.io/team/app", "repo.test/app docker.io.evil.test/app"},
		{"index.docker.io/*", "docker.io/library/busybox docker.io/team/app", "index.docker.io.evil.test/app"},
		{"index.docker.io/team/*", "docker.io/team/app", "docker.io/library/team"},
		{"localhost/*", "localhost/app", "localhost:5000/app docker.io/localhost/app"},
		{"localhost:5000/*", "localhost:5000/app localhost:5000/a/b", "localhost/app localhost:50000/app"},
		{"localhost:5000/app", "localhost:5000/app", "localhost:5000/app/x localhost:5000/app2"},
		{"[::1]:5000/*", "[::1]:5000/app", "[::1]/app"},
		{"repo.test/*", "repo.test/app repo.test/a/b", "repo.test repo.test2/app repo.test:443/app"},
		{"repo.test/app/*", "repo.test/app/x", "repo.test/app repo.test/app-x"},
	} {
		p := mustNew(t, allowlisted, c.pattern)
		for r := range strings.FieldsSeq(c.match) {
			if !p.Allowlisted(r) {
				t.Errorf("%s: Allowlisted(%q) = false; want true", c.pattern, r)
			}
		}
		for _, r := range append(strings.Fields(c.not), "", "/") {
			if p.Allowlisted(r) {
				t.Errorf("%s: Allowlisted(%q) = true; want false", c.pattern, r)
			}
		}
	}
	p := mustNew(t, allowlisted, "repo.test/a", "other.test/*")
	if !p.Allowlisted("repo.test/a") || !p.Allowlisted("other.test/b") || p.Allowlisted("repo.test/b") {
		t.Error("a list of two does not match what either of them matches")
	}
	if mustNew(t, allowlisted).Allowlisted("repo.test/a") || (policy.Policy{}).Allowlisted("") {
		t.Error("an empty list matches something")
	}
}

func TestNewReportsAllErrors(t *testing.T) {
	const allowed = "; allowed is a repository, as in repo.test/team/app, or everything below a registry or a path, as " +
		"in repo.test/team/*"
	p, err := policy.New(allowlisted, []string{
		"", "repo.test/fine", "repo.test/app:1", " a", "repo.test/a*", "/*",
		"repo.test/App", "repo.test//*", "repo.test/a:1/*", strings.Repeat("a", 4096) + ".test/*",
	})
	want := strings.Join([]string{
		`preloadedImagesVerificationAllowlist[0]: "" is not allowed: it is empty` + allowed,
		`preloadedImagesVerificationAllowlist[2]: "repo.test/app:1" is not allowed: no tag may be given` + allowed,
		`preloadedImagesVerificationAllowlist[3]: " a" is not allowed: it has surrounding space` + allowed,
		`preloadedImagesVerificationAllowlist[4]: "repo.test/a*" is not allowed: a star only as the whole last segment` +
			allowed,
		`preloadedImagesVerificationAllowlist[5]: "/*" is not allowed: a host is needed before the star` + allowed,
		`preloadedImagesVerificationAllowlist[6]: "repo.test/App" is not allowed: repo.test/App is not an image name` +
			allowed,
		`preloadedImagesVerificationAllowlist[7]: "repo.test//*" is not allowed: repo.test/ is not an image name` + allowed,
		`preloadedImagesVerificationAllowlist[8]: "repo.test/a:1/*" is not allowed: repo.test/a:1 is not an image name` +
			allowed,
		`preloadedImagesVerificationAllowlist[9]: "` + strings.Repeat("a", 80) + `…" is not allowed: it is longer than ` +
			"4096 bytes" + allowed,
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("New:\n%v\nwant:\n%s", err, want)
	}
	if p.Mode() != policy.ModeNeverVerifyPreloadedImages || p.Allowlisted("repo.test/fine") {
		t.Errorf("New returns %s and a list beside its error; want the zero value", p.Mode())
	}
	// An invalid mode does not determine whether there may be a list.
	if _, err := policy.New("Sometimes", []string{"repo.test/a"}); err == nil || strings.Contains(err.Error(), "needs") {
		t.Errorf("New(Sometimes, list) = %v; want an error about the mode alone", err)
	}
}

func TestNewDoesNotKeepItsArguments(t *testing.T) {
	list := []string{"repo.test/a"}
	p := mustNew(t, allowlisted, list...)
	list[0] = "repo.test/b"
	if !p.Allowlisted("repo.test/a") || p.Allowlisted("repo.test/b") {
		t.Error("a list that the caller changed later changed the policy")
	}
}

func FuzzPattern(f *testing.F) {
	all := policies(f)
	for _, s := range all.Valid {
		f.Add(s, "repo.test/team/app")
	}
	for _, l := range all.Invalid {
		f.Add(l.Pattern, "repo.test/app")
	}
	for _, s := range []string{
		"docker.io/*", "index.docker.io/*", "team/*", "localhost:5000/*", "[::1]:5000/*", "x/x/*",
		"//*", "*/*",
	} {
		f.Add(s, "docker.io/library/busybox")
	}
	f.Fuzz(func(t *testing.T, s, name string) {
		p, err := policy.New(allowlisted, []string{s})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "preloadedImagesVerificationAllowlist[0]: ") ||
				!strings.Contains(err.Error(), "allowed is") {
				t.Errorf("New with %q: %v; want the path and what is allowed", s, err)
			}
			return
		}
		base, wildcard := strings.CutSuffix(s, "/*")
		if strings.Contains(base, "*") || base == "" || strings.TrimSpace(s) != s {
			t.Errorf("New takes %q", s)
		}
		if !wildcard {
			n, err := imageref.Parse(s)
			if err != nil || !p.Allowlisted(n.Repository()) {
				t.Errorf("%q does not match the image of that name: %v", s, err)
			}
		} else if n, err := imageref.Parse(base + "/a/b"); err != nil || !p.Allowlisted(n.Repository()) {
			t.Errorf("%q does not match %q below it: %v", s, n, err)
		}
		// A matching name equals the written text, or has it as a prefix up to a slash.
		n, err := imageref.Parse(name)
		if err != nil || !p.Allowlisted(n.Repository()) {
			return
		}
		host, path, _ := strings.Cut(n.Repository(), "/")
		ways := []string{n.Repository()}
		if host == "docker.io" {
			ways = append(ways, path, "index.docker.io/"+path)
			if short, ok := strings.CutPrefix(path, "library/"); ok {
				ways = append(ways, short, "docker.io/"+short, "index.docker.io/"+short)
			}
		}
		for _, w := range ways {
			if w == s || wildcard && strings.HasPrefix(w, base+"/") {
				return
			}
		}
		t.Errorf("%q matches %q, which is none of %q and below none of them", s, n, ways)
	})
}
