// Package nodereport implements the content of a NodeReport: what the gate has refused or, in shadow mode, would have
// refused in the last 24 hours. It counts pods, not decisions, in bounded memory.
package nodereport

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	window = 24 * time.Hour
	// maxKept is how many rows are in memory, about 700 bytes each at most.
	maxKept = 500
	// kubeletGap is how long no kubelet may be seen before the window begins again. A restart is shorter.
	kubeletGap = 5 * time.Minute
)

// A Recorder counts refusals. Its methods may be called concurrently.
type Recorder struct {
	// mu guards the fields below. No function is called under it.
	mu      sync.Mutex
	since   time.Time // of the window
	rules   string
	rows    map[row]*state
	dropped time.Time // when the last row was dropped; zero: never
}

type row struct{ namespace, pod, image, reason string }

type state struct {
	count      int32
	last       time.Time
	pullSecret bool
}

// New returns a recorder whose window begins now.
func New(now time.Time) *Recorder { return &Recorder{since: now, rows: map[row]*state{}} }

// Record counts a decision if it is a refusal.
func (r *Recorder) Record(d decisionlog.Decision) {
	if reason := refusal(&d); reason != "" {
		r.add(row{d.Pod.Namespace, d.Pod.Name, bounded(d.Image), reason}, d.PullSecret, time.Now())
	}
}

// refusal returns the reason for which the pod does not get its container, "" if it may get it. A pre-check that is
// hidden, or would be, refuses nothing yet: the kubelet pulls.
func refusal(d *decisionlog.Decision) string {
	switch reason := string(d.Verdict.Reason); d.Call {
	case "CreateContainer", "StartContainer", "RestorePod", "RunPodSandbox":
		if !d.Verdict.Allowed() {
			return reason
		}
	case "ImageStatus":
		if !d.Verdict.Allowed() && !d.Shadow && d.PullPolicy == tracker.PullNever {
			return reason
		}
	case "PullImage":
		switch refused := d.Verdict.Reason == policy.Fenced || d.Verdict.Reason == policy.NodeCredentials; {
		case d.Outcome == "" && refused && d.Pod != (tracker.Pod{}):
			return reason
		case d.Outcome == "denied" && d.Hidden:
			return api.ReasonPullDenied
		}
	}
	return ""
}

func bounded(image string) string {
	if len(image) > api.MaxReportImage {
		image = strings.Clone(image[:api.MaxReportImage])
	}
	return strings.ToValidUTF8(image, "")
}

func (r *Recorder) add(at row, pullSecret bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.rows[at]
	if s == nil {
		if len(r.rows) >= maxKept {
			r.dropLocked(now)
		}
		s = &state{}
		r.rows[at] = s
	}
	if s.count < math.MaxInt32 {
		s.count++
	}
	s.last, s.pullSecret = now, pullSecret
}

// dropLocked drops the oldest row of the namespace that has most: one namespace cannot use up the rows of others.
func (r *Recorder) dropLocked(now time.Time) {
	of := map[string]int{}
	most := ""
	for at := range r.rows {
		if of[at.namespace]++; of[at.namespace] > of[most] {
			most = at.namespace
		}
	}
	var oldest row
	var last time.Time
	for at, s := range r.rows {
		if at.namespace == most && (last.IsZero() || s.last.Before(last)) {
			oldest, last = at, s.last
		}
	}
	delete(r.rows, oldest)
	r.dropped = now
}

// Content returns the part of the report that the recorder knows. rules identifies what decides: with others the window
// begins again, without the rows of the former ones. absent is since when no kubelet is seen, zero if one is. Content
// must be called more often than every five minutes, because the window begins again after such a gap.
func (r *Recorder) Content(now, absent time.Time, rules string) api.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules != "" && r.rules != rules {
		r.since, r.rows, r.dropped = now, map[row]*state{}, time.Time{}
	}
	r.rules = rules
	seen := now
	if !absent.IsZero() {
		if seen = absent; now.Sub(absent) > kubeletGap {
			r.since = now
		}
	}
	c := api.Report{Format: api.ReportFormat, ObservedSince: second(r.since), ReportTimes: api.ReportTimes{
		Heartbeat: second(now), KubeletSeen: second(seen),
	}}
	c.Refused, c.Truncated = r.listLocked(now)
	c.Truncated = c.Truncated || !r.dropped.IsZero() && now.Sub(r.dropped) < window
	return c
}

func second(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

// listLocked forgets what is older than the window and returns the rows that a report has room for. Namespaces take
// turns, each with its newest rows.
func (r *Recorder) listLocked(now time.Time) (rows []api.Refusal, truncated bool) {
	byNamespace := map[string][]api.Refusal{}
	for at, s := range r.rows {
		if now.Sub(s.last) >= window {
			delete(r.rows, at)
			continue
		}
		byNamespace[at.namespace] = append(byNamespace[at.namespace], api.Refusal{
			Namespace: at.namespace, Pod: at.pod, Image: at.image, Reason: at.reason,
			PullSecret: s.pullSecret, Count: s.count, Last: second(s.last),
		})
	}
	var turns [][]api.Refusal
	for _, of := range byNamespace {
		slices.SortFunc(of, func(a, b api.Refusal) int { return cmp.Or(b.Last.Compare(a.Last.Time), order(a, b)) })
		turns = append(turns, of)
	}
	slices.SortFunc(turns, func(a, b []api.Refusal) int { return strings.Compare(a[0].Namespace, b[0].Namespace) })
	rows = []api.Refusal{}
	size := len("[]")
	for round := 0; ; round++ {
		more := false
		for _, of := range turns {
			if round >= len(of) {
				continue
			}
			more = true
			text, err := json.Marshal(of[round])
			if err != nil || len(rows) >= api.MaxRefusals || size+len(text)+1 > api.MaxRefusalBytes {
				truncated = true
				continue // a shorter one may fit
			}
			size += len(text) + 1
			rows = append(rows, of[round])
		}
		if !more {
			break
		}
	}
	slices.SortFunc(rows, order)
	return rows, truncated
}

func order(a, b api.Refusal) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
		strings.Compare(a.Image, b.Image), strings.Compare(a.Reason, b.Reason))
}
