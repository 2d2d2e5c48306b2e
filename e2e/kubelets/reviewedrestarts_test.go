package kubelets_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// A backend that denies what it has allowed stops no running workload: pods that started before keep their containers,
// and restart one that ends, whatever is restarted; a new pod is denied each time. After a restart of the node running
// pods come back, with recheckRestarts they are reviewed again.
//
// Each case has a pod whose container ends, because a kubelet waits before it restarts a container for the second time.
func reviewedRestarts(s *scenario) {
	const (
		policyd = "a restart of pullgate-policyd and pullgated"
		runtime = "a restart of containerd"
		kubelet = "a restart of the kubelet"
	)
	app := s.public("app:1")
	r := s.newReviewing()
	r.pull(nil, app)
	b := r.backend()
	r.file("main", b, "defaultAllow: false, allowTTL: -1, denyTTL: -1")
	r.hangup()
	r.enforce()
	r.secret("a")
	plain := r.pod("a", app)
	stay := s.stay(plain, nothing, policyd, runtime, kubelet)
	if len(b.Requests()) == 0 { // pods that start at the same time share a request
		s.Errorf("%d pods without a cache: no request", len(stay))
	}
	b.Set(app.Name, reviewbackend.Answer{Deny: true, Reason: "not scanned"})
	check := func(after string) {
		s.Helper()
		asked := len(b.Requests())
		fresh := r.come(plain, refused)
		s.restartsIn(stay, after)
		r.isDenied("new, after "+after, fresh, deniedBy("main"))
		if len(b.Requests()) == asked {
			s.Errorf("new, after %s: no request", after)
		}
		s.drop(fresh)
	}

	s.must(r.policyd.Stop())
	s.must(s.gate.Restart(s.Context()))
	s.must(r.policyd.Start(s.Context()))
	check(policyd)
	s.must(s.Containerd.Restart(s.Context()))
	check(runtime)
	s.must(s.restartKubelet(s.Context(), quick()))
	check(kubelet)

	reboot := func() (fresh *outcome) {
		s.Helper()
		s.must(r.policyd.Kill())
		s.powerCycle(r.policyd.Start)
		return r.come(plain, refused)
	}
	fresh := reboot()
	for _, o := range stay {
		s.replaced(o, "a restart of the node")
	}
	r.isDenied("new, after a restart of the node", fresh, deniedBy("main"))

	r.configure("recheckRestarts: true")
	fresh = reboot()
	for _, o := range stay {
		s.waitForEvent(o.pod, `Failed: .*`+deniedBy("main"))
	}
	r.isDenied("new, after a restart of the node with recheckRestarts", fresh, deniedBy("main"))
	for _, o := range stay {
		if s.look(o); o.state == running {
			s.Errorf("after a restart of the node with recheckRestarts: %s; want it denied", o)
		}
	}
}

// pullgate-policyd is killed at random times while 20 pods start. With defaultAllow: false no container starts that the
// backend denies; otherwise each of them is marked failedOpen. What the backend allows starts at most late. Calls
// without a review are not affected.
func reviewedKills(s *scenario) {
	app, bad := s.public("app:1"), s.public("bad:1")
	r := s.newReviewing()
	r.pull(nil, app, bad)
	b := r.backend()
	b.Set(bad.Name, reviewbackend.Answer{Deny: true, Reason: "not scanned"})
	teams := []string{"true", "false", "absent"}
	r.file("closed", b, "defaultAllow: false, allowTTL: -1, denyTTL: -1", "false")
	r.file("open", b, "defaultAllow: true, allowTTL: -1, denyTTL: -1", "true")
	r.file("unset", b, "allowTTL: -1, denyTTL: -1", "absent")
	r.hangup()
	r.enforce()
	r.secret(append(teams, "free")...)

	other, err := node.NewKubelet(s.Context(), s.gate.Endpoint())
	s.must(err)
	defer other.Close()
	calls := node.NewCalls(s.Context())
	again := func(name string, call func(context.Context) error) {
		calls.Again(name, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // less than pullgated waits for pullgate-policyd
			defer cancel()
			return call(ctx)
		})
	}
	again("Status", other.RuntimeReady)
	again("ImageStatus", func(ctx context.Context) error { _, err := other.HasImage(ctx, app.Name); return err })
	again("ListContainers", func(ctx context.Context) error { _, err := other.RunningIn(ctx, "none"); return err })

	var good, denied []*outcome
	began := time.Now()
	kill := func() {
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
		s.must(r.policyd.Kill())
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
		s.must(r.policyd.Start(s.Context()))
	}
	for i := range 5 {
		for j := range 4 {
			team := teams[(4*i+j)%len(teams)]
			if j%2 == 0 {
				good = append(good, r.come(r.pod(team, app), running))
			} else {
				denied = append(denied, r.come(r.pod(team, bad), refused))
			}
		}
		kill()
	}
	// While it is not there, a container that no backend reviews starts, and so does one that is admitted by default.
	s.must(r.policyd.Kill())
	free := r.come(r.pod("free", bad), running)
	for _, team := range teams {
		o := r.come(r.pod(team, bad), refused)
		if denied = append(denied, o); team != "false" {
			r.runs("defaultAllow "+team+", while pullgate-policyd is killed", o)
		}
	}
	r.runs("without reviews, while pullgate-policyd is killed", free)
	for _, d := range r.decisions(free) {
		if d.failedOpen() {
			s.Errorf("without reviews: %+v; want no backend asked", d)
		}
	}
	s.must(r.policyd.Start(s.Context()))
	for i, o := range good {
		r.runs(fmt.Sprintf("allowed pod %d", i), o)
	}
	opened := 0
	for i, o := range denied {
		name := fmt.Sprintf("denied pod %d", i)
		r.awaitDecision(o)
		if o.pod.Namespace == s.namespace("false") {
			if o.state == running {
				s.Errorf("%s: %s; want it denied, whatever happens to pullgate-policyd", name, o)
			}
			continue
		}
		o.want = running // which it may be
		if o.state == running {
			opened++
			r.markedFailedOpen(name, o, true)
		}
		for _, d := range r.decisions(o) {
			if d.Verdict == "Allow" && !d.failedOpen() {
				s.Errorf("%s: %+v; want each start marked", name, d)
			}
		}
	}
	summary, failed := calls.Stop()
	s.Logf("23 pods after %v, %d denied ones started and are marked; beside them %s", time.Since(began).Round(100*time.Millisecond), opened, summary)
	for _, err := range failed {
		s.Errorf("a call that asks for no review: %v", err)
	}
}

// awaitDecision waits until a pod with a denied image has started, or is denied by the backend.
func (r *reviewing) awaitDecision(o *outcome) {
	r.Helper()
	if !host.Within(patience, func() bool { return r.look(o).state == running || o.state == createFailed }) {
		r.Errorf("%s%s; want it decided", o, r.events(o.pod))
	}
}
