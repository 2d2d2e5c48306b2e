// Package kubelets_test tells stories of tenants on nodes that run real kubelets before pullgated,
// before a real containerd. Pods come through a real API server; what becomes of them is read from
// their status and events, from containerd and from the registry's access log.
package kubelets_test

import (
	"cmp"
	"os"
	"regexp"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// A kind of node: which kubelet in front of which runtime.
type kind struct{ kubelet, runtime string }

// mainNode is the one on which every scenario runs, with and without the pod source: that of `make e2e`. The others, of
// `make matrix`, run what depends on their kubelet and runtime.
func mainNode() kind { return kind{kubelet134, containerd16} }

// nodes are all kinds of nodes, the slowest first.
func nodes() []kind {
	return []kind{
		{kubelet130, containerd24}, {kubelet136, containerd24}, mainNode(), {kubelet130, containerd16}, {kubelet134, containerd24}, {kubelet136, containerd16}, {kubelet134, asCRIO},
	}
}

// TestNode runs the scenarios on nodes side by side. Environment variables select: KUBELET and RUNTIME the nodes by a pattern, SCENARIO
// the scenarios by a pattern of their names ("hole" always runs). With neither of the first two, NODES=matrix selects all nodes but
// mainNode, and nothing selects mainNode.
func TestNode(t *testing.T) {
	kubelet, runtime, matrix := os.Getenv("KUBELET"), os.Getenv("RUNTIME"), os.Getenv("NODES") == "matrix"
	chosen := 0
	for _, k := range nodes() {
		switch {
		case kubelet+runtime == "" && (k == mainNode()) == matrix:
			continue
		case !whole(kubelet).MatchString(k.kubelet) || !whole(runtime).MatchString(k.runtime):
			continue
		}
		chosen++
		t.Run(k.kubelet+"/"+k.runtime, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, k.kubelet, k.runtime)
			if k.runtime == asCRIO {
				lifeAsCRIO(t, m)
				return
			}
			life(t, m)
		})
	}
	if chosen == 0 {
		t.Errorf("KUBELET=%s RUNTIME=%s selects no node; there are %v", kubelet, runtime, nodes())
	}
}

// whole returns the pattern for a whole name; the empty one matches every name.
func whole(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^(?:" + cmp.Or(pattern, ".*") + ")$")
}

// A tale is a story and how it is called.
type tale struct {
	name  string
	story func(*story)
}

// life is the life of one node.
func life(t *testing.T, m *machine) {
	t.Helper()
	// At first nothing protects it.
	must(t, m.unprotected(t.Context()))
	if !t.Run("hole", func(t *testing.T) { m.begin(t, "hole", hole) }) {
		t.Fatal("without the hole the rest proves nothing")
	}
	if m.leads() {
		m.tell(t, tale{"crowd-unprotected", crowdUnprotected})
	}

	// Then pullgate is installed, beside images that are on the node by then.
	if !t.Run("installed", func(t *testing.T) { m.begin(t, "installed", installed) }) {
		t.Fatal("without pullgated before the kubelet the rest is not protected")
	}
	m.tell(t, tale{"preloaded", preloaded})

	m.tellAtOnce(t, "together", m.together())
	// These do something to the whole node.
	if m.leads() {
		m.tell(t, tale{"crowd", crowdProtected})
	}
	if m.expires() {
		m.tell(t, tale{"expiry", expiry})
	}
	m.tell(t, tale{"policies", policies})
	if m.leads() || everyPair() {
		m.tellAll(
			t,
			tale{"restarts", restarts},
			tale{"kills", kills},
			tale{"static", static},
			tale{"node-credentials", nodeCredentials},
		)
	}
	if m.leads() {
		m.askTheAPI(t)
	}
	if m.expires() {
		m.tell(t, tale{"expiry-source", expiry})
	}
	m.tell(t, tale{"collected", collected}) // takes what is preloaded with it
	if m.told == 0 {
		t.Errorf("SCENARIO=%s is the name of no story on this node", m.wanted)
	}
	leaks, err := node.Leaks(m.gate.Dir(), m.page())
	must(t, err)
	for _, l := range leaks {
		t.Error(l)
	}
}

// leads is whether the node is the one of its kubelet that tells also what is a matter of the kubelet alone: crowds,
// and all that has to do with the pod source, which judges before any runtime is asked.
func (m *machine) leads() bool {
	if m.cluster.Release() == kubelet134 {
		return m.runtime == containerd16
	}
	return m.runtime == containerd24
}

// lifeAsCRIO is the life of the node whose runtime answers as CRI-O does: first with a repo digest to each pull, then, with the
// pod source, with an image ID.
func lifeAsCRIO(t *testing.T, m *machine) {
	t.Helper()
	must(t, m.unprotected(t.Context()))
	if !t.Run("hole", func(t *testing.T) { m.begin(t, "hole", hole) }) {
		t.Fatal("without the hole the rest proves nothing")
	}
	if !t.Run("installed", func(t *testing.T) { m.begin(t, "installed", installed) }) {
		t.Fatal("without pullgated before the kubelet the rest is not protected")
	}
	m.tell(t, tale{"preloaded", preloaded})
	m.tellAtOnce(t, "together", m.together())
	m.crio.PullAnswersID.Store(true)
	if !t.Run("sourced", func(t *testing.T) { m.begin(t, "sourced", sourced) }) {
		t.Fatal("without the pod source the rest is the same again")
	}
	m.tell(t, tale{"tenants-source", tenants})
}

// everyPair reports whether every pair of kubelet and containerd runs all of its tests. Otherwise restarts, kills, static pods
// and node credentials run on the node of each kubelet that leads; these nodes have both containerds among them.
func everyPair() bool { return os.Getenv("EVERY_PAIR") != "" }

// expires is whether the node tells the story of proofs that expire, on which it waits long: one does.
func (m *machine) expires() bool { return m.leads() && m.cluster.Release() == kubelet134 }

// askTheAPI is the life of a node from the time on when pullgated asks the API server too: the same stories again,
// and those that need it.
func (m *machine) askTheAPI(t *testing.T) {
	t.Helper()
	if !t.Run("sourced", func(t *testing.T) { m.begin(t, "sourced", sourced) }) {
		t.Fatal("without the pod source the rest is the same again")
	}
	again := append(m.together(), tale{"exactly", exactly}, tale{"rotation", rotation})
	for i := range again {
		again[i].name += "-source"
	}
	m.tellAtOnce(t, "together-source", again)
	m.tellAll(
		t,
		tale{"crowd-source", crowdProtected},
		tale{"policies-source", policies},
		tale{"restarts-source", restarts},
		tale{"kills-source", kills},
		tale{"static-source", static},
		tale{"away", away},
		tale{"strangers", strangers},
	)
}

// tellAll tells stories one after the other.
func (m *machine) tellAll(t *testing.T, all ...tale) {
	t.Helper()
	for _, one := range all {
		m.tell(t, one)
	}
}

// tellAtOnce tells stories side by side.
func (m *machine) tellAtOnce(t *testing.T, name string, all []tale) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for _, one := range all {
			m.tell(t, tale{one.name, func(s *story) {
				s.Parallel()
				one.story(s)
			}})
		}
	})
}

// page is the metrics page of pullgated.
func (m *machine) page() string {
	text, err := m.gate.Scrape()
	if err != nil {
		return err.Error()
	}
	return text
}

// together are the stories that do not disturb each other.
func (m *machine) together() []tale {
	all := []tale{
		{"tenants", tenants},
		{"public", public},
		{"tags", tags},
		{"outage", outage},
		{"crash-loop", crashLoop},
		{"several-containers", severalContainers},
		{"ephemeral", ephemeral},
		{"users", users},
	}
	// No kubelet before 1.35 mounts images by default, and no containerd before 2.1 does.
	if m.cluster.Release() == kubelet136 && m.runtime == containerd24 {
		all = append(all, tale{"image-volumes", imageVolumes})
	}
	return all
}

// tell tells one story, if it is wanted.
func (m *machine) tell(t *testing.T, one tale) {
	t.Helper()
	if !m.wanted.MatchString(one.name) {
		return
	}
	m.told++
	t.Run(one.name, func(t *testing.T) { m.begin(t, one.name, one.story) })
}

// begin tells a story, and takes its pods away at the end.
func (m *machine) begin(t *testing.T, name string, f func(*story)) {
	t.Helper()
	s := &story{T: t, machine: m, name: name}
	t.Cleanup(func() {
		for len(s.kept) > 0 {
			s.drop(s.kept[0])
		}
	})
	f(s)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
