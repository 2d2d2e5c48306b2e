// Package kubelets_test runs scenarios of tenants on nodes with real kubelets, in front of pullgated and a real
// containerd. Pods come through a real API server; the results are read from their status and events, from containerd
// and from the requests that the registry has answered.
package kubelets_test

import (
	"cmp"
	"errors"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/node"
)

// A kind of node: which kubelet in front of which runtime, and whether it has the pod source.
type kind struct {
	release, runtime string
	source           bool
}

// The nodes: each kubelet before each containerd that Kubernetes supports, which is containerd 2 from 1.36 on; 1.34 is
// before the newer one as CRI-O. That of make e2e and that of 1.37 are there once more with the pod source, side by
// side.
func nodes() []kind {
	return []kind{
		{kubelet130, containerd24, false},
		{kubelet137, containerd24, false},
		{kubelet137, containerd24, true},
		{kubelet134, containerd16, false},
		{kubelet134, containerd16, true},
		{kubelet130, containerd16, false},
		{kubelet136, containerd24, false},
		{kubelet134, asCRIO, false},
	}
}

// isMain reports whether the node is one of make e2e, which run every scenario; others what depends on kubelet and
// runtime.
func (k kind) isMain() bool { return k.release == kubelet134 && k.runtime == containerd16 }

// firstOfKubelet reports whether the node also runs what depends on the kubelet alone. 1.36 has none: between it and
// 1.37, the kubelet's code for images and credentials did not change what it does.
func (k kind) firstOfKubelet() bool {
	return k.isMain() || (k.release == kubelet130 || k.release == kubelet137) && k.runtime == containerd24
}

// apiServer is the release of the API server above a kubelet: the newest, as in an upgrade, which begins with it. It
// may be three releases newer.
func (k kind) apiServer() string {
	if k.release == kubelet130 {
		return k.release
	}
	return kubelet137
}

// mountsImages reports whether the node has image volumes: by default from kubelet 1.35 and containerd 2.1 on.
func (k kind) mountsImages() bool { return k.verifiesItself() && k.runtime == containerd24 }

// verifiesItself reports whether the kubelet verifies credentials itself, unless it is configured not to.
func (k kind) verifiesItself() bool { return k.release == kubelet136 || k.release == kubelet137 }

// sendsTokens reports whether the kubelet sends tokens of service accounts to credential providers, by default from
// 1.34 on.
func (k kind) sendsTokens() bool { return k.release != kubelet130 }

func (k kind) String() string {
	if k.source {
		return k.release + "/" + k.runtime + "/source"
	}
	return k.release + "/" + k.runtime
}

// atOnce is how many nodes run at once: with more, two cores are too slow for the scenarios.
const atOnce = 3

// TestNode runs the scenarios on nodes side by side. Environment variables select: KUBELET and RUNTIME the nodes by a
// pattern, SCENARIO the scenarios by a pattern of their names ("control" always runs). With neither of the first two,
// NODES=matrix selects all nodes but the main ones, and nothing selects these.
func TestNode(t *testing.T) {
	kubelet, runtime, matrix := os.Getenv("KUBELET"), os.Getenv("RUNTIME"), os.Getenv("NODES") == "matrix"
	turns, chosen := make(chan struct{}, atOnce), 0
	var all sync.WaitGroup
	var ran atomic.Int64
	for _, k := range nodes() {
		switch {
		case kubelet+runtime == "" && k.isMain() == matrix:
			continue
		case !whole(kubelet).MatchString(k.release) || !whole(runtime).MatchString(k.runtime):
			continue
		}
		chosen++
		turns <- struct{}{}
		all.Go(func() {
			t.Run(k.String(), func(t *testing.T) {
				m := newMachine(t, k)
				testNode(t, m)
				ran.Add(int64(m.ran))
			})
			<-turns
		})
	}
	all.Wait()
	if ran.Load() == 0 && !t.Failed() {
		t.Errorf("SCENARIO=%s matches no scenario on the nodes", os.Getenv("SCENARIO"))
	}
	if chosen == 0 {
		t.Errorf("KUBELET=%s RUNTIME=%s selects no node; there are %v", kubelet, runtime, nodes())
	}
}

// whole returns the pattern for a whole name; the empty one matches every name.
func whole(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^(?:" + cmp.Or(pattern, ".*") + ")$")
}

type testCase struct {
	name string
	run  func(*scenario)
}

// testNode runs the scenarios of one node.
// Shows: 001-26
func testNode(t *testing.T, m *machine) {
	t.Helper()
	m.protectInUse(t)
	switch {
	case m.runtime == asCRIO:
		m.asCRIO(t)
	case m.source:
		m.withPodSource(t)
	default:
		m.scenarios(t)
	}
	page, err := m.gate.Scrape()
	testkit.Must(t, errors.Join(err, node.Leaks(m.gate.Dir(), page)))
}

// scenarios runs them without the pod source, and then with it unless another node does.
func (m *machine) scenarios(t *testing.T) {
	t.Helper()
	m.runParallel(t, "together", m.together())
	// These test cases affect the whole node.
	first := m.firstOfKubelet() || everyPair()
	m.runIf(t, m.isMain(), testCase{"expiry", expiry}, testCase{"bypassed", bypassed})
	m.runIf(t, first, testCase{"access", access})
	m.runIf(t, first, testCase{"policies", policies}, testCase{"restrictions", restrictions}, testCase{"reviews", reviews})
	m.runIf(t, first, testCase{"signatures", signatures})
	m.runIf(t, m.isMain(), testCase{"digests", digests})
	newest := m.mountsImages() && m.firstOfKubelet()
	m.runIf(t, newest || everyPair(), testCase{"signed-restarts", signedRestarts}, testCase{"scanned", scanned})
	m.runIf(t, first, testCase{"restarts", restarts}, testCase{"restricted-restarts", restrictedRestarts})
	m.runIf(t, m.isMain(), testCase{"hook-restarts", hookRestarts})
	m.runIf(t, first, testCase{"kills", kills}, testCase{"static", static}, testCase{"node-credentials", nodeCredentials})
	m.runIf(t, first && m.sendsTokens(), testCase{"service-accounts", serviceAccounts})
	if first && !slices.Contains(nodes(), kind{m.release, m.runtime, true}) {
		m.withPodSource(t)
	}
	m.runIf(t, true, testCase{"collected", collected}) // takes what is preloaded with it
	m.runIf(t, newest, testCase{"views", views})       // ends the node: the kubelet gets another runtime
}

// protectInUse runs the scenarios without pullgate, and installs it.
func (m *machine) protectInUse(t *testing.T) {
	t.Helper()
	// At first nothing protects it.
	testkit.Must(t, m.unprotected(t.Context()))
	m.needs(t, testCase{"control", controlWithoutPullgate},
		"without pullgate no pod used an image of another tenant: the other results prove nothing")

	// Then pullgate is installed, beside images that are on the node by then.
	m.needs(t, testCase{"installed", installed}, "without pullgated before the kubelet the rest is not protected")
	m.runIf(t, !m.source, testCase{"preloaded", preloaded})
}

// needs runs a test case without which the following ones say nothing, whatever SCENARIO selects.
func (m *machine) needs(t *testing.T, one testCase, why string) {
	t.Helper()
	if !t.Run(one.name, func(t *testing.T) { m.begin(t, one.name, one.run) }) {
		t.Fatal(why)
	}
}

// asCRIO runs scenarios with repo digests as answers to pulls, then, with the pod source, with image IDs.
func (m *machine) asCRIO(t *testing.T) {
	t.Helper()
	m.runParallel(t, "together", m.together())
	m.crio.PullAnswersID.Store(true)
	m.needs(t, testCase{"sourced", sourced}, "without the pod source the rest is the same again")
	m.runIf(t, true, testCase{"tenants-source", tenants})
}

// everyPair reports whether every pair of kubelet and containerd runs all of its tests. Otherwise policies, restarts,
// kills, static pods and node credentials run on the first node of each kubelet: both containerds are among these. With
// the pod source, what the kubelet sends matters less: those of 1.34 and 1.37 run them.
func everyPair() bool { return os.Getenv("EVERY_PAIR") != "" }

// withPodSource switches the pod source on and runs the test cases again, and those that need it.
func (m *machine) withPodSource(t *testing.T) {
	t.Helper()
	m.needs(t, testCase{"sourced", sourced}, "without the pod source the rest is the same again")
	again := append(m.together(), testCase{"exactly", exactly}, testCase{"rotation", rotation})
	for i := range again {
		again[i].name += "-source"
	}
	m.runParallel(t, "together-source", again)
	m.runIf(t, m.isMain(), testCase{"expiry-source", expiry})
	m.runIf(t, m.release == kubelet130, testCase{"reviews-source", reviews})
	m.runIf(t, m.isMain(), testCase{"access-source", access})
	m.runIf(t, m.release != kubelet130 || everyPair(), testCase{"policies-source", policies},
		testCase{"restrictions-source", restrictionsOfSource}, testCase{"restarts-source", restarts},
		testCase{"kills-source", kills}, testCase{"static-source", static})
	m.runIf(t, true, testCase{"restarted-kubelet", restartedKubelet}, testCase{"api-server-outage", apiServerOutage})
	m.runIf(t, m.sendsTokens(), testCase{"service-accounts-source", serviceAccounts})
}

func (m *machine) runIf(t *testing.T, on bool, all ...testCase) {
	t.Helper()
	for _, one := range all {
		if on {
			m.run(t, one)
		}
	}
}

func (m *machine) runParallel(t *testing.T, name string, all []testCase) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for _, one := range all {
			m.run(t, testCase{one.name, func(s *scenario) {
				s.Parallel()
				one.run(s)
			}})
		}
	})
}

func (m *machine) together() []testCase {
	all := []testCase{
		{"tenants", tenants},
		{"public", public},
		{"tags", tags},
		{"outage", outage},
		{"crash-loop", crashLoop},
		{"several-containers", severalContainers},
		{"ephemeral", ephemeral},
		{"users", users},
	}
	if m.mountsImages() {
		all = append(all, testCase{"image-volumes", imageVolumes})
	}
	return all
}

func (m *machine) run(t *testing.T, one testCase) {
	t.Helper()
	if !m.wanted.MatchString(one.name) {
		return
	}
	m.ran++
	t.Run(one.name, func(t *testing.T) { m.begin(t, one.name, one.run) })
}

func (m *machine) begin(t *testing.T, name string, f func(*scenario)) {
	t.Helper()
	s := &scenario{T: t, machine: m, name: name}
	t.Cleanup(s.dropAll)
	f(s)
}
