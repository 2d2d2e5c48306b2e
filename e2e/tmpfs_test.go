package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/pullgate/pullgate/internal/testkit"
)

// onTmpfs moves the state of a stopped pullgated onto a small file system, and returns what fills it up.
func (s *suite) onTmpfs() (fill func()) {
	s.Helper()
	state := filepath.Join(s.gate.Dir(), "state")
	aside := state + ".before"
	s.must(os.Rename(state, aside))
	s.must(os.Mkdir(state, 0o700))
	s.must(syscall.Mount("tmpfs", state, "tmpfs", 0, "size=1m,mode=0700"))
	s.Cleanup(func() {
		s.must(s.gate.Stop())
		s.must(syscall.Unmount(state, syscall.MNT_DETACH))
	})
	if out, err := exec.CommandContext(s.Context(), "cp", "-a", aside+"/.", state).CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	return func() {
		f := testkit.Value(os.Create(filepath.Join(state, "ballast")))(s)
		if _, err := f.Write(make([]byte, 2<<20)); err == nil {
			s.Fatal("the file system does not fill up")
		}
		s.must(f.Close())
	}
}

func (s *suite) damageStore(how string) {
	s.Helper()
	store := filepath.Join(s.gate.Dir(), "state", "records.db")
	if how == "removed" {
		s.must(os.Remove(store))
		return
	}
	data := testkit.Value(os.ReadFile(store))(s)
	for i := range data {
		if i >= 2*4096 { // the meta pages still point into the tree
			data[i] ^= 0x5a
		}
	}
	s.must(os.WriteFile(store, data, 0o600))
}
