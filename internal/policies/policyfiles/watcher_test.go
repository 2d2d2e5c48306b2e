package policyfiles_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

func TestPollReturnsChangesOnceTheyAreComplete(t *testing.T) {
	dir := folder(t, "a.yaml", note("a"))
	labels := filepath.Join(t.TempDir(), "namespaces.yaml")
	put(t, labels, "a: {}")
	var w policyfiles.Watcher
	same := func(when string) {
		t.Helper()
		if s, changed, err := w.Poll(); s != nil || changed || err != nil {
			t.Errorf("%s: Poll = %v, %v, %v; want no change", when, s, changed, err)
		}
	}
	same("before Load")
	if s, err := w.Load(policyfiles.Paths{Folder: dir, NamespaceLabels: labels}); err != nil || s.Len("ImagePolicy") != 1 {
		t.Fatalf("Load = %v, %v", s, err)
	}
	same("unchanged")
	changes := func(when string, want ...string) {
		t.Helper()
		same(when + ", seen once")
		s, changed, err := w.Poll()
		if got := notesOf(s); err != nil || !changed || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, %v; want %q", when, got, changed, err, want)
		}
		same(when + ", seen before")
	}
	put(t, dir+"/b.yaml", "imagePolicy:\n")
	same("a file that is being written")
	put(t, dir+"/b.yaml", note("b"))
	changes("a new file", "a", "b")
	put(t, dir+"/a.yaml", note("c"))
	same("a change")
	put(t, dir+"/a.yaml", note("a"))
	same("a change that is undone")
	put(t, dir+"/a.yaml", note("c"))
	changes("a change that is made again", "c", "b")
	must(t, os.Remove(dir+"/b.yaml"))
	changes("a removed file", "c")
	put(t, labels, "b: {}")
	changes("other labels", "c")
	put(t, dir+"/README", "")
	changes("an ignored file", "c")
}

func TestPollReturnsAnErrorOnce(t *testing.T) {
	dir := folder(t, "a.yaml", note("a"))
	var w policyfiles.Watcher
	_, err := w.Load(policyfiles.Paths{Folder: dir})
	must(t, err)
	poll := func(when, want string) {
		t.Helper()
		_, _, _ = w.Poll()
		s, changed, err := w.Poll()
		if !changed || (err == nil) != (want == "") || (s == nil) != (want != "") || err != nil &&
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, %v; want %q", when, s, changed, err, want)
		}
		if s, changed, err := w.Poll(); s != nil || changed || err != nil {
			t.Errorf("%s, again: %v, %v, %v; want no change", when, s, changed, err)
		}
	}
	put(t, dir+"/b.yaml", wrong)
	poll("an invalid file", "b.yaml: "+wrongAt)
	must(t, os.Chmod(dir, 0o777))
	poll("another error", "writable by others")
	must(t, os.Chmod(dir, 0o755), os.Remove(dir+"/b.yaml"))
	poll("valid again", "")
	must(t, os.Rename(dir, dir+"-moved"))
	poll("absent", "no such file")
	must(t, os.Rename(dir+"-moved", dir))
	poll("back", "")
}

func TestLoadOfAnInvalidFolderIsPolled(t *testing.T) {
	dir := folder(t, "a.yaml", wrong)
	var w policyfiles.Watcher
	if s, err := w.Load(policyfiles.Paths{Folder: dir}); s != nil || err == nil {
		t.Fatalf("Load = %v, %v; want an error", s, err)
	}
	if s, err := w.Load(policyfiles.Paths{Folder: dir}); s != nil || err == nil {
		t.Errorf("Load again = %v, %v; want the error again", s, err)
	}
	put(t, dir+"/a.yaml", note("a"))
	_, _, _ = w.Poll()
	if s, changed, err := w.Poll(); !changed || err != nil || s.Len("ImagePolicy") != 1 {
		t.Errorf("Poll = %v, %v, %v; want the valid file", s, changed, err)
	}
	if s, err := w.Load(policyfiles.Paths{}); s != nil || err != nil {
		t.Errorf("Load of no folder = %v, %v; want nil, nil", s, err)
	}
	put(t, dir+"/a.yaml", note("b"))
	for range 3 {
		if s, changed, err := w.Poll(); s != nil || changed || err != nil {
			t.Errorf("Poll of no folder = %v, %v, %v; want no change", s, changed, err)
		}
	}
}
