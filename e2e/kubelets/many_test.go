package kubelets_test

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A crowd is 60 pods of three tenants that come at once, on five images of A that are on the node. A
// and C have the credential that pulled them, B has none.
type crowd struct {
	how       string
	protected bool
	started   time.Duration   // until the last pod of A and C runs
	starts    []time.Duration // of each pod of A and C, until it was seen to run; in order
	pulls     int             // that the kubelet announced for pods of A and C
	delayed   int             // pods of A and C that the kubelet's own limit of pulls sent into back-off
	calls     float64         // of PullImage, for all 60 and for the large image
	intents   float64         // that were left when every pod was what it should be
}

// crowdOf creates the crowd during a pull of a large image. B's pods have to end in
// wantB.
func (s *scenario) crowdOf(wantB string) crowd {
	s.Helper()
	images := make([]node.Pushed, 5)
	for i := range images {
		images[i] = s.private(fmt.Sprintf("app-%d:1", i))
	}
	for _, image := range images {
		s.runSteps(step{name: "A pulls", pod: pod{team: "a", image: image, secrets: with(node.Alice())}, want: running, requests: downloads})
	}
	calls, intents := s.pullCalls(), s.intents()
	s.pullSlowly(large)
	var all []*outcome
	began := time.Now()
	for i := range 60 {
		p, want := pod{team: "a", image: images[i%5], secrets: with(node.Alice())}, running
		switch i % 3 {
		case 1:
			p.team = "c"
		case 2:
			p.team, p.secrets, want = "b", nil, wantB
		}
		all = append(all, &outcome{want: want, image: p.image, pod: s.create(p)})
	}
	s.kept = append(s.kept, all...)
	var c crowd
	limit := time.Now().Add(5 * time.Minute)
	for missing := all; len(missing) > 0; {
		if time.Now().After(limit) {
			s.Fatalf("%d of 60 pods are not what they should be, the first: %s%s\n%s", len(missing), missing[0], s.events(missing[0].pod), s.lastOutput())
		}
		time.Sleep(500 * time.Millisecond)
		var later []*outcome
		for _, o := range missing {
			s.look(o)
			switch {
			case o.state == running && o.want != running:
				s.Fatalf("%s; want %s", o, o.want)
			case o.state == o.want && o.want == running:
				c.started = time.Since(began)
				if o.pod.Namespace != s.namespace("b") {
					c.starts = append(c.starts, c.started)
				}
			case o.state == o.want:
			default:
				later = append(later, o)
			}
		}
		missing = later
	}
	for _, o := range all {
		if o.want == running && o.pod.Namespace != s.namespace("b") {
			pulls, delayed := s.pullsOf(o.pod)
			c.pulls += pulls
			c.delayed += delayed
		}
	}
	c.calls = s.pullCalls() - calls
	// B's pods try again and again; what is under way at the moment ends, what was lost stays. Only as long as
	// the pods are there: to be deleted may cost a pull its answer.
	host.Within(15*time.Second, func() bool {
		c.intents = s.intents() - intents
		return c.intents <= 0
	})
	s.dropAll()
	s.gone("a", "b", "c")
	return c
}

// How the node of a crowd is protected, as the log and the chart name it.
const (
	unprotected = "without pullgate"
	standalone  = "pullgate standalone"
	withSource  = "with the pod source"
)

// quantile returns when so many percent of the pods of A and C ran; 0 if none did.
func (c crowd) quantile(percent int) time.Duration {
	if len(c.starts) == 0 {
		return 0
	}
	return c.starts[(len(c.starts)*percent-1)/100]
}

func (c crowd) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
	return fmt.Sprintf("%s: %d pods of A and C ran after %v (p50 %v, p99 %v), of these %d after a back-off for the kubelet's own limit; the kubelet announced %d pulls for them and made %v calls of PullImage in all",
		c.how, len(c.starts), round(c.started), round(c.quantile(50)), round(c.quantile(99)), c.delayed, c.pulls, c.calls)
}

// large is how long the pull takes that is in progress when the crowd starts. Some runtimes give up on a registry that
// sends nothing for half a minute.
const large = 20 * time.Second

// intents is how many pull intents there are.
func (s *scenario) intents() float64 {
	s.Helper()
	if s.gate == nil {
		return 0
	}
	return s.metric("pullgate_pull_intents")
}

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

// pullsOf counts in a pod's events how often the kubelet pulled, and whether its own limit stopped it.
func (s *scenario) pullsOf(p *corev1.Pod) (pulls, delayed int) {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Events(p.Namespace).List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
	s.must(err)
	for _, e := range list.Items {
		switch e.Reason {
		case "Pulling":
			pulls += int(max(e.Count, 1))
		case "Failed":
			if strings.Contains(e.Message, "QPS") { // "pull QPS exceeded"
				delayed = 1
			}
		}
	}
	return pulls, delayed
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
	c := s.crowdOf(running)
	c.how = unprotected
	s.crowds = append(s.crowds, c)
	s.Log(c)
}

// The crowd before pullgated: each pod ends as it should, no call is lost. Standalone, every pod of A and C
// costs a PullImage, which the kubelet makes one at a time, 5 in a second, and after the large one. With the
// pod source none does.
func crowdProtected(s *scenario) {
	s.must(s.restartKubelet(s.Context(), nil)) // with the kubelet's default limits
	before := map[string]float64{}
	for _, name := range []string{"image_pull_secret_recheck_hit_count", "pullgate_panics_total"} {
		before[name] = s.metric(name)
	}
	c := s.crowdOf(pullFailed)
	rose := func(name string) float64 { return s.metric(name) - before[name] }
	if got := rose("image_pull_secret_recheck_hit_count"); s.recheck() == nothing && got != 40 {
		s.Errorf("image_pull_secret_recheck_hit rose by %v; want 40, one for each pod of A and C", got)
	}
	if got := rose("pullgate_panics_total"); got != 0 || c.intents > 0 {
		s.Errorf("%v panics, and %v pulls with an unknown outcome; want none", got, c.intents)
	}
	c.how, c.protected = standalone, true
	if s.sourced {
		c.how = withSource
		if c.pulls != 0 || c.delayed != 0 {
			s.Errorf("the kubelet pulled %d times for pods of A and C, %d of them went into back-off; want no pull", c.pulls, c.delayed)
		}
	}
	s.crowds = append(s.crowds, c)
	s.Log(c)
	if s.sourced {
		s.must(chart(s.crowds).write())
	}
	s.must(s.restartKubelet(s.Context(), quick()))
}
