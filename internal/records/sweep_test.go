package records_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

var errDisk = errors.New("the disk says no")

func TestFailedWriteLeavesEarlierFactsAndAUsableStore(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	path, selected := newPath(t), sample(t)
	s, _ := open(t, path, records.Options{})
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
	closeStore(t, s)
	content := readFile(t, path)
	for name, fail := range map[string]func(write records.WriteAt, b []byte, at int64){
		"nothing written": func(records.WriteAt, []byte, int64) {},
		"half written":    func(write records.WriteAt, b []byte, at int64) { _, _ = write(b[:40], at) },
		// The write has reached the file, but its answer was lost.
		"all written": func(write records.WriteAt, b []byte, at int64) { _, _ = write(b, at) },
	} {
		for _, burst := range []int{1, 7} { // failures in a row
			n := 0
			for !selected() || failsAt(t, fmt.Sprintf("%s, %d from write %d on", name, burst, n), content, n, burst, fail) {
				n++
			}
			if n < 50 {
				t.Errorf("%s: only %d writes were made to fail", name, n)
			}
		}
	}
}

// failsAt opens a store with this content and makes the writes from n on fail. It reports whether there were any.
func failsAt(t *testing.T, what string, content []byte, n, burst int,
	fail func(write records.WriteAt, b []byte, at int64),
) (failed bool) {
	t.Helper()
	path := newPath(t)
	writeFile(t, path, content) // made once: each write transaction waits for the disk
	s, _, err := records.Open(path, records.Options{Now: noon()})
	testkit.Must(t, err)
	at, recovered := 0, false
	early := state(t, s, pair(id1, app))
	s.OnWrite(func(write records.WriteAt, b []byte, offset int64) (int, error) {
		at++
		if at > n && at <= n+burst && !recovered {
			failed = true
			fail(write, b, offset)
			return 0, errDisk
		}
		return write(b, offset)
	})

	allowed := map[records.Pair][2]string{pair(id1, app): {early, early}}
	for _, scenario := range scenarios() {
		p := scenarioPair(scenario.name, 0)
		var intent records.Intent
		for i, step := range scenario.steps {
			allowed[p] = [2]string{scenario.states[i+1], scenario.states[i+1]}
			if err := step(s, p, &intent); err != nil {
				if !errors.Is(err, errDisk) {
					t.Errorf("%s: step %d of %q: %v; want the error of the disk", what, i, scenario.name, err)
				}
				allowed[p] = [2]string{scenario.states[i], scenario.states[i+1]}
				break
			}
		}
		wantStates(t, s, what+", after "+scenario.name, allowed)
	}
	recovered = true
	prove(t, s, records.Result{Pair: pair(id2, other), Credential: bob})
	closeStore(t, s)
	s, report := open(t, path, records.Options{KeyExists: true})
	if report != (records.Report{}) {
		t.Errorf("%s: Report = %+v; want the store as it was", what, report)
	}
	wantStates(t, s, what+", reopened", allowed)
	wantFormatOfContent(t, s, what)
	closeStore(t, s)
	return failed
}

func wantStates(t *testing.T, s *records.Store, what string, allowed map[records.Pair][2]string) {
	t.Helper()
	for p, states := range allowed {
		if got := state(t, s, p); got != states[0] && got != states[1] {
			t.Errorf("%s: %s is %q; want %q or %q", what, p.Repository, got, states[0], states[1])
		}
	}
}
