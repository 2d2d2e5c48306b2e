package imageaccess_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
)

// file returns a file with a grant; more is added to its spec.
func file(name, grant, images, from string, more ...string) strictyaml.File {
	text := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: " + name + "}\n" +
		"spec:\n  grant: " + grant + "\n  images: " + images + "\n  from: " + from + "\n"
	for _, m := range more {
		text += "  " + m + "\n"
	}
	return strictyaml.File{Name: name + ".yaml", Data: []byte(text)}
}

func load(tb testing.TB, files ...strictyaml.File) *imageaccess.Set {
	tb.Helper()
	return testkit.Value(imageaccess.Load(files))(tb)
}

const (
	toB    = "[{namespaces: [team-b]}]"
	lentBy = "credentials: {dockerConfigFile: /etc/pullgate/lend/a.json}"
)

func TestPatterns(t *testing.T) {
	for _, tc := range []struct{ pattern, matches, differs string }{
		{"repo.test/a/base", "repo.test/a/base REPO.test/a/base repo.test:443/a/base", "repo.test/a/base2 repo.test/a " +
			"repo.test:444/a/base other.test/a/base evil.test/repo.test/a/base"},
		{"repo.test/a/*", "repo.test/a/base repo.test/a/b/c", "repo.test/a repo.test/ab/c"},
		{"repo.test/a/base*", "repo.test/a/base repo.test/a/base-image repo.test/a/base/x", "repo.test/a/bas"},
		{"repo.test/*/base", "repo.test/a/base repo.test/a/b/base", "repo.test/base repo.test/a/base/c"},
		{"repo.test/*a*b*", "repo.test/xayb repo.test/ab repo.test/aab/c", "repo.test/ba repo.test/b"},
		{"repo.test/*t", "repo.test/part", "repo.test/base"}, // whose tag would be latest
		{"repo.test/aa*aa", "repo.test/aaaa repo.test/aa/aa", "repo.test/aaa"},
		{"repo.test:5000/x", "repo.test:5000/x repo.test:05000/x", "repo.test/x repo.test:5001/x"},
		{"localhost/x", "localhost/x", "docker.io/localhost/x"},
		{"docker.io/busybox", "docker.io/library/busybox index.docker.io/library/busybox registry-1.docker.io/busybox " +
			"registry.hub.docker.com/busybox", "docker.io/x/busybox"},
		{"docker.io/busy*", "docker.io/library/busybox docker.io/busy/x", "docker.io/library/x"},
		{"index.docker.io/team/*", "docker.io/team/app registry-1.docker.io/team/app", "docker.io/library/team"},
		{"registry-1.docker.io/team/app", "docker.io/team/app", "docker.io/library/app"},
	} {
		s := load(t, file("f", "Share", fmt.Sprintf("[%q]", tc.pattern), toB))
		want := func(repositories string, want string) {
			for r := range strings.FieldsSeq(repositories) {
				if got := s.Rights(r, "team-b", "").Enforced.Share; got != want {
					t.Errorf("%s: Rights(%s) are of %q; want %q", tc.pattern, r, got, want)
				}
			}
		}
		want(tc.matches, "f")
		want(tc.differs, "")
	}
}

func TestRights(t *testing.T) {
	s := load(t,
		file("share", "Share", `["repo.test/a/*"]`, `[{namespaces: [team-b, team-d]}]`),
		file("lend", "Lend", `["repo.test/a/lent"]`, `[{serviceAccounts: [{namespace: team-c, name: builder}]}]`, lentBy),
		file("fence-1", "Fence", `["repo.test/a/fenced"]`, `[{namespaces: [team-a, team-b]}]`),
		file("fence-2", "Fence", `["repo.test/a/fenced"]`, `[{namespaces: [team-a]}, `+
			`{serviceAccounts: [{namespace: team-b, name: x}]}]`),
	)
	for _, tc := range []struct {
		repository, namespace, account string
		want                           policy.NamedRights
	}{
		{"repo.test/a/x", "team-b", "", policy.NamedRights{Share: "share"}},
		{"repo.test/a/x", "team-c", "", policy.NamedRights{}},
		{"repo.test/b/x", "team-b", "", policy.NamedRights{}},
		{"repo.test/a/lent", "team-c", "builder", policy.NamedRights{Lend: "lend"}},
		{"repo.test/a/lent", "team-c", "", policy.NamedRights{}}, // it is not known
		{"repo.test/a/lent", "team-c", "other", policy.NamedRights{}},
		{"repo.test/a/lent", "team-b", "builder", policy.NamedRights{Share: "share"}},
		{"repo.test/a/fenced", "team-a", "", policy.NamedRights{}},
		{"repo.test/a/fenced", "team-b", "", policy.NamedRights{Share: "share", Fence: "fence-2"}},
		{"repo.test/a/fenced", "team-b", "x", policy.NamedRights{Share: "share"}}, // of both
		{"repo.test/a/fenced", "team-d", "x", policy.NamedRights{Share: "share", Fence: "fence-1"}},
		{"repo.test/a/fenced", "", "", policy.NamedRights{Fence: "fence-1"}},
		{"", "team-b", "", policy.NamedRights{Fence: "fence-2"}}, // any repository may be meant
		{"", "team-a", "", policy.NamedRights{}},
	} {
		got := s.Rights(tc.repository, tc.namespace, tc.account)
		if want := (policy.FileRights{Enforced: tc.want}); got != want {
			t.Errorf("Rights(%s, %s, %s) = %+v; want %+v", tc.repository, tc.namespace, tc.account, got, want)
		}
	}
	for may, of := range map[bool][][2]string{
		true:  {{"repo.test/a/x", "team-b"}, {"repo.test/a/lent", "team-c"}, {"repo.test/a/x", ""}},
		false: {{"repo.test/a/x", "team-a"}, {"repo.test/a/x", "team-c"}, {"repo.test/b", "team-b"}, {"repo.test/b", ""}},
	} {
		for _, x := range of {
			if got := s.MayGrant(x[0], x[1]); got != may {
				t.Errorf("MayGrant(%s, %s) = %v; want %v", x[0], x[1], got, may)
			}
		}
	}
	var none *imageaccess.Set
	if r := none.Rights("repo.test/a/x", "team-b", ""); r != (policy.FileRights{}) ||
		none.MayGrant("repo.test/a/x", "team-b") ||
		none.NeedsServiceAccounts() || none.Files() != nil || none.Warnings() != nil || !s.NeedsServiceAccounts() {
		t.Error("a nil Set says something, or a Set does not need its service accounts")
	}
}

func TestAuditHasNoEffect(t *testing.T) {
	f := file("f", "Fence", `["repo.test/a"]`, toB)
	f.Data = []byte(strings.Replace(string(f.Data), "{name: f}",
		"{name: f, annotations: {policy.pullgate.dev/mode: Audit}}", 1))
	s := load(t, f, file("s", "Share", `["repo.test/a"]`, "[{namespaces: [team-c]}]"))
	want := policy.FileRights{Enforced: policy.NamedRights{Share: "s"}, Audited: policy.NamedRights{Fence: "f"}}
	if got := s.Rights("repo.test/a", "team-c", ""); got != want {
		t.Errorf("Rights = %+v; want %+v", got, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	long, zeros := "repo.test/"+strings.Repeat("a", 600), strings.Repeat("0", 64)
	const both = "[{namespaces: [a], serviceAccounts: [{namespace: a, name: b}]}]"
	const noName, noPath = "[{serviceAccounts: [{namespace: a}]}]", "credentials: {dockerConfigFile: a.json}"
	for what, tc := range map[string]struct{ grant, images, from, more, want string }{
		"no grant":               {"''", `["r.test/a"]`, toB, "", `spec.grant: Unsupported value: ""`},
		"another grant":          {"Give", `["r.test/a"]`, toB, "", `spec.grant: Unsupported value: "Give"`},
		"no image":               {"Share", "[]", toB, "", "spec.images: Required value"},
		"wildcard in the host":   {"Share", `["*.test/a"]`, toB, "", "spec.images[0]: Invalid value: \"*.test/a\": must not"},
		"wildcard for the host":  {"Fence", `["*/a"]`, toB, "", "must not have a wildcard in the registry"},
		"only a wildcard":        {"Fence", `["*"]`, toB, "", "must be a repository with its registry"},
		"wildcard in the port":   {"Lend", `["r.test:5*/a"]`, toB, lentBy, "must not have a wildcard in the registry"},
		"no registry":            {"Share", `["team/app"]`, toB, "", "must be a repository with its registry"},
		"no path":                {"Share", `["r.test/"]`, toB, "", "must be a repository with its registry"},
		"a tag":                  {"Share", `["r.test/a:1"]`, toB, "", "without tag and digest"},
		"a wild tag":             {"Share", `["r.test/a:*"]`, toB, "", "without tag and digest"},
		"a digest":               {"Share", `["r.test/a@sha256:` + zeros + `"]`, toB, "", "without tag and digest"},
		"upper case":             {"Share", `["r.test/A"]`, toB, "", "in lower case"},
		"a scheme":               {"Share", `["https://r.test/a"]`, toB, "", "must be a repository"},
		"a user":                 {"Lend", `["user:pass@r.test/a"]`, toB, lentBy, "must be a repository"},
		"a long one":             {"Share", `["` + long + `"]`, toB, "", "must have at most 512 characters"},
		"an ID":                  {"Share", `["docker.io/library/sha256"]`, toB, "", "must be a repository"},
		"no from":                {"Share", `["r.test/a"]`, "[]", "", "spec.from: Required value"},
		"an empty from":          {"Share", `["r.test/a"]`, "[{}]", "", "spec.from[0]: Required value"},
		"both in from":           {"Share", `["r.test/a"]`, both, "", "spec.from[0]"},
		"a wild namespace":       {"Share", `["r.test/a"]`, `[{namespaces: ["*"]}]`, "", "namespaces[0]: Invalid value"},
		"no account name":        {"Share", `["r.test/a"]`, noName, "", "serviceAccounts[0].name: Invalid value"},
		"credentials of a Share": {"Share", `["r.test/a"]`, toB, lentBy, "spec.credentials: Invalid value"},
		"a Lend without":         {"Lend", `["r.test/a"]`, toB, "", "spec.credentials: Required value"},
		"a relative path":        {"Lend", `["r.test/a"]`, toB, noPath, "must be an absolute path"},
		"Docker Hub":             {"Lend", `["docker.io/*"]`, toB, lentBy, "must not be a whole public registry"},
		"an alias of it":         {"Lend", `["INDEX.docker.io:443/**"]`, toB, lentBy, "must not be a whole public registry"},
		"ghcr.io":                {"Lend", `["ghcr.io/*/*"]`, toB, lentBy, "must not be a whole public registry"},
		"an unknown field":       {"Share", `["r.test/a"]`, toB, "image: x", "unknown field"},
	} {
		_, err := imageaccess.Load([]strictyaml.File{file("f", tc.grant, tc.images, tc.from, tc.more)})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Load = %v; want an error with %q", what, err, tc.want)
		}
	}
	for what, change := range map[string][2]string{
		`apiVersion: Unsupported value: "v1"`: {"policy.pullgate.dev/v1alpha1", "v1"},
		"metadata.name: Invalid value":        {"{name: f}", "{name: F_}"},
		"Unsupported value: \"Maybe\"":        {"{name: f}", "{name: f, annotations: {policy.pullgate.dev/mode: Maybe}}"},
	} {
		f := file("f", "Share", `["r.test/a"]`, toB)
		f.Data = []byte(strings.Replace(string(f.Data), change[0], change[1], 1))
		if _, err := imageaccess.Load([]strictyaml.File{f}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("Load = %v; want an error with %q", err, what)
		}
	}
}

func TestTwoLendsForOneImageAndPod(t *testing.T) {
	lend := func(name, image, from string) strictyaml.File {
		return file(name, "Lend", `["`+image+`"]`, from, lentBy)
	}
	account := "[{serviceAccounts: [{namespace: team-b, name: x}]}]"
	for _, tc := range []struct {
		a, b, from string
		ok         bool
	}{
		{"r.test/a", "r.test/a", toB, false},
		{"r.test/a*", "r.test/ab", toB, false},
		{"r.test/a*c", "r.test/*b*", toB, false},
		{"r.test/a*", "r.test/b*", toB, true},
		{"r.test/a", "R.test:443/a", toB, false},
		{"r.test/a", "r.test:5000/a", toB, true},
		{"r.test/a", "r.test/a", "[{namespaces: [team-c]}]", true},
		{"r.test/a", "r.test/a", account, false},
		{"docker.io/busy*", "docker.io/library/*", toB, false},
		{"docker.io/busy*", "docker.io/library/x*", toB, true},
	} {
		_, err := imageaccess.Load([]strictyaml.File{lend("one", tc.a, toB), lend("two", tc.b, tc.from)})
		if (err == nil) != tc.ok {
			t.Errorf("Load of Lends for %s and, for %s, %s = %v; want valid: %v", tc.a, tc.from, tc.b, err, tc.ok)
		}
	}
	other := "[{serviceAccounts: [{namespace: team-b, name: z}]}]"
	_, err := imageaccess.Load([]strictyaml.File{lend("one", "r.test/a", account), lend("two", "r.test/a", other)})
	if err != nil {
		t.Errorf("Load of Lends for two accounts = %v; want nil", err)
	}
}

func TestWarnings(t *testing.T) {
	s := load(t, file("f", "Fence", `["r.test/*", "quay.io/*"]`, toB))
	if got := s.Warnings(); len(got) != 1 || got[0] != "f.yaml: spec.images[1]: quay.io/* is a whole public registry" {
		t.Errorf("Warnings = %q; want one about quay.io", got)
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("repo.test/a/*", "repo.test/a/b")
	f.Add("docker.io/busy*", "docker.io/library/busybox")
	f.Add("repo.test:443/**a*", "repo.test/aaaa")
	f.Fuzz(func(t *testing.T, pattern, repository string) {
		s, err := imageaccess.Load([]strictyaml.File{file("f", "Fence", fmt.Sprintf("[%q]", pattern), toB)})
		if err != nil {
			return
		}
		fenced := s.Rights(repository, "team-c", "").Enforced.Fence != ""
		if same := s.Rights(strings.ToUpper(repository[:max(0, strings.Index(repository, "/"))])+
			repository[max(0, strings.Index(repository, "/")):], "team-c", "").Enforced.Fence != ""; same != fenced {
			t.Errorf("%q matches %q: %v, with the registry in upper case: %v", pattern, repository, fenced, same)
		}
	})
}

// An ECR registry has several hosts. A Fence is for all of them, a Share and a Lend for that of their pattern.
func TestFenceOfECR(t *testing.T) {
	same := []string{
		"1.dkr.ecr.eu-west-1.amazonaws.com", "1.dkr-ecr.eu-west-1.on.aws", "1.dkr.ecr-fips.eu-west-1.amazonaws.com",
		"1.dkr-ecr-fips.eu-west-1.on.aws", "1.DKR-ecr.eu-west-1.on.aws:443", "1.dkr.ecr.eu-west-1.amazonaws.com.cn",
		"1.dkr-ecr.eu-west-1.on.amazonwebservices.com.cn",
	}
	others := []string{
		"2.dkr.ecr.eu-west-1.amazonaws.com", "1.dkr.ecr.eu-west-2.amazonaws.com", "1.dkr.ecr.eu-west-1.amazonaws.com:8443",
		"1.dkr.ecr.eu-west-1.amazonaws.com.evil.test", "1.dkr.ecrx.eu-west-1.on.aws", "1.dkr", "1.dkr.", "dkr.ecr.x.on.aws",
		"1.dkr.ecr.a.b.on.aws", "1.dkr.ecr.on.aws", "1.dkrxecr.eu-west-1.on.aws",
	}
	for _, pattern := range same {
		images := `["` + pattern + `/team/*"]`
		s := load(t, file("f", "Fence", images, toB), file("s", "Share", images, "[{namespaces: [team-c]}]"))
		for i, host := range append(same, others...) {
			r := s.Rights(host+"/team/app", "team-c", "").Enforced
			if fenced := r.Fence != ""; fenced != (i < len(same)) {
				t.Errorf("Fence of %s: %s is fenced: %v; want %v", pattern, host, fenced, !fenced)
			}
			exact := strings.TrimSuffix(strings.ToLower(host), ":443") == strings.TrimSuffix(strings.ToLower(pattern), ":443")
			if shared := r.Share != ""; shared != exact {
				t.Errorf("Share of %s: %s is shared: %v; want %v", pattern, host, shared, exact)
			}
		}
	}
}

// many returns a Lend with n images for pods of its own, unless from is set.
func many(name string, n int, image, from string) strictyaml.File {
	images := make([]string, n)
	for i := range images {
		images[i] = fmt.Sprintf("%q", fmt.Sprintf(image, i))
	}
	return file(name, "Lend", "["+strings.Join(images, ",")+"]", from, lentBy)
}

// The comparison of Lends has a bound, whatever they have: it runs while the policies are locked.
func TestManyLends(t *testing.T) {
	wild := strings.Repeat("a*", 120)
	for _, tc := range []struct {
		what, image, want string
		files             int
		from              string
	}{
		{"too many images", "r.test/%[1]d", "at most 4096 in all", 17, "[{namespaces: [n%d]}]"},
		{"many for other pods", "r.test/" + wild + "%[1]d", "", 16, "[{namespaces: [n%d]}]"},
		{"many for the same pods", "r.test/%[1]d-%[2]s", "", 16, ""},
		{"wild ones for the same pods", "r.test/a*" + wild + "x%[1]d%[2]s", "use fewer", 16, ""},
	} {
		var all []strictyaml.File
		for i := range tc.files {
			from := toB
			if tc.from != "" {
				from = fmt.Sprintf(tc.from, i)
			}
			images := strings.ReplaceAll(tc.image, "%[2]s", fmt.Sprintf("f%dx", i))
			all = append(all, many(fmt.Sprintf("f%d", i), 256, images, from))
		}
		began := time.Now()
		_, err := imageaccess.Load(all)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: Load took %v", tc.what, took)
		}
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Load = %v; want %q", tc.what, err, tc.want)
		}
	}
}
