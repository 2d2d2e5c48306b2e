package kubelets_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// crowdOf creates 60 pods of three tenants at once, on five images of A that are on the node, during a pull of a large
// image. A and C have the credential that pulled them; B has none, and its pods have to end in wantB. It returns how
// often the kubelet announced a pull for pods of A and C.
func (s *scenario) crowdOf(wantB string) (pulls int) {
	s.Helper()
	images := make([]node.Pushed, 5)
	for i := range images {
		images[i] = s.private(fmt.Sprintf("app-%d:1", i))
		s.runSteps(step{name: "A pulls", pod: pod{team: "a", image: images[i], secrets: with(node.Alice())}, want: running, requests: downloads})
	}
	calls := s.pullCalls()
	s.pullSlowly(large)
	var missing, entitled []*outcome
	began := time.Now()
	for i := range 60 {
		p, want := pod{team: string("acb"[i%3]), image: images[i%5], secrets: with(node.Alice())}, running
		if p.team == "b" {
			p.secrets, want = nil, wantB
		}
		o := &outcome{want: want, image: p.image, pod: s.create(p)}
		s.kept, missing = append(s.kept, o), append(missing, o)
		if p.team != "b" {
			entitled = append(entitled, o)
		}
	}
	var started time.Duration
	if !host.Within(5*time.Minute, func() bool {
		missing = slices.DeleteFunc(missing, func(o *outcome) bool {
			if s.look(o); o.state == running && o.want != running {
				s.Fatalf("%s; want %s", o, o.want)
			}
			if o.state == o.want && slices.Contains(entitled, o) {
				started = time.Since(began)
			}
			return o.state == o.want
		})
		return len(missing) == 0
	}) {
		s.Fatalf("%d of 60 pods are not what they should be, the first: %s%s\n%s", len(missing), missing[0], s.events(missing[0].pod), s.lastOutput())
	}
	for _, o := range entitled {
		pulls += strings.Count(s.events(o.pod), "\nPulling: ")
	}
	s.Logf("40 pods of A and C ran after %v; the kubelet announced %d pulls for them, and made %v calls of PullImage in all",
		started.Round(100*time.Millisecond), pulls, s.pullCalls()-calls)
	return pulls
}

// large is how long the pull takes that is in progress when the crowd starts. Some runtimes give up on a registry that
// sends nothing for half a minute.
const large = 20 * time.Second

// pullCalls is how many PullImage calls pullgated has seen; none if there is none.
func (s *scenario) pullCalls() float64 {
	s.Helper()
	if s.gate == nil {
		return 0
	}
	v, err := s.gate.Metric("pullgate_forwarded_calls_total", `method="PullImage"`)
	s.must(err)
	return v
}

// gone waits until no container of some teams runs any more.
func (s *scenario) gone(teams ...string) {
	s.Helper()
	k := s.runtimeClient()
	left := 0
	ended := func() bool {
		left = 0
		for _, team := range teams {
			names, err := k.ReadySandboxes(s.Context(), s.namespace(team))
			s.must(err)
			left += len(names)
		}
		return left == 0
	}
	if !host.Within(patience, ended) {
		s.Fatalf("%d pods are still on the node\n%s", left, s.lastOutput())
	}
}

func (s *scenario) metric(name string) float64 {
	s.Helper()
	v, err := s.gate.Metric(name)
	s.must(err)
	return v
}

// The crowd without pullgate: every pod runs, and as fast as this node can.
func crowdUnprotected(s *scenario) {
	s.crowdOf(running)
	s.dropAll()
	s.gone("a", "b", "c")
}

// The crowd before pullgated: each pod ends as it should, no call is lost. Standalone, every pod of A and C
// costs a PullImage, which the kubelet makes one at a time, 5 in a second, and after the large one. With the
// pod source none does.
func crowdProtected(s *scenario) {
	s.must(s.restartKubelet(s.Context(), nil)) // with the kubelet's default limits
	hits, intents := s.metric("image_pull_secret_recheck_hit_count"), s.metric("pullgate_pull_intents")
	if pulls := s.crowdOf(pullFailed); s.sourced && pulls != 0 {
		s.Errorf("the kubelet pulled %d times for pods of A and C; want no pull", pulls)
	}
	if got := s.metric("image_pull_secret_recheck_hit_count") - hits; s.recheck() == nothing && got != 40 {
		s.Errorf("image_pull_secret_recheck_hit rose by %v; want 40, one for each pod of A and C", got)
	}
	if got := s.metric("pullgate_panics_total"); got != 0 {
		s.Errorf("%v panics; want none", got)
	}
	// The pods of B try again and again: what is in flight at the moment ends, what was lost stays.
	if !host.Within(15*time.Second, func() bool { return s.metric("pullgate_pull_intents") <= intents }) {
		s.Errorf("%v pulls with an unknown outcome; want none", s.metric("pullgate_pull_intents")-intents)
	}
	s.dropAll()
	s.gone("a", "b", "c")
	s.must(s.restartKubelet(s.Context(), quick()))
}
