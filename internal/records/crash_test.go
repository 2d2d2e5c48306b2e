//go:build crashpoint

package records_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// The environment variables of the child of a crash test.
const (
	childPath = "PULLGATE_TEST_RECORDS"
	childKey  = "PULLGATE_TEST_KEY_EXISTS"
)

// TestChild is the process that crashes. It prints what it is about to do and what was acknowledged.
func TestChild(t *testing.T) {
	path := os.Getenv(childPath)
	if path == "" {
		t.Skip("run by the crash tests")
	}
	s, report, err := records.Open(path, records.Options{Now: noon(), KeyExists: os.Getenv(childKey) != ""})
	testkit.Must(t, err)
	fmt.Println("opened")
	if report.Distrust == nil {
		for round := range rounds {
			for _, scenario := range scenarios() {
				var intent records.Intent
				for _, step := range scenario.steps {
					fmt.Printf("try %s-%d\n", scenario.name, round)
					testkit.Must(t, step(s, scenarioPair(scenario.name, round), &intent))
					fmt.Printf("ack %s-%d\n", scenario.name, round)
				}
			}
		}
	}
	closeStore(t, s)
}

const rounds = 3

// crash runs the child until it crashes at a point, and returns its output and whether it crashed.
func crash(t *testing.T, path, point string, keyExists bool) (said string, died bool) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.count=1")
	child.Env = append(os.Environ(), childPath+"="+path, crashpoint.Env+"="+point)
	if keyExists {
		child.Env = append(child.Env, childKey+"=1")
	}
	out, err := child.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, ok := exit.Sys().(syscall.WaitStatus)
		died = ok && status.Signaled() && status.Signal() == syscall.SIGKILL
	}
	if err != nil && !died {
		t.Fatalf("child at %s: %v\n%s", point, err, out)
	}
	return string(out), died
}

func ownPoints() (own []string) {
	for _, point := range crashpoint.All() {
		if strings.HasPrefix(point, "records.") {
			own = append(own, point)
		}
	}
	return own
}

func ofOpen(point string) bool {
	return slices.Contains([]string{crashpoint.StoreTemporary, crashpoint.StoreRenamed, crashpoint.SetAside}, point)
}

// Shows: 001-19, 001-28
func TestCrashAtAnyWriteLosesNothingAcknowledgedAndProvesNothing(t *testing.T) {
	for _, point := range ownPoints() {
		if ofOpen(point) {
			continue
		}
		for nth := range 6 {
			at := fmt.Sprintf("%s#%d", point, nth+1)
			t.Run(at, func(t *testing.T) {
				path := newPath(t)
				out, died := crash(t, path, at, false)
				if !died && nth < rounds {
					t.Fatalf("the child did not pass the point; it said:\n%s", out)
				}
				s, report := open(t, path, records.Options{KeyExists: true})
				if report.SetAside != "" || report.Created || report.Distrust != nil {
					t.Fatalf("Report = %+v; want the store as it was", report)
				}
				for round := range rounds {
					for _, scenario := range scenarios() {
						name := fmt.Sprintf("%s-%d", scenario.name, round)
						tried, acknowledged := strings.Count(out, "try "+name+"\n"), strings.Count(out, "ack "+name+"\n")
						got := state(t, s, scenarioPair(scenario.name, round))
						if got != scenario.states[acknowledged] && got != scenario.states[tried] {
							t.Errorf("%s is %q; %d steps were acknowledged (%q), %d tried (%q)", name, got,
								acknowledged, scenario.states[acknowledged], tried, scenario.states[tried])
						}
					}
				}
				wantFormatOfContent(t, s, at)
				prove(t, s, records.Result{Pair: pair(id1, app), Credential: bob}) // the store is usable
			})
		}
	}
}

func TestCrashInOpenKeepsDistrust(t *testing.T) {
	for _, point := range ownPoints() {
		if !ofOpen(point) {
			continue
		}
		for _, tc := range []struct {
			name           string
			damaged, key   bool
			dies, distrust bool
		}{
			{"very first start", false, false, point != crashpoint.SetAside, false},
			{"lost store", false, true, point != crashpoint.SetAside, true},
			{"damaged store", true, true, true, true},
			{"damaged store without a key", true, false, true, true},
		} {
			t.Run(point+"/"+tc.name, func(t *testing.T) {
				path := newPath(t)
				if tc.damaged {
					writeFile(t, path, []byte("damage"))
				}
				if out, died := crash(t, path, point, tc.key); died != tc.dies {
					t.Fatalf("died %v; want %v; the child said:\n%s", died, tc.dies, out)
				}
				wantOpen(t, path, tc.key, tc.damaged, tc.distrust)
			})
		}
	}
}

func TestCrashAfterCrashInOpenKeepsDistrust(t *testing.T) {
	path := newPath(t)
	writeFile(t, path, []byte("damage"))
	for _, point := range []string{
		crashpoint.SetAside, crashpoint.StoreTemporary, crashpoint.StoreTemporary, crashpoint.StoreRenamed,
	} {
		if out, died := crash(t, path, point, false); !died {
			t.Fatalf("the child did not die at %s; it said:\n%s", point, out)
		}
	}
	wantOpen(t, path, false, true, true)
}

// wantOpen opens a store after a crash in Open.
func wantOpen(t *testing.T, path string, key, damaged, distrust bool) {
	t.Helper()
	_, report := open(t, path, records.Options{KeyExists: key})
	if (report.Distrust != nil) != distrust {
		t.Errorf("Distrust = %+v; want distrust %v", report.Distrust, distrust)
	}
	aside, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.damaged-*"))
	if err != nil || (len(aside) == 1) != damaged {
		t.Fatalf("set aside: %v, %v; want one %v", aside, err, damaged)
	}
	if damaged && string(readFile(t, aside[0])) != "damage" {
		t.Error("what was set aside is not what was there")
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the temporary file is still there")
	}
}
