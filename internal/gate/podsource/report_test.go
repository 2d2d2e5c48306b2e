package podsource_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	group   = "/apis/fleet.pullgate.dev/v1alpha1"
	reports = group + "/nodereports"
	ofNode  = reports + "/node-1"
)

// refuses sets the pods of the report; without a call of it there is no report to write.
func (w *world) refuses(pods ...string) {
	r := api.Report{Format: 1, Refused: []api.Refusal{}}
	for _, p := range pods {
		r.Refused = append(r.Refused, api.Refusal{Pod: p})
	}
	w.report.Store(&r)
}

// wantReport compares the pods of the report at the API server, and the number of requests that wrote it.
func (w *world) wantReport(pods string, requests int) {
	w.Helper()
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	var got []string
	if w.api.report != nil {
		for _, r := range w.api.report.Report.Refused {
			got = append(got, r.Pod)
		}
	}
	if text := strings.Join(got, " "); text != pods || w.api.reportWrites != requests {
		w.Errorf("report has %q after %d writes; want %q after %d", text, w.api.reportWrites, pods, requests)
	}
}

func TestReport(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.register()
		w.api.definesReports(true)
		w.start()
		w.pass(time.Hour)
		w.wantReport("", 0) // there is nothing to say
		w.refuses("a")
		w.pass(time.Minute)
		w.wantReport("a", 1)
		if owner := w.api.report.OwnerReferences; len(owner) != 1 || owner[0].UID != "uid-1" || owner[0].Name != "node-1" {
			t.Errorf("owner %+v; want the Node", owner)
		}
		first := w.api.report.Report.Heartbeat
		// A change waits for its turn, and what is unchanged has only a heartbeat.
		w.refuses("a", "b")
		w.pass(8 * time.Minute)
		w.wantReport("a", 1)
		w.pass(4 * time.Minute)
		w.wantReport("a b", 2)
		w.pass(12 * time.Minute)
		w.wantReport("a b", 3)
		if !w.api.report.Report.Heartbeat.After(first.Time) || len(w.api.patched) > 120 {
			t.Errorf("heartbeat %v, patch %s", w.api.report.Report.Heartbeat, w.api.patched)
		}
		before := w.api.requests(ofNode)
		w.pass(10 * time.Hour)
		if n := w.api.requests(ofNode) - before; n < 54 || n > 67 {
			t.Errorf("%d requests in 10 hours; want one in 10 minutes ± 10 %%", n)
		}
		// An object that is gone, as with its Node, is made again whole.
		w.api.mu.Lock()
		w.api.report = nil
		w.api.node.UID = "uid-2"
		w.api.mu.Unlock()
		w.pass(12 * time.Minute)
		if r := w.api.report; r == nil || r.OwnerReferences[0].UID != "uid-2" || len(r.Report.Refused) != 2 {
			t.Errorf("after it was deleted: %+v", r)
		}
		testkit.Equal(t, "lines", w.logged("Wrote the report of the node"), 1)
	})
}

// An absent definition, or right, costs one line and a request now and then, and is noticed when it comes.
func TestReportThatCannotBeWritten(t *testing.T) {
	for name, code := range map[string]int{"no definition": 0, "no right": 403, "unavailable": 503} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.register()
				w.api.definesReports(code != 0)
				w.api.refusing(func(r *http.Request) int {
					if strings.HasPrefix(r.URL.Path, reports) {
						return code
					}
					return 0
				})
				w.refuses("a")
				w.start()
				w.pass(24 * time.Hour)
				if n := w.api.requests(group); n > 24*60/4 || n < 24*60/20 {
					t.Errorf("%d requests in a day whether there are reports; want one in about 15 minutes", n)
				}
				if n := w.api.requests(ofNode); code == 0 && n > 0 {
					t.Errorf("%d requests for what does not exist", n)
				} else if code != 0 && (n > 24*60/4 || n < 24*60/20) {
					t.Errorf("%d requests in a day; want one in about 15 minutes", n)
				}
				testkit.Equal(t, "lines", w.logged("Failed to write the report of the node"), 1)
				testkit.Equal(t, "hint", w.logged("install the definition of NodeReport"), map[bool]int{true: 1}[code == 0])
				w.api.definesReports(true)
				w.api.refusing(func(*http.Request) int { return 0 })
				w.pass(21 * time.Minute)
				if w.api.report == nil {
					t.Error("nothing was written")
				}
			})
		})
	}
}

// Nodes that start together do not write together.
func TestFirstReportsSpread(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 8 {
		inWorld(t, func(w *world) {
			w.api.register()
			w.api.definesReports(true)
			w.refuses()
			w.start()
			began := time.Now()
			for w.api.requests(ofNode) == 0 {
				w.pass(time.Second)
			}
			if d := time.Since(began); d < 15*time.Second || d > time.Minute {
				t.Errorf("first write after %v; want 15 to 60 seconds", d)
			}
			seen[time.Since(began).Truncate(2*time.Second)] = true
		})
	}
	if len(seen) < 2 {
		t.Errorf("all first writes after %v", seen)
	}
}
