package main

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	bolt "go.etcd.io/bbolt"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullgated": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(time.Minute), // a daemon that starts by mistake runs for ever
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":      status,
			"expand":      expand,
			"newer-store": newerStore,
			"await":       await,
		},
	})
}

// status runs a program and compares its exit code: status 2 pullgated --nonsense.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status code program [argument...]")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		coded, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v: %v", args[1:], err)
		}
		got = strconv.Itoa(coded.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("%v exits with %s; want %s", args[1:], got, args[0])
	}
}

// expand puts the values of variables into files.
func expand(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// await waits until a file is there.
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

// newerStore writes a store of a format that nobody knows yet.
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
