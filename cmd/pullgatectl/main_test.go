package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/internal/testkit"
)

// now is the time of the program under test; the answers have times in the days before it.
const now = "2026-07-01T12:00:00Z"

func TestMain(m *testing.M) {
	testscript.Main(leakless{m}, map[string]func(){
		"pullgatectl": func() { os.Exit(run(os.Args[1:], consoleAtNow(), machineOfTest())) },
	})
}

// leakless fails if a test has left a goroutine behind.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// consoleAtNow returns the console of the process, with another clock.
func consoleAtNow() *cli.Console {
	c := cli.System()
	c.Now = func() time.Time {
		t, err := time.Parse(time.RFC3339, now)
		if err != nil {
			panic(err)
		}
		return t
	}
	return c
}

// machineOfTest returns a machine whose root is a folder.
func machineOfTest() machine {
	return machine{
		node: doctor.Node{
			Host: doctor.Host{Root: os.Getenv("NODE"), Command: systemctl}, Now: consoleAtNow().Now,
			Disk:        func(string) (disk.Stats, error) { return disk.Stats{Bytes: 2 << 30, Free: 1 << 30}, nil },
			ClockInStep: func() (bool, error) { return true, nil },
		},
		enabler: nodeenable.Enabler{Host: doctor.Host{Root: os.Getenv("NODE_ROOT")}, Settle: time.Millisecond},
	}
}

// systemctl answers as on a node with a kubelet.service that does not run.
func systemctl(_ context.Context, name string, args ...string) ([]byte, error) {
	if name != "systemctl" || len(args) < 4 {
		return nil, fmt.Errorf("unexpected command %s %v", name, args)
	}
	var out []string
	for _, unit := range args[3:] {
		state := "LoadState=not-found\nActiveState=inactive"
		if unit == "kubelet.service" {
			state = "LoadState=loaded\nActiveState=inactive\nFragmentPath=/etc/systemd/system/kubelet.service\nDropInPaths="
		}
		out = append(out, "Id="+unit+"\n"+state+"\n")
	}
	return []byte(strings.Join(out, "\n")), nil
}

// `UPDATE=1 go test` writes the output into the scripts, for review before a commit.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	store, err := filepath.Abs("../../internal/records/testdata/format-1.db")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(2 * time.Minute), // for a program that hangs
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			d, err := startDaemon(filepath.Join("testdata", "answers"))
			if err != nil {
				return err
			}
			env.Defer(func() {
				d.stop()
				_ = os.RemoveAll(d.dir)
			})
			env.Values["daemon"] = d
			env.Setenv("PULLGATECTL_ENDPOINT", "unix://"+d.socket)
			env.Setenv("SOCKET", d.socket)
			env.Setenv("STORE", store)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise hundreds of programs take a second more each
			return nil
		},
		Condition: func(name string) (bool, error) { return name == "root" && os.Geteuid() == 0, nil },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":   testkit.Status,
			"answer":   answer,
			"requests": requests,
			"hang-up":  hangUp,
			"mode":     mode,
			"clean":    clean,
			"terminal": terminal,
			"await":    await,
			"only":     only,
		},
	})
}

func daemonOf(ts *testscript.TestScript) *daemon {
	d, ok := ts.Value("daemon").(*daemon)
	if !ok {
		ts.Fatalf("no daemon was started")
	}
	return d
}

// answer makes the daemon answer the next call of a method with the first file, the one after with the next, and all
// others with the last.
func answer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: answer method file...")
	}
	texts := make([]string, 0, len(args)-1)
	for _, file := range args[1:] {
		texts = append(texts, ts.ReadFile(file))
	}
	ts.Check(daemonOf(ts).answer(args[0], texts...))
}

// requests writes the requests to the daemon since the last call into a file.
func requests(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: requests file")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(daemonOf(ts).asked()), 0o600))
}

// hangUp ends the daemon and leaves its socket.
func hangUp(ts *testscript.TestScript, _ bool, _ []string) {
	daemonOf(ts).stop()
}

// mode compares the mode of a file: mode 0600 file.
func mode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mode octal file")
	}
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[0] {
		ts.Fatalf("%s has mode %s; want %s", args[1], got, args[0])
	}
}

// clean checks that the output of the last program has no control characters.
func clean(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: clean")
	}
	for _, stream := range []string{"stdout", "stderr"} {
		for _, r := range ts.ReadFile(stream) {
			if r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || strings.ContainsRune("\u202e\u200b\ufeff\ufffd", r)) {
				ts.Fatalf("%q is on %s", r, stream)
			}
		}
	}
}

// await waits until the text that matches a pattern has the given number of bytes: await 100 out.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await bytes pattern")
	}
	want, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		files, err := filepath.Glob(ts.MkAbs(args[1]))
		ts.Check(err)
		for _, f := range files {
			if info, err := os.Stat(f); err == nil && info.Size() >= want {
				return
			}
		}
		if time.Now().After(end) {
			ts.Fatalf("%v do not get %d bytes", files, want)
		}
	}
}

// only checks that a folder contains these files and no other: only folder file...
func only(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: only folder file...")
	}
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, args[1:]) {
		ts.Fatalf("%s holds %q; want %q", args[0], got, args[1:])
	}
}
