package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullgated": main})
}

// Shows: 000-23, 004-33
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(time.Minute), // a daemon that starts by mistake does not end
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":      testkit.Status,
			"expand":      testkit.Expand,
			"newer-store": newerStore,
			"await":       await,
			"listen":      listen,
		},
	})
}

// Without --config an absent file means the defaults, unless the file existed before.
func TestLoaderOfTheDefaultPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	load := loader(path, false)
	c, found, err := load()
	if err != nil || found || c.Enforcement() != "enforcing with policy NeverVerifyPreloadedImages" {
		t.Errorf("absent: %s, found: %v, %v; want the defaults, which enforce", c.Enforcement(), found, err)
	}
	var out bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetContext(t.Context())
	c.StateDir = t.TempDir()
	if err := check(cmd, path, func() (config.Config, bool, error) { return c, found, nil }); err != nil ||
		!strings.HasPrefix(out.String(), path+": not found: using defaults; enforcing with policy "+
			"NeverVerifyPreloadedImages\n") {
		t.Errorf("check = %v, prints %q; want a message that the file was not found", err, out.String())
	}
	if err := os.WriteFile(path, []byte("apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, found, err := load(); err != nil || !found {
		t.Errorf("present: found: %v, %v; want it found", found, err)
	}
	testkit.Must(t, os.Remove(path))
	if _, _, err := load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v; want ErrNotExist", err)
	}
	if _, _, err := loader(path, true)(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent and given: %v; want ErrNotExist", err)
	}
}

// listen serves a socket until the end of the script.
func listen(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("unix", ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
}

// await waits until a file exists.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await file")
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(ts.MkAbs(args[0]))
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s does not appear: %v", args[0], err)
		}
	}
}

// newerStore writes a store of a format that does not exist yet.
func newerStore(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: newer-store file")
	}
	db, err := bolt.Open(ts.MkAbs(args[0]), 0o600, nil)
	ts.Check(err)
	ts.Check(db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket([]byte("meta"))
		if err != nil {
			return err
		}
		return meta.Put([]byte("format"), []byte("9"))
	}))
	ts.Check(db.Close())
	ts.Check(os.Chmod(ts.MkAbs(args[0]), 0o600))
}
