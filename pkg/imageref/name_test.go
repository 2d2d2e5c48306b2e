package imageref_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const digest = "sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"

// A line of testdata/names.yaml.
type line struct {
	In         string `json:"in"`
	Repository string `json:"repository"`
	Sent       string `json:"sent"`
	Error      bool   `json:"error"`
}

func names(tb testing.TB) []line {
	tb.Helper()
	data := testkit.Value(os.ReadFile("testdata/names.yaml"))(tb)
	var lines []line
	testkit.Must(tb, yaml.UnmarshalStrict(data, &lines))
	if len(lines) != 11 {
		tb.Fatalf("testdata/names.yaml has %d lines; want 11, or this test runs too few of them", len(lines))
	}
	return lines
}

func TestConformance(t *testing.T) {
	for _, l := range names(t) {
		t.Run(l.In, func(t *testing.T) {
			n, err := imageref.Parse(l.In)
			sent, sentErr := imageref.KubeletName(l.In)
			if l.Error {
				if err == nil || sentErr == nil {
					t.Fatalf("Parse = %q, %v, KubeletName = %q, %v; want errors", n, err, sent, sentErr)
				}
				if !strings.Contains(err.Error(), l.In) || !strings.Contains(sentErr.Error(), l.In) {
					t.Errorf("errors %q, %q do not name %q", err, sentErr, l.In)
				}
				if (n != imageref.Name{}) || sent != "" {
					t.Errorf("Parse = %q, KubeletName = %q beside their errors; want nothing", n, sent)
				}
				return
			}
			if err != nil || n.Repository() != l.Repository {
				t.Errorf("Parse = repository %q, %v; want %q, nil", n.Repository(), err, l.Repository)
			}
			want := l.Sent
			if want == "unchanged" {
				want = l.In
			}
			if sentErr != nil || sent != want {
				t.Errorf("KubeletName = %q, %v; want %q, nil", sent, sentErr, want)
			}
			if r := imageref.New(l.In); r.String() != l.In || r.Name() != n || !r.Parsed() || r.Repository() != l.Repository {
				t.Errorf("New = %q, %q in %q; want the name as written, and as Parse has it", r, r.Name(), r.Repository())
			}
			if again, err := imageref.Parse(sent); err != nil || again != n {
				t.Errorf("Parse(KubeletName) = %q, %v; want %q, nil", again, err, n)
			}
		})
	}
}

func TestParseNormalises(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                        "docker.io/library/busybox:latest",
		"docker.io/busybox":              "docker.io/library/busybox:latest",
		"index.docker.io/busybox":        "docker.io/library/busybox:latest",
		"index.docker.io/library/b:1":    "docker.io/library/b:1",
		"localhost/app":                  "localhost/app:latest",
		"REPO.test/app":                  "REPO.test/app:latest",
		"repo.test:443/app:V1":           "repo.test:443/app:V1",
		"[::1]:5000/app":                 "[::1]:5000/app:latest",
		"repo.test/app@" + digest:        "repo.test/app@" + digest,
		"repo.test/app:1@" + digest:      "repo.test/app@" + digest,
		"repo.test/app:latest@" + digest: "repo.test/app@" + digest,
		digest[:12]:                      "docker.io/library/sha256:38a89",
	} {
		if n, err := imageref.Parse(in); err != nil || n.String() != want {
			t.Errorf("Parse(%q) = %q, %v; want %q, nil", in, n, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, in := range []string{
		"", " ", "busybox ", " busybox", ":1", "@" + digest, "busybox:", "busybox@", "busybox@sha256:38a8", "a//b", "/a",
		"a:1:2",
		"busybox@sha1:0123456789012345678901234567890123456789", "busybox\n", "büsybox", "repo.test/App:1",
		strings.TrimPrefix(digest, "sha256:"), // 64 hexadecimal digits are an image ID
		"repo.test/" + strings.Repeat("a", 256), strings.Repeat("a", 4096) + ".test/app",
	} {
		if n, err := imageref.Parse(in); err == nil || n != (imageref.Name{}) {
			t.Errorf("Parse(%q) = %q, %v; want an error", in, n, err)
		}
		if sent, err := imageref.KubeletName(in); len(in) > 4096 && (err == nil || sent != "" || len(err.Error()) > 200) {
			t.Errorf("KubeletName of %d bytes = %.80q, %.200v; want a short error", len(in), sent, err)
		}
		if r := imageref.New(in); r.String() != in || r.Parsed() || r.Repository() != "" || r.Empty() != (in == "") {
			t.Errorf("New(%q) = %q, parsed %v, repository %q; want the name as written and nothing else", in, r, r.Parsed(),
				r.Repository())
		}
	}
}

func TestNamesCompareByMeaning(t *testing.T) {
	parse := func(s string) imageref.Name {
		t.Helper()
		n := testkit.Value(imageref.Parse(s))(t)
		return n
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"busybox", "docker.io/library/busybox:latest", true},
		{"busybox", "busybox:1", false},
		{"busybox", "library/busybox", true},
		{"repo.test/app:1@" + digest, "repo.test/app:2@" + digest, true},
		{"repo.test/app:1@" + digest, "repo.test/app:1", false},
		{"repo.test/app", "repo.test/app2", false},
		{"repo.test/app", "Repo.test/app", false}, // containerd takes hosts as they are written
	} {
		if same := parse(c.a) == parse(c.b); same != c.same {
			t.Errorf("Parse(%q) == Parse(%q) is %v; want %v", c.a, c.b, same, c.same)
		}
	}
}

func TestIsImageID(t *testing.T) {
	for in, want := range map[string]bool{
		"sha256:7692":                  true,
		digest:                         true,
		"docker.io/library/sha256:769": true,
		"sha256":                       true, // sha256:latest is a prefix of no ID, and not the name of an image either
		"repo.test/sha256:7692":        false,
		"sha512:7692":                  false,
		"team/sha256:7692":             false,
		"busybox":                      false,
	} {
		if n, err := imageref.Parse(in); err != nil || n.IsImageID() != want {
			t.Errorf("Parse(%q).IsImageID() = %v, %v; want %v, nil", in, n.IsImageID(), err, want)
		}
	}
}

func TestZeroName(t *testing.T) {
	var n imageref.Name
	if n.String() != "" || n.Repository() != "" || n.IsImageID() {
		t.Errorf("zero Name = %q, repository %q, IsImageID %v; want none of these", n.String(), n.Repository(), n.IsImageID())
	}
}

func FuzzParse(f *testing.F) {
	for _, l := range names(f) {
		f.Add(l.In)
	}
	for _, s := range []string{
		"", "sha256:7692", "[::1]:5000/app", "index.docker.io/x",
		"a@sha512:" + strings.Repeat("0", 128), "docker.io/a/b/c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := imageref.Parse(s)
		sent, sentErr := imageref.KubeletName(s)
		if err != nil {
			if n != (imageref.Name{}) {
				t.Errorf("Parse(%q) = %q beside %v", s, n, err)
			}
			return
		}
		if again, err := imageref.Parse(n.String()); err != nil || again != n {
			t.Errorf("Parse(%q) = %q, Parse of that = %q, %v; want the same", s, n, again, err)
		}
		if !strings.HasPrefix(n.String(), n.Repository()) || n.Repository() == "" {
			t.Errorf("Parse(%q) = %q, which is not in repository %q", s, n, n.Repository())
		}
		if sentErr != nil || !strings.HasPrefix(sent, s) {
			t.Errorf("KubeletName(%q) = %q, %v; want what was written, and perhaps a tag", s, sent, sentErr)
		}
		if same, err := imageref.Parse(sent); err != nil || same != n {
			t.Errorf("Parse(%q) = %q, of the kubelet's %q it is %q, %v; want the same", s, n, sent, same, err)
		}
	})
}

func TestIsShort(t *testing.T) {
	for name, want := range map[string]bool{
		"pause": true, "pause:3.9": true, "team/app": true, "team/app@sha256:" + strings.Repeat("0", 64): true,
		"7692ac1:latest":          true,
		"docker.io/library/pause": false, "index.docker.io/pause": false, "localhost/pause": false,
		"127.0.0.1:5000/pause": false, "quay.test/pause:1": false,
		"sha256:7692": false, "7692ac1": false, strings.Repeat("0", 64): false, "UPPER": false, "": false,
	} {
		if got := imageref.New(name).IsShort(); got != want {
			t.Errorf("New(%q).IsShort() = %v; want %v", name, got, want)
		}
	}
}
