package adminapi_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// watch begins to watch, and returns when the stream has every later decision.
func (w *world) watch(req *adminv1.WatchDecisionsRequest) adminv1.PullRecords_WatchDecisionsClient { //nolint:ireturn // what the client gives
	w.t.Helper()
	stream, err := w.WatchDecisions(w.t.Context(), req)
	must(w.t, err)
	if _, err := stream.Header(); err != nil {
		w.t.Fatal(err)
	}
	return stream
}

func decided(namespace, image string) decisionlog.Decision {
	return decisionlog.Decision{
		Call: "PullImage", Pod: tracker.Pod{UID: "uid", Namespace: namespace, Name: "web"}, Image: image, Repository: strings.TrimSuffix(image, ":1"),
		Verdict: tracker.Verdict{
			Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}, Pair: records.Pair{ImageID: id1, Repository: app},
			Credential: "c0ffee",
		},
		Secret:     records.SecretRef{UID: "u", Namespace: namespace, Name: "pull"},
		PullPolicy: "Always", Outcome: "verified", Took: time.Second, Shadow: true,
	}
}

func TestWatchSendsDecisionsFromNowOn(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.feed.Record(decided("before", app+":1"))
	all := w.watch(&adminv1.WatchDecisionsRequest{})
	ofTeam := w.watch(&adminv1.WatchDecisionsRequest{Namespace: "team"})
	ofApp := w.watch(&adminv1.WatchDecisionsRequest{Repository: app + ":any"})
	w.feed.Record(decided("others", "repo.test/other:1"))
	w.feed.Record(decided("others", app+":1"))
	w.feed.Record(decided("team", "repo.test/other:1"))
	for name, tc := range map[string]struct {
		stream adminv1.PullRecords_WatchDecisionsClient
		want   []string
	}{
		"all":        {all, []string{"others repo.test/other:1", "others " + app + ":1", "team repo.test/other:1"}},
		"namespace":  {ofTeam, []string{"team repo.test/other:1"}},
		"repository": {ofApp, []string{"others " + app + ":1"}},
	} {
		for _, want := range tc.want {
			d, err := tc.stream.Recv()
			if err != nil || d.GetPod().GetNamespace()+" "+d.GetImage() != want {
				t.Fatalf("%s: %v, %v; want %s", name, d, err, want)
			}
			if d.GetTime() == nil || d.GetCall() != "PullImage" || d.GetVerdict() != adminv1.Verdict_VERDICT_ALLOW || d.GetReason() != "proved" || d.GetCredentialId() != "c0ffee" ||
				d.GetSecret().GetName() != "pull" || d.GetOutcome() != "verified" || d.GetTook().AsDuration() != time.Second || !d.GetShadow() || d.GetDropped() != 0 || d.GetPair().GetImageId() != id1 {
				t.Errorf("%s: %v; want every field", name, d)
			}
		}
	}
	w.feed.Record(decided("team", strings.Repeat("x", 1023)+"é"+strings.Repeat("x", 1<<20)))
	if d, err := all.Recv(); err != nil || len(d.GetImage()) > 1030 || len(d.GetImage()) < 1000 {
		t.Errorf("a long name = %d bytes, %v; want it cut", len(d.GetImage()), err)
	}
	bad, err := w.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{Repository: "UPPER CASE"})
	if err == nil {
		_, err = bad.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an invalid repository = %v; want InvalidArgument", err)
	}
}

// A watcher that reads too slowly misses decisions and gets their number; decisions do not wait for watchers.
func TestSlowWatcherGetsTheNumberOfMissedDecisions(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	slow := w.watch(&adminv1.WatchDecisionsRequest{})
	const n = 20_000
	big := strings.Repeat("x", 1000)
	began := time.Now()
	for i := range n {
		w.feed.Record(decided("team", fmt.Sprintf("repo.test/%d/%s:1", i, big)))
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%d decisions took %v while the watcher does not read", n, took)
	}
	// There is room again when a watcher reads.
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
				w.feed.Record(decided("team", "last"))
			}
		}
	}()
	got, missed := uint64(0), uint64(0)
	for last := false; !last; got++ {
		d, err := slow.Recv()
		must(t, err)
		missed += d.GetDropped()
		last = d.GetImage() == "last"
	}
	close(end)
	<-ended
	if missed == 0 || got > n || got+missed < n {
		t.Errorf("%d read and %d missed of %d; want some missed, and all counted", got, missed, n)
	}
}

func TestSixteenMayWatch(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	var streams []adminv1.PullRecords_WatchDecisionsClient
	for range 15 {
		streams = append(streams, w.watch(&adminv1.WatchDecisionsRequest{}))
	}
	last, err := adminv1.NewPullRecordsClient(w.dial()).WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	must(t, err)
	if _, err := last.Header(); err != nil {
		t.Fatal(err)
	}
	refused, err := w.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	if err == nil {
		_, err = refused.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the 17th = %v; want ResourceExhausted", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				w.feed.Record(decided("team", app+":1"))
			}
		})
	}
	wg.Wait()
	for _, s := range streams {
		for range 400 {
			if d, err := s.Recv(); err != nil || d.GetDropped() > 0 {
				t.Fatalf("%v, %v; want all 400", d, err)
			}
		}
	}
}
