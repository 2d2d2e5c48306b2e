package imageaccess_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A tracked is what a keeper has made the access in force.
type tracked struct {
	path  string
	set   *imageaccess.Set
	ended string // of r.test/a and r.test/b
	none  bool   // nothing has ended
	err   error  // of the next
	calls int
}

func (k *tracked) keeper() *imageaccess.Keeper {
	return imageaccess.NewKeeper(k.path, func(s *imageaccess.Set, ended func(string) bool) error {
		k.set, k.ended, k.none = s, "", ended == nil
		k.calls++
		for _, r := range []string{"r.test/a", "r.test/b"} {
			if ended != nil && ended(r) {
				k.ended += r[len(r)-1:]
			}
		}
		return k.err
	})
}

func TestKeeper(t *testing.T) {
	k := &tracked{path: filepath.Join(t.TempDir(), "access.json")}
	a := file("a", "Share", `["r.test/a"]`, toB)
	b := file("b", "Lend", `["r.test/b*"]`, toB, lentBy)
	fence := file("f", "Fence", `["r.test/a"]`, toB)
	use := func(keeper *imageaccess.Keeper, want string, s *imageaccess.Set) {
		t.Helper()
		if err := keeper.Use(s); err != nil || k.set != s || k.ended != want || k.none != (want == "") {
			t.Errorf("Use = %v, ended %q; want nil, %q and the set in force", err, k.ended, want)
		}
	}
	both := load(t, a, b, fence)
	use(k.keeper(), "", both)
	use(k.keeper(), "", load(t, a, b)) // after a restart, without the Fence
	use(k.keeper(), "a", load(t, b))
	running := k.keeper()
	use(running, "", load(t, b))
	use(running, "", load(t, b))
	use(running, "b", load(t, a))
	use(running, "a", load(t, file("a", "Share", `["r.test/a"]`, "[{namespaces: [team-c]}]"))) // another from
	audit := file("a", "Share", `["r.test/a"]`, "[{namespaces: [team-c]}]")
	audit.Data = []byte(strings.Replace(string(audit.Data), "{name: a}",
		"{name: a, annotations: {policy.pullgate.dev/mode: Audit}}", 1))
	use(running, "a", load(t, audit))
	use(running, "", both)
	use(k.keeper(), "ab", nil)
	use(k.keeper(), "", nil)
}

func TestKeeperOfADamagedFile(t *testing.T) {
	for _, content := range []string{
		"", "{", "null", "[]", "{}", `{"version":2,"files":[]}`, `{"version":1,"files":[{}]}`,
		`{"version":1,"files":[{"name":"a","hash":"x","images":["*"]}]}`,
	} {
		k := &tracked{path: filepath.Join(t.TempDir(), "access.json")}
		testkit.Must(t, os.WriteFile(k.path, []byte(content), 0o600))
		if err := k.keeper().Use(nil); err != nil || k.ended != "ab" {
			t.Errorf("%q: Use = %v, ended %q; want nil, and everything has ended", content, err, k.ended)
		}
		if err := k.keeper().Use(nil); err != nil || !k.none {
			t.Errorf("%q: Use after that = %v, ended %q; want nothing to have ended", content, err, k.ended)
		}
	}
}

func TestKeeperWithoutADisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	testkit.Must(t, os.Mkdir(dir, 0o700))
	k := &tracked{path: filepath.Join(dir, "access.json")}
	keeper := k.keeper()
	one := load(t, file("a", "Share", `["r.test/a"]`, toB))
	testkit.Must(t, keeper.Use(one))
	testkit.Must(t, os.RemoveAll(dir))

	// A new right has no effect, the others and a new Fence have, and one that is gone ends.
	next := load(t, file("b", "Share", `["r.test/b"]`, toB), file("f", "Fence", `["r.test/c"]`, toB))
	if err := keeper.Use(next); err == nil || k.ended != "a" || k.set.MayGrant("r.test/b", "team-b") ||
		k.set.Rights("r.test/c", "team-c", "").Enforced.Fence != "f" {
		t.Errorf("Use without a disk = %v, ended %q; want an error, a ended, and only the Fence in force", err, k.ended)
	}
	if err := keeper.Use(next); err == nil || !k.none {
		t.Errorf("Use again without a disk = %v, ended %q; want an error, and that nothing is noted again", err, k.ended)
	}
	testkit.Must(t, os.Mkdir(dir, 0o700))
	if err := keeper.Use(next); err != nil || k.set != next || !k.none {
		t.Errorf("Use after that = %v, ended %q; want nil, and the set in force", err, k.ended)
	}
	// What could not be noted as ended is tried again, also by the next process.
	k.err = errors.New("the store is full")
	for _, keeper := range []*imageaccess.Keeper{keeper, keeper, k.keeper()} {
		if err := keeper.Use(one); !errors.Is(err, k.err) || k.ended != "b" {
			t.Errorf("Use with a full store = %v, ended %q; want the error and b", err, k.ended)
		}
	}
	k.err = nil
	if err := k.keeper().Use(one); err != nil || k.ended != "b" {
		t.Errorf("Use after that = %v, ended %q; want nil and b", err, k.ended)
	}
	// A folder in place of the file: nothing is known, and nothing is given.
	testkit.Must(t, os.Remove(k.path))
	testkit.Must(t, os.Mkdir(k.path, 0o700))
	if err := k.keeper().Use(one); err == nil || k.ended != "ab" || k.set.MayGrant("r.test/a", "team-b") {
		t.Errorf("Use with an unreadable file = %v, ended %q; want an error, everything ended and no right", err, k.ended)
	}
}

func TestUnusable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lend.json")
	s := load(t, file("l", "Lend", `["r.test/a/*", "docker.io/team/*"]`, toB, "credentials: {dockerConfigFile: "+path+"}"))
	const hub = `"https://index.docker.io/v1/":{"auth":"dTpw"}`
	for content, want := range map[string]string{
		"":                        "no such file or directory",
		"{":                       "malformed",
		`{}`:                      "has no entry with a user name and a password for the registry: r.test/a/*",
		`{"auths":{` + hub + `}}`: "for the registry: r.test/a/*",
		`{"auths":{"r.test":{"username":"u","password":"p"}}}`:             "for the registry: docker.io/team/*",
		`{"auths":{"r.test":{"auth":""},` + hub + `}}`:                     "for the registry: r.test/a/*",
		`{"auths":{"r.test":{"password":"p"},` + hub + `}}`:                "for the registry: r.test/a/*",
		`{"auths":{"r.test":{"username":"u"},` + hub + `}}`:                "for the registry: r.test/a/*",
		`{"auths":{"r.test":{"username":"u","password":"p"},` + hub + `}}`: "",
	} {
		_ = os.Remove(path)
		if content != "" {
			testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
		}
		got := errors.Join(new(imageaccess.Prober).Unusable(s, nil)...)
		if (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("%q: Unusable = %v; want %q", content, got, want)
		}
	}
}

// A name without registry, which runtimes may look for elsewhere, gets no credential; Docker Hub's is elsewhere.
func TestLend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lend.json")
	testkit.Must(t, os.WriteFile(path, []byte(`{"auths":{"https://index.docker.io/v1/":{"username":"u","password":"p"},`+
		`"registry.hub.docker.com":{"username":"h","password":"p"},`+
		`"r.test:5000":{"username":"","password":""},"r.test:5000/a":{"auth":"eDp5"}}}`), 0o600))
	s := load(t, file("l", "Lend", `["docker.io/team/*", "r.test:5000/*"]`, toB,
		"credentials: {dockerConfigFile: "+path+"}"))
	for name, want := range map[string]string{
		"docker.io/team/app":               "u https://registry-1.docker.io",
		"index.docker.io/team/app:1":       "u https://registry-1.docker.io",
		"registry.hub.docker.com/team/app": "h https://registry.hub.docker.com", // the host that a runtime asks
		"team/app":                         "",
		"r.test:5000/a/b":                  "x https://r.test:5000",
		"r.test:5000/b":                    "an error",
		"sha256:1":                         "",
		"":                                 "",
	} {
		by, login, err := s.Lend(imageref.New(name), "team-b", "")
		got := strings.TrimSpace(login.Username + " " + login.ServerAddress)
		if err != nil {
			got = "an error"
		}
		if got != want || (by != "") != (want != "" && err == nil) {
			t.Errorf("Lend(%s) = %s of %q, %v; want %s", name, got, by, err, want)
		}
		if by, _, err := s.Lend(imageref.New(name), "team-c", ""); by != "" || err != nil {
			t.Errorf("Lend(%s) for another namespace = %q, %v; want nothing", name, by, err)
		}
	}
}

// While the file cannot be read, all rights are noted as ended once, and not at each try.
func TestKeeperOfAnUnreadableFileNotesOnce(t *testing.T) {
	k := &tracked{path: filepath.Join(t.TempDir(), "access.json")}
	testkit.Must(t, os.Mkdir(k.path, 0o700))
	keeper := k.keeper()
	set := load(t, file("a", "Share", `["r.test/a"]`, toB))
	k.err = errors.New("the store is full")
	for i, want := range []int{1, 2, 2} { // it is noted by the second
		if err := keeper.Use(set); err == nil || k.calls != want {
			t.Errorf("try %d: Use = %v after %d calls; want an error and %d", i, err, k.calls, want)
		}
		k.err = nil
	}
	next := load(t, file("f", "Fence", `["r.test/b"]`, toB))
	if err := keeper.Use(next); err == nil || !k.none || k.set.Rights("r.test/b", "team-c", "").Enforced.Fence != "f" {
		t.Errorf("Use of a Fence = %v, nothing ended: %v; want an error, and the Fence in force", err, k.none)
	}
	testkit.Must(t, os.Remove(k.path))
	if err := keeper.Use(set); err != nil || k.set != set {
		t.Errorf("Use of a file that is readable again = %v; want nil, and the set in force", err)
	}
}

// A credential is read again only if its file has changed.
func TestProberReadsAFileOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lend.json")
	s := load(t, file("l", "Lend", `["r.test/*"]`, toB, "credentials: {dockerConfigFile: "+path+"}"))
	good := []byte(`{"auths":{"r.test":{"username":"u","password":"p"}}}`)
	bad := bytes.Repeat([]byte("{"), len(good))
	testkit.Must(t, os.WriteFile(path, good, 0o600))
	at := testkit.Value(os.Stat(path))(t).ModTime()
	var p imageaccess.Prober
	for i, change := range []func(){
		func() {},
		func() { testkit.Must(t, os.WriteFile(path, bad, 0o600)); testkit.Must(t, os.Chtimes(path, at, at)) },
	} {
		change()
		if got := p.Unusable(s, nil); len(got) != 0 {
			t.Errorf("%d: Unusable = %v; want none, because the file seems the same", i, got)
		}
	}
	for what, change := range map[string]func(){
		"changed": func() { testkit.Must(t, os.Chtimes(path, at, at.Add(time.Second))) },
		"replaced": func() {
			testkit.Must(t, os.WriteFile(path+"2", bad, 0o600))
			testkit.Must(t, os.Rename(path+"2", path))
		},
		"removed": func() { testkit.Must(t, os.Remove(path)) },
	} {
		testkit.Must(t, os.WriteFile(path, good, 0o600))
		testkit.Must(t, os.Chtimes(path, at, at))
		if got := p.Unusable(s, nil); what != "removed" && len(got) != 0 {
			t.Errorf("before it is %s: Unusable = %v; want none", what, got)
		}
		testkit.Must(t, os.WriteFile(path, bad, 0o600))
		change()
		if got := p.Unusable(s, nil); len(got) != 1 {
			t.Errorf("a file that is %s: Unusable = %v; want an error", what, got)
		}
	}
}
