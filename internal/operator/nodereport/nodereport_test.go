package nodereport_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/operator/nodereport"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const image = "registry.test/team/app:1"

func decision(call, namespace, pod string, v policy.Verdict, reason policy.Reason) decisionlog.Decision {
	d := decisionlog.Decision{Call: call, Image: image, Pod: tracker.Pod{UID: "u-" + pod, Namespace: namespace, Name: pod}}
	d.Verdict.Decision = policy.Decision{Verdict: v, Reason: reason}
	return d
}

func denied(call, namespace, pod string) decisionlog.Decision {
	return decision(call, namespace, pod, policy.Reverify, policy.NotProved)
}

// Only what keeps a pod from its container counts: a kubelet that does not find an image pulls it.
func TestWhatIsARefusal(t *testing.T) {
	for name, tc := range map[string]struct {
		d      decisionlog.Decision
		change func(*decisionlog.Decision)
		want   string
	}{
		"a container": {d: denied("CreateContainer", "a", "p"), want: "not_proved"},
		"a start":     {d: denied("StartContainer", "a", "p"), want: "not_proved"},
		"a restore":   {d: denied("RestorePod", "a", "p"), want: "not_proved"},
		"a sandbox": {
			d: decision("RunPodSandbox", "a", "p", policy.Reverify, "admission_denied"), want: "admission_denied",
		},
		"an allowed container":      {d: decision("CreateContainer", "a", "p", policy.Allow, policy.Proved)},
		"a recheck of endorsements": {d: denied("RecheckEndorsement", "a", "p")},
		"a pre-check":               {d: denied("ImageStatus", "a", "p")},
		"a pre-check of Never": {
			d: denied("ImageStatus", "a", "p"), want: "not_proved",
			change: func(d *decisionlog.Decision) { d.PullPolicy = tracker.PullNever },
		},
		"a pre-check of Never in shadow mode": { // the container comes
			d:      denied("ImageStatus", "a", "p"),
			change: func(d *decisionlog.Decision) { d.PullPolicy, d.Shadow = tracker.PullNever, true },
		},
		"a pull to prove access": {d: denied("PullImage", "a", "p")},
		"a pull of a fenced repository": {
			d: decision("PullImage", "a", "p", policy.Reverify, policy.Fenced), want: "fenced",
		},
		"a pull without a pod": {
			d:      decision("PullImage", "", "", policy.Reverify, policy.Fenced),
			change: func(d *decisionlog.Decision) { d.Pod = tracker.Pod{} },
		},
		"a pull of an absent image that failed": {
			d: denied("PullImage", "a", "p"), change: func(d *decisionlog.Decision) { d.Outcome = "denied" },
		},
		"a pull of a hidden image that failed": {
			d: decision("PullImage", "a", "p", policy.Reverify, ""), want: "pull_denied",
			change: func(d *decisionlog.Decision) { d.Outcome, d.Hidden = "denied", true },
		},
		"a pull of a hidden image that did not reach the registry": {
			d:      decision("PullImage", "a", "p", policy.Reverify, ""),
			change: func(d *decisionlog.Decision) { d.Outcome, d.Hidden = "unavailable", true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.change != nil {
				tc.change(&tc.d)
			}
			r := nodereport.New(time.Now())
			r.Record(tc.d)
			got := ""
			for _, row := range r.Content(time.Now(), time.Time{}, "r").Refused {
				got += row.Reason
			}
			testkit.Equal(t, "reason", got, tc.want)
		})
	}
}

func TestRowsAndTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := nodereport.New(start)
		content := func() api.Report { return r.Content(time.Now(), time.Time{}, "rules") }
		if c := content(); c.Refused == nil || len(c.Refused) > 0 || c.Truncated {
			t.Errorf("at the start: %+v", c)
		}
		d := denied("CreateContainer", "b", "p")
		r.Record(d)
		time.Sleep(time.Hour)
		d.PullSecret = true
		r.Record(d)
		r.Record(denied("CreateContainer", "a", "q"))
		c := content()
		var got []string
		for _, row := range c.Refused {
			got = append(got, fmt.Sprint(row.Namespace, "/", row.Pod, " ", row.Reason, " ", row.Count, " ", row.PullSecret, " ",
				row.Last.Sub(start.Truncate(time.Second))))
		}
		want := []string{"a/q not_proved 1 false 1h0m0s", "b/p not_proved 2 true 1h0m0s"}
		if diff := cmp.Diff(want, got); diff != "" || !c.ObservedSince.Time.Equal(start.Truncate(time.Second)) {
			t.Errorf("since %v; rows (-want +got):\n%s", c.ObservedSince, diff)
		}
		time.Sleep(24*time.Hour - time.Second)
		testkit.Equal(t, "rows just before a day", len(content().Refused), 2)
		time.Sleep(time.Second)
		testkit.Equal(t, "rows after a day", len(content().Refused), 0)
	})
}

// What was not seen is not claimed: the window begins again after a gap, and with other rules.
func TestWindowBeginsAgain(t *testing.T) {
	start := time.Now().Truncate(time.Second)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	r := nodereport.New(start)
	r.Record(denied("CreateContainer", "a", "p"))
	since := func(now, absent time.Time, rules string, rows int) time.Duration {
		t.Helper()
		c := r.Content(now, absent, rules)
		testkit.Equal(t, "rows", len(c.Refused), rows)
		return c.ObservedSince.Sub(start)
	}
	testkit.Equal(t, "first", since(at(time.Hour), time.Time{}, "one", 1), 0)
	testkit.Equal(t, "a restart of the kubelet", since(at(2*time.Hour), at(2*time.Hour-4*time.Minute), "one", 1), 0)
	gone := 3 * time.Hour
	testkit.Equal(t, "a gap", since(at(gone), at(gone-6*time.Minute), "one", 1), gone)
	testkit.Equal(t, "after a gap", since(at(4*time.Hour), time.Time{}, "one", 1), gone)
	testkit.Equal(t, "other rules", since(at(5*time.Hour), time.Time{}, "two", 0), 5*time.Hour)
	c := r.Content(at(6*time.Hour), at(6*time.Hour-time.Minute), "two")
	testkit.Equal(t, "kubelet seen", c.KubeletSeen.Sub(start), 6*time.Hour-time.Minute)
}

// A report is bounded whatever tenants do, says so, and one namespace cannot use up the rows of another.
func TestBounds(t *testing.T) {
	r := nodereport.New(time.Now())
	r.Record(denied("CreateContainer", "victim", "p"))
	for i := range 10_000 {
		d := denied("CreateContainer", "flood", fmt.Sprintf("p-%d", i))
		d.Image = strings.Repeat("\xff", i%5) + strings.Repeat("é", 200*(i%7)) + d.Image
		r.Record(d)
	}
	c := r.Content(time.Now(), time.Time{}, "r")
	text := testkit.Value(json.Marshal(c.Refused))(t)
	if !c.Truncated || len(text) > api.MaxRefusalBytes || len(c.Refused) > api.MaxRefusals || len(c.Refused) < 10 {
		t.Errorf("truncated %v, %d rows of %d bytes", c.Truncated, len(c.Refused), len(text))
	}
	testkit.Equal(t, "last row", c.Refused[len(c.Refused)-1].Namespace, "victim")
	testkit.Equal(t, "rows in memory", r.Rows(), nodereport.MaxKept)
	for _, row := range c.Refused {
		if len(row.Image) > api.MaxReportImage {
			t.Errorf("an image of %d bytes", len(row.Image))
		}
	}
	for i := range 1000 {
		r.Record(denied("CreateContainer", fmt.Sprintf("n-%d", i), "p"))
	}
	if c := r.Content(time.Now(), time.Time{}, "r"); len(c.Refused) > api.MaxRefusals || !c.Truncated {
		t.Errorf("%d rows of many namespaces, truncated %v", len(c.Refused), c.Truncated)
	}
}

func TestConcurrentUse(t *testing.T) {
	r := nodereport.New(time.Now())
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			for range 300 {
				r.Record(denied("CreateContainer", fmt.Sprint(i), fmt.Sprint(rand.IntN(500))))
				r.Content(time.Now(), time.Time{}, "r")
			}
		})
	}
	g.Wait()
}

// Decisions that allow are nearly all; they cost nothing.
func TestAllowedDecisionsAllocateNothing(t *testing.T) {
	r := nodereport.New(time.Now())
	d := decision("CreateContainer", "a", "p", policy.Allow, policy.Proved)
	if n := testing.AllocsPerRun(100, func() { r.Record(d) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
