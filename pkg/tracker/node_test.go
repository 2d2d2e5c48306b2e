package tracker_test

import (
	"testing"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// nodeOffers is a node that offers one password for one repository.
type nodeOffers struct {
	repository string
	id         credential.ID
}

func (n *nodeOffers) offers(repository string, id credential.ID) bool {
	return repository == n.repository && id == n.id
}

// nodeWorld is a world with a node that offers "node" for app.
func nodeWorld(t *testing.T) (*world, *nodeOffers) {
	t.Helper()
	n := &nodeOffers{repository: app}
	w := newWorld(t, tracker.Options{NodeOffers: n.offers})
	n.id = w.id("node")
	return w, n
}

func TestNodesCredentialOpensItsRepository(t *testing.T) {
	w, n := nodeWorld(t)
	v := w.pulled(pod("alice"), app+":1", id1, "node")
	w.want(v, policy.Allow, policy.Open)
	if v.Credential != n.id {
		t.Errorf("credential of the verdict = %q; want the node's, for the log", v.Credential)
	}
	w.restart()
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1")), policy.Allow, policy.Open)

	// A rotated token needs no registry. A token that the node offers no longer opens nothing new.
	n.id = w.id("rotated")
	w.want(w.check(pod("carol"), app+":1", image(id1, app+":1"), "rotated"), policy.Allow, policy.Open)
	w.want(w.pulled(pod("alice"), app+":2", id2, "node"), policy.Allow, policy.Proved)
	w.want(w.check(pod("bob"), app+":2", image(id2, app+":2")), policy.Reverify, policy.NotProved)
}

func TestNodesCredentialOpensNoOtherRepository(t *testing.T) {
	w, _ := nodeWorld(t)
	w.want(w.pulled(pod("alice"), "repo.test/other:1", id1, "node"), policy.Allow, policy.Proved)
	w.want(w.check(pod("bob"), "repo.test/other:1", image(id1, "repo.test/other:1")), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1", "repo.test/other:1")), policy.Reverify, policy.Untracked)
}

func TestPodsCredentialOpensNothingOnANodeThatOffersAnother(t *testing.T) {
	w, _ := nodeWorld(t)
	w.want(w.pulled(pod("alice"), app+":1", id1, "alice"), policy.Allow, policy.Proved)
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1"), "bob"), policy.Reverify, policy.NotProved)

	// Until the node's own pull opens it permanently.
	w.want(w.pulled(pod("carol"), app+":1", id1, "node"), policy.Allow, policy.Open)
	w.want(w.pulled(pod("alice"), app+":1", id1, "alice"), policy.Allow, policy.Proved)
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1"), "bob"), policy.Allow, policy.Open)
}
