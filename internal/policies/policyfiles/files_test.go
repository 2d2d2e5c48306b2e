package policyfiles_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// note returns the file of a backend with a text.
func note(text string) string { return "imagePolicy:\n  kubeConfigFile: /" + text + "\n" }

const (
	wrong   = "imagePolicy: {kubeConfigFile: x, allowTTL: -2}\n"
	wrongAt = `imagePolicy.kubeConfigFile: Invalid value: "x": must be an absolute path, as in ` +
		"/etc/pullgate/scanner.kubeconfig (line 1)"
)

// notesOf returns the texts of the backends of a set.
func notesOf(s *policyfiles.Set) (all []string) {
	for _, b := range policyfiles.BackendsOf(s) {
		all = append(all, b.Kubeconfig[1:])
	}
	return all
}

var must = testkit.Must

// folder returns a policy folder with files, given by name and content.
func folder(tb testing.TB, pairs ...string) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "policies")
	must(tb, os.Mkdir(dir, 0o755))
	for i := 0; i < len(pairs); i += 2 {
		put(tb, filepath.Join(dir, pairs[i]), pairs[i+1])
	}
	return dir
}

func put(tb testing.TB, path, content string) {
	tb.Helper()
	must(tb, os.WriteFile(path, []byte(content), 0o644))
}

func read(dir string) (*policyfiles.Set, error) {
	return policyfiles.Read(policyfiles.Paths{Folder: dir})
}

func TestReadReadsAllKinds(t *testing.T) {
	const rest = "metadata: {name: NAME}\nspec: {images: [{glob: a}], authorities: [{static: {action: pass}}]}\n"
	policy := func(name, header string) string { return header + strings.Replace(rest, "NAME", name, 1) }
	dir := folder(t, "b.yaml", note("b"), "a.yml", "# a comment\n---\n"+note("a"),
		"keyed.yaml", "match: {}\n"+note("keyed"), "key.json", `{"imagePolicy": {"kubeConfigFile": "/json"}}`,
		"v1beta1.yaml", policy("b", "apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\n"),
		"v1alpha1.yaml", policy("a", "# kind: x\nkind: ClusterImagePolicy\napiVersion: policy.sigstore.dev/v1alpha1\n"),
		"quoted.yaml", policy("c", "kind:   'ClusterImagePolicy' # x\r\napiVersion: \"policy.sigstore.dev/v1beta1\"\r\n"),
		"c.json", `{"kind": "PodRestriction", "apiVersion": "policy/v1alpha1", "metadata": {"name": "c"}}`,
		"flow.yaml", "{apiVersion: policy.pullgate.dev/v1alpha1, kind: PodRestriction, metadata: {name: flow}}",
		".hidden.yaml", "not a policy", "README.md", "", "a.yaml~", "", "a.yaml.bak", "", "noext", "")
	must(t, os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o755), os.Mkdir(filepath.Join(dir, ".git"), 0o755))
	s, err := read(dir)
	must(t, err)
	if got := notesOf(s); !slices.Equal(got, []string{"a", "b", "json", "keyed"}) {
		t.Errorf("backends %q; want those of all spellings by name", got)
	}
	for kind, want := range map[string]int{
		"ImagePolicy": 4, "ClusterImagePolicy": 3, "PodRestriction": 2, "ClusterPolicy": 0, "Other": 0,
	} {
		if got := s.Len(kind); got != want {
			t.Errorf("%d policies of kind %s; want %d", got, kind, want)
		}
	}
	if want := []string{"README.md", "a.yaml.bak", "a.yaml~", "folder.yaml", "noext"}; !slices.Equal(s.Ignored, want) {
		t.Errorf("ignored %q; want %q", s.Ignored, want)
	}
}

func TestReadOfNoFolderAndOfAnEmptyOne(t *testing.T) {
	s, err := policyfiles.Read(policyfiles.Paths{NamespaceLabels: "/absent"})
	if s != nil || err != nil || s.Len("ImagePolicy") != 0 || notesOf(s) != nil {
		t.Errorf("no folder: %v, %v; want nil, nil", s, err)
	}
	s, err = read(folder(t))
	if err != nil || s.Hash == "" || s.Len("ImagePolicy") != 0 || notesOf(s) != nil {
		t.Errorf("empty folder: %+v, %v; want no policy and no error", s, err)
	}
}

func TestReadReportsAllErrors(t *testing.T) {
	dir := folder(t, "a.yaml", wrong, "b.yaml", note("valid"), "c.yaml", "", "d.yaml", "kind: PodRestrictionn\n",
		"e.yaml", "kind: Zebra\n", "f.yaml", "apiVersion: policy/v2\nkind: PodRestriction\n", "g.yaml", "kind: [\n",
		"h.yaml", "kind: PodRestriction\napiVersion: policy/v1alpha1\nmetadata: {name: h}\nspec: {a: {}, b: {}}\n",
		"i.yaml", "imagePolci: {}\n", "j.yaml", "kind: ImagePolicy\nimagePolicy: {}\n",
		"big.yaml", note("x")+strings.Repeat("#", 1<<20))
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644),
		os.Symlink("absent.yaml", filepath.Join(dir, "link.yaml")),
		os.Symlink("/etc/hostname", filepath.Join(dir, "out.yaml")))
	s, err := read(dir)
	if s != nil || err == nil {
		t.Fatalf("Read = %v, %v; want an error and nothing else", s, err)
	}
	compare(t, "testdata/folder-errors.golden", strings.ReplaceAll(err.Error(), dir, "DIR")+"\n")
}

func TestReadRefusesFolders(t *testing.T) {
	dir := folder(t, "a.yaml", note("a"))
	refused := func(name, path, want string) {
		t.Helper()
		if s, err := read(path); s != nil || err == nil || err.Error() != path+": "+want && err.Error() != want {
			t.Errorf("%s: %v, %v; want %s", name, s, err, want)
		}
	}
	refused("absent", dir+"/none", "open "+dir+"/none: no such file or directory")
	refused("a file", dir+"/a.yaml", "open "+dir+"/a.yaml: not a directory")
	must(t, os.Chmod(dir, 0o775))
	refused("writable by its group", dir, "mode 0775: writable by others than the owner; run chmod go-w")
	must(t, os.Chmod(dir, 0o757))
	refused("writable by all", dir, "mode 0757: writable by others than the owner; run chmod go-w")
	must(t, os.Chmod(dir, 0o755), os.Chmod(dir+"/a.yaml", 0o646))
	refused("a file is writable by all", dir, dir+"/a.yaml: mode 0646: writable by others than the owner; run chmod go-w")
	must(t, os.Chmod(dir+"/a.yaml", 0o644))
	if os.Geteuid() != 0 {
		t.Skip("another owner needs root")
	}
	must(t, os.Chown(dir+"/a.yaml", 1000, 0))
	refused("a file of another user", dir, dir+"/a.yaml: owned by user 1000; must be owned by root")
	must(t, os.Chown(dir, 1000, 0))
	refused("of another user", dir, "owned by user 1000; must be owned by root")
}

func TestReadBoundsFilesAndBytes(t *testing.T) {
	if testkit.Raced {
		t.Skip("make race runs it without the detector")
	}
	dir := folder(t)
	for i := range 1000 {
		put(t, fmt.Sprintf("%s/%04d.yaml", dir, i), note("x"))
	}
	put(t, dir+"/README", "not counted")
	if s, err := read(dir); err != nil || s.Len("ImagePolicy") != 1000 {
		t.Errorf("1,000 files: %v; want all of them", err)
	}
	put(t, dir+"/one.yaml", note("x"))
	if s, err := read(dir); s != nil || err == nil || err.Error() != dir+": 1001 policy files; at most 1000 are read" {
		t.Errorf("1,001 files: %v, %v", s, err)
	}
	dir = folder(t)
	full := note(strings.Repeat("x", 1<<20-len(note(""))))
	for i := range 16 {
		put(t, fmt.Sprintf("%s/%d.yaml", dir, i), full)
	}
	if s, err := read(dir); err != nil || s.Len("ImagePolicy") != 16 {
		t.Errorf("16 files of 1 MiB: %v; want all of them", err)
	}
	put(t, dir+"/one.yaml", note("x"))
	if s, err := read(dir); s != nil || err == nil || err.Error() != dir+": policy files have more than 16 MiB together" {
		t.Errorf("more than 16 MiB: %v, %v", s, err)
	}
}

// configMap writes a version of a folder as a kubelet writes a ConfigMap volume, and switches to it.
func configMap(t *testing.T, dir, version string, pairs ...string) {
	t.Helper()
	data := filepath.Join(dir, "..version-"+version)
	must(t, os.Mkdir(data, 0o755))
	for i := 0; i < len(pairs); i += 2 {
		put(t, filepath.Join(data, pairs[i]), pairs[i+1])
		if err := os.Symlink("..data/"+pairs[i], filepath.Join(dir, pairs[i])); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	must(t, os.Symlink(filepath.Base(data), dir+"/..data_tmp"), os.Rename(dir+"/..data_tmp", dir+"/..data"))
}

func TestReadFollowsLinksInsideTheFolder(t *testing.T) {
	dir := folder(t)
	configMap(t, dir, "1", "a.yaml", note("a1"), "b.yaml", note("b1"))
	first, err := read(dir)
	if got := notesOf(first); err != nil || !slices.Equal(got, []string{"a1", "b1"}) || len(first.Ignored) > 0 {
		t.Fatalf("notes %q, ignored %q, %v; want those of the version", got, first.Ignored, err)
	}
	configMap(t, dir, "2", "a.yaml", note("a2"), "b.yaml", note("b1"))
	second, err := read(dir)
	if got := notesOf(second); err != nil || !slices.Equal(got, []string{"a2", "b1"}) || second.Hash == first.Hash {
		t.Errorf("notes %q, %v; want those of the next version, with another hash", got, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	if s, err := read(link); err != nil || s.Hash != second.Hash {
		t.Errorf("through a link to the folder: %v; want the same", err)
	}
}

// A version is read as a whole, also while versions are replaced.
func TestReadNeverMixesVersions(t *testing.T) {
	dir := folder(t)
	configMap(t, dir, "0", "a.yaml", note("0"), "b.yaml", note("0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			v := fmt.Sprint(i + 1)
			configMap(t, dir, v, "a.yaml", note(v), "b.yaml", note(v))
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		s, err := read(dir)
		if got := notesOf(s); err == nil && got[0] != got[1] {
			t.Fatalf("notes %q; want one version", got)
		} else if err != nil && !strings.Contains(err.Error(), "..data was replaced") {
			t.Fatal(err)
		}
	}
}

func TestHashIdentifiesNamesAndContents(t *testing.T) {
	hash := func(pairs ...string) string {
		s, err := read(folder(t, pairs...))
		must(t, err)
		return s.Hash
	}
	same := hash("a.yaml", note("a"), "b.yaml", note("b"))
	if again := hash("b.yaml", note("b"), "a.yaml", note("a"), "README", "ignored"); again != same || len(same) != 64 {
		t.Errorf("hash %s of the same files in another folder; want %s", again, same)
	}
	for name, other := range map[string]string{
		"content": hash("a.yaml", note("a"), "b.yaml", note("c")), "name": hash("a.yaml", note("a"), "c.yaml", note("b")),
		"one less": hash("a.yaml", note("a")), "none": hash(),
	} {
		if other == same {
			t.Errorf("another %s has the same hash", name)
		}
	}
}

func TestReadNamespaceLabels(t *testing.T) {
	dir := folder(t, "a.yaml", note("a"))
	path := filepath.Join(t.TempDir(), "namespaces.yaml")
	load := func(text string) (*policyfiles.Set, error) {
		put(t, path, text)
		return policyfiles.Read(policyfiles.Paths{Folder: dir, NamespaceLabels: path})
	}
	s, err := load("team-a: {tier: dev, kubernetes.io/metadata.name: team-a}\nteam-b:\nteam-c: {'n': '1'}\n")
	want := map[string]map[string]string{
		"team-a": {"tier": "dev", "kubernetes.io/metadata.name": "team-a"},
		"team-b": {"kubernetes.io/metadata.name": "team-b"}, "team-c": {"n": "1", "kubernetes.io/metadata.name": "team-c"},
	}
	if err != nil || !cmp.Equal(s.NamespaceLabels, want) {
		t.Errorf("labels %v, %v; want %v", s, err, want)
	}
	if s, err := load(""); err != nil || len(s.NamespaceLabels) != 0 {
		t.Errorf("an empty file: %v, %v; want no labels", s, err)
	}
	put(t, dir+"/wrong.yaml", wrong)
	_, err = load("Team: {tier: dev}\nb: {'a b': 'c d', num: 1, kubernetes.io/metadata.name: c}\n")
	for _, want := range []string{
		dir + "/wrong.yaml: " + wrongAt, path + `: [b][num]: Invalid type: number`,
		path + `: [Team]: Invalid value: "Team"`, path + `: [b][a b]: Invalid value: "a b"`,
		path + `: [b][a b]: Invalid value: "c d"`, path +
			`: [b][kubernetes.io/metadata.name]: Invalid value: "c": must be the name of the namespace`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant it to have %s", err, want)
		}
	}
	must(t, os.Remove(dir+"/wrong.yaml"))
	for _, text := range []string{"- a", "a: {b: c}\na: {}", "a: [b]", "a: b"} {
		if _, err := load(text); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: %v; want an error with the path", text, err)
		}
	}
	must(t, os.Chmod(path, 0o666))
	if _, err := load("a: {}"); err == nil || !strings.Contains(err.Error(), path+": mode 0666: writable by others") {
		t.Errorf("writable by all: %v", err)
	}
	must(t, os.Remove(path))
	if _, err := policyfiles.Read(policyfiles.Paths{Folder: dir, NamespaceLabels: path}); err == nil ||
		strings.Count(err.Error(), path) != 1 {
		t.Errorf("absent: %v; want an error with the path once", err)
	}
	must(t, syscall.Mkfifo(path, 0o644))
	if _, err := policyfiles.Read(policyfiles.Paths{Folder: dir, NamespaceLabels: path}); err == nil ||
		err.Error() != path+": not a regular file" {
		t.Errorf("a pipe: %v", err)
	}
}

// A checkout of policies can belong to any user, and be writable by its group.
func TestAnyOwner(t *testing.T) {
	dir := t.TempDir()
	path, labels := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "labels")
	must(t, os.WriteFile(path, []byte(note("a")), 0o600), os.WriteFile(labels, []byte("team: {a: b}"), 0o600))
	for _, p := range []string{dir, path, labels} {
		must(t, os.Chmod(p, 0o777))
	}
	set, err := policyfiles.Read(policyfiles.Paths{Folder: dir, NamespaceLabels: labels, AnyOwner: true})
	if err != nil || set.Len("ImagePolicy") != 1 || set.NamespaceLabels["team"]["a"] != "b" {
		t.Errorf("Read = %v, %v; want a policy and labels", set, err)
	}
	if _, err := policyfiles.Read(policyfiles.Paths{Folder: dir, NamespaceLabels: labels}); err == nil {
		t.Error("Read without AnyOwner = nil; want errors")
	}
}

// volume makes a folder as a kubelet makes a volume of a ConfigMap: only the folder itself is writable for all.
func volume(t *testing.T, mode os.FileMode, pairs ...string) (dir, data string) {
	t.Helper()
	dir = folder(t)
	configMap(t, dir, "1", pairs...)
	must(t, os.Chmod(dir, mode))
	return dir, dir + "/..version-1"
}

const writable = ": writable by others than the owner; run chmod go-w"

func TestVolume(t *testing.T) {
	for _, tc := range []struct {
		name   string
		mode   os.FileMode
		change func(dir, data string) error
		want   string // of the error with Paths.Volume
	}{
		{"a ConfigMap", 0o777, func(string, string) error { return nil }, ""},
		{"with a sticky bit", 0o777 | os.ModeSticky, func(string, string) error { return nil }, ""},
		{"with fsGroup", 0o777 | os.ModeSetgid, func(_, d string) error { return os.Chmod(d, 0o755|os.ModeSetgid) }, ""},
		{"writable data", 0o777, func(_, data string) error { return os.Chmod(data, 0o775) }, "mode 0775" + writable},
		{"a writable file", 0o777, func(_, d string) error { return os.Chmod(d+"/a.yaml", 0o666) }, "mode 0666" + writable},
		{"not a volume", 0o777, func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/..data"), os.Remove(dir+"/a.yaml"),
				os.WriteFile(dir+"/a.yaml", []byte(note("a")), 0o644))
		}, "mode 0777" + writable},
	} {
		dir, data := volume(t, tc.mode, "a.yaml", note("a"))
		must(t, tc.change(dir, data))
		set, err := policyfiles.Read(policyfiles.Paths{Folder: dir, Volume: true})
		if tc.want == "" && (err != nil || !slices.Equal(notesOf(set), []string{"a"}) || len(set.Ignored) > 0) ||
			tc.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tc.want)) {
			t.Errorf("%s: %v; want %q", tc.name, err, tc.want)
		}
		if _, err := read(dir); err == nil || !strings.Contains(err.Error(), "mode 0777: writable by others") {
			t.Errorf("%s, without Volume: %v; want an error", tc.name, err)
		}
	}
	dir, data := volume(t, 0o777, "a.yaml", note("a"))
	if os.Geteuid() != 0 {
		t.Skip("another owner needs root")
	}
	for _, path := range []string{dir, data, data + "/a.yaml"} {
		must(t, os.Chown(path, 1000, 0))
		if _, err := policyfiles.Read(policyfiles.Paths{Folder: dir, Volume: true}); err == nil ||
			!strings.Contains(err.Error(), "owned by user 1000") {
			t.Errorf("%s of another user: %v; want an error", path, err)
		}
		must(t, os.Chown(path, 0, 0))
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
