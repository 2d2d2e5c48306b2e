package nodecreds_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

func (n *node) wantHeld(password string, want bool) {
	n.Helper()
	if got := n.creds.Holds(n.Context(), n.id(password)); got != want {
		n.Errorf("Holds(the ID of %q) = %v; want %v", password, got, want)
	}
}

func TestReportsSurviveARestart(t *testing.T) {
	dir, key := t.TempDir(), credential.NewKey()
	path, file := filepath.Join(dir, "saved.json"), filepath.Join(dir, "config.json")
	put(t, file, config("repo.test", canary))
	inNodeWith(t, path, key, []string{file}, func(n *node) {
		n.add([]string{"*.test/team"}, n.id("a"), time.Now().Add(time.Hour))
		n.add([]string{"repo.test"}, n.id("short"), time.Now().Add(time.Minute))
		testkit.Must(n, n.creds.Save())
	})
	data := testkit.Value(os.ReadFile(path))(t)
	if info := testkit.Value(os.Stat(path))(t); info.Mode() != 0o600 || bytes.Contains(data, []byte(canary)) {
		t.Errorf("file %v: %s; want mode 0600, and IDs alone", info.Mode(), data)
	}
	put(t, file, config("repo.test", "next"))
	inNodeWith(t, path, key, []string{file}, func(n *node) {
		time.Sleep(2 * time.Minute)
		n.want("x.test/team/app", "a", true)
		n.want("x.test/other", "a", false)
		n.want("repo.test/app", "short", false)
		n.want("repo.test/app", canary, false)
		// The kubelet may still have what the node has offered.
		for _, password := range []string{"a", "short", canary, "next"} {
			n.wantHeld(password, true)
		}
		n.wantHeld("other", false)
		time.Sleep(time.Hour)
		n.want("x.test/team/app", "a", false)
	})
}

// A kubelet can read a file before the next reading here.
func TestHoldsReadsTheFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	inNode(t, []string{path}, func(n *node) {
		n.wantHeld("a", false)
		put(t, path, config("repo.test", "a"))
		n.wantHeld("a", true)
		testkit.Must(n, os.Remove(path))
		n.later()
		n.want("repo.test/app", "a", false)
		n.wantHeld("a", true)
		if n.creds.Holds(n.Context(), "") {
			t.Error("the node holds an anonymous credential")
		}
	})
}

func TestDamagedFileOfReports(t *testing.T) {
	good, key := filepath.Join(t.TempDir(), "saved.json"), credential.NewKey()
	inNodeWith(t, good, key, nil, func(n *node) {
		n.add([]string{"repo.test"}, n.id("a"), time.Now().Add(time.Hour))
		n.creds.Reserve(true)
		testkit.Must(n, n.creds.Save())
	})
	data := testkit.Value(os.ReadFile(good))(t)
	if !nodecreds.Reserved(good) || nodecreds.Reserved(good+".absent") {
		t.Error("Reserved is wrong for a file with the setting, or for an absent one")
	}
	flipped := bytes.Clone(data)
	flipped[len(flipped)/2] ^= 1
	for name, content := range map[string][]byte{
		"empty": {}, "null": []byte("null"), "cut off": data[:len(data)-1], "flipped": flipped,
		"no checksum": bytes.SplitN(data, []byte("\n"), 2)[1], "another key": data, "newer": []byte(sealed(`{"version":2}`)),
		"no object": []byte(sealed("[]")), "zeros": make([]byte, len(data)),
	} {
		t.Run(name, func(t *testing.T) {
			path, key := filepath.Join(t.TempDir(), "saved.json"), key
			put(t, path, string(content))
			if name == "another key" {
				key = credential.NewKey()
			} else if !nodecreds.Reserved(path) {
				t.Error("Reserved = false; want true, because it is not known")
			}
			inNodeWith(t, path, key, nil, func(n *node) {
				n.logged("Failed to read the node credentials of earlier runs", 1)
				n.want("repo.test/app", "a", false)
				n.wantHeld("any", true)
				n.add([]string{"repo.test"}, n.id("b"), time.Now().Add(time.Hour))
				n.want("repo.test/app", "b", true)
				testkit.Must(n, n.creds.Save())
				n.later()
			})
			if aside := testkit.Value(os.ReadFile(path + ".damaged"))(t); !bytes.Equal(aside, content) {
				t.Errorf("the file that is set aside has %s; want it as it was", aside)
			}
			if nodecreds.Reserved(path) {
				t.Error("Reserved = true; want false, as it is set")
			}
			// What was reported meanwhile is known, and that something is missing.
			inNodeWith(t, path, key, nil, func(n *node) {
				n.logged("Failed to read the node credentials of earlier runs", 1)
				n.want("repo.test/app", "b", true)
				n.wantHeld("any", true)
				n.creds.Reserve(true)
				if !nodecreds.Reserved(path) {
					t.Error("Reserve has not written the file")
				}
			})
			testkit.Must(t, os.Remove(path))
			inNodeWith(t, path, key, nil, func(n *node) { n.wantHeld("any", false) })
		})
	}
}

func sealed(content string) string { return nodecreds.SumOf([]byte(content)) + "\n" + content }

func TestReportsOnAFullDisk(t *testing.T) {
	dir, key := filepath.Join(t.TempDir(), "state"), credential.NewKey()
	path := filepath.Join(dir, "saved.json")
	inNodeWith(t, path, key, nil, func(n *node) {
		n.creds.Reserve(true)
		n.add([]string{"repo.test"}, n.id("a"), time.Now().Add(time.Hour))
		if err := n.creds.Save(); err == nil {
			t.Error("Save = nil without a directory; want an error")
		}
		n.want("repo.test/app", "a", true)
		n.later()
		n.later()
		n.logged("Failed to save the node credentials", 1)
		testkit.Must(n, os.Mkdir(dir, 0o700))
		n.later()
		if !nodecreds.Reserved(path) {
			t.Error("the file does not have what could not be saved")
		}
		before := testkit.Value(os.Stat(path))(n)
		n.later()
		if after := testkit.Value(os.Stat(path))(n); !os.SameFile(before, after) {
			t.Error("the file is written although nothing has changed")
		}
	})
	left := testkit.Value(fs.Glob(os.DirFS(dir), ".*"))(t)
	inNodeWith(t, path, key, nil, func(n *node) { n.want("repo.test/app", "a", true) })
	if len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// A pod can make a kubelet run a plugin for many registries. The token that it has in its cache must stay known.
func TestReportedCredentialsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "saved.json")
	key := credential.NewKey()
	inNodeWith(t, path, key, nil, func(n *node) {
		n.add([]string{"repo.test"}, n.id("token"), time.Now().Add(time.Minute))
		for i := range 1<<14 - 1 {
			n.add([]string{"other.test"}, n.id(fmt.Sprint(i)), time.Now().Add(time.Hour))
		}
		if news, err := n.creds.Add([]string{"repo.test"}, n.id("more"), time.Now().Add(time.Hour)); news || err == nil {
			t.Errorf("Add = %v, %v; want an error", news, err)
		}
		n.add([]string{"repo.test"}, n.id("token"), time.Now().Add(time.Minute))
		n.wantHeld("token", true)
		n.wantHeld("more", false)
		testkit.Must(n, n.creds.Save())
	})
	inNodeWith(t, path, key, nil, func(n *node) {
		n.wantHeld("token", true)
		time.Sleep(time.Minute)
		n.wantHeld("token", true) // there is room
		n.add([]string{"repo.test"}, n.id("more"), time.Now().Add(time.Hour))
		n.wantHeld("token", false)
		n.wantHeld("more", true)
		n.wantHeld("0", true)
	})
}

func TestReportWithoutAPatternIsHeld(t *testing.T) {
	inNode(t, nil, func(n *node) {
		n.add([]string{"%zz"}, n.id("a"), time.Now().Add(time.Hour))
		n.wantHeld("a", true)
	})
}

func TestCredentialOfAFileIsForgotten(t *testing.T) {
	dir, key := t.TempDir(), credential.NewKey()
	path, file := filepath.Join(dir, "saved.json"), filepath.Join(dir, "config.json")
	put(t, file, config("repo.test", "a"))
	inNodeWith(t, path, key, []string{file}, func(n *node) {
		time.Sleep(10 * time.Hour)
		testkit.Must(n, os.Remove(file))
		n.later()
	})
	inNodeWith(t, path, key, []string{file}, func(n *node) { // its clock begins anew
		time.Sleep(11 * time.Hour)
		n.wantHeld("a", true)
		time.Sleep(2 * time.Hour)
		n.later()
		n.wantHeld("a", false)
		testkit.Must(n, n.creds.Save())
	})
	if strings.Contains(string(testkit.Value(os.ReadFile(path))(t)), `"until"`) {
		t.Error("the credential is still on disk")
	}
}

// A kubelet may be able to read what cannot be read here.
func TestUnreadableFileHoldsEverything(t *testing.T) {
	for _, content := range []string{"", "{", strings.Repeat(" ", 2<<20)} {
		path := filepath.Join(t.TempDir(), "config.json")
		put(t, path, content)
		inNode(t, []string{path}, func(n *node) {
			n.wantHeld("any", true)
			n.want(app, "any", false)
			put(t, path, "{}")
			n.later()
			n.wantHeld("any", false)
			testkit.Must(n, os.Remove(path))
			n.wantHeld("any", false)
		})
	}
}

func TestHoldsDoesNotWaitForAHungDisk(t *testing.T) {
	key := credential.NewKey()
	creds := nodecreds.New(t.Context(), filepath.Join(t.TempDir(), "saved.json"), nil, key)
	release := creds.Stall()
	before := runtime.NumGoroutine()
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if !creds.Holds(t.Context(), "any") {
				t.Error("Holds = false without a reading; want true")
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Holds took %s; want about 2 s", took)
	}
	if more := runtime.NumGoroutine() - before; more > 2 {
		t.Errorf("%d goroutines are left; want one that reads", more)
	}
	release()
	if creds.Holds(t.Context(), "any") {
		t.Error("Holds = true after a reading; want false")
	}
}
