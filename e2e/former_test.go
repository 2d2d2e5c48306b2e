package e2e_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// A node can go back to the version before endorsements, with all its proofs, as long as it has none or once they are
// revoked. That version does not open a store with endorsements, and does not change it.
func TestStoreOpensInTheVersionBeforeEndorsements(t *testing.T) {
	on(t, storeOpensInTheVersionBeforeEndorsements, debian)
}

func storeOpensInTheVersionBeforeEndorsements(t runtimeTest) {
	dir, err := release.Former(t.Context())
	if errors.Is(err, release.ErrNoHistory) {
		t.Skip(err) // nothing can install it: it was never released
	}
	if err != nil {
		t.Fatal(err)
	}
	now, err := node.Program("pullgated")
	if err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(dir, "pullgated")
	const folder, noPolicies = "former", "admission: {policies: \"\"}"
	r := beginSigned(t, folder)
	app, signed := r.private("unsigned/app:1", node.Image{}), r.private(folder+"/app:1", node.Image{})
	r.sign(signed)
	use := func(program string, settings ...string) error {
		r.must(r.gate.Stop())
		r.must(r.gate.Configure(settings...))
		r.gate.Use(program)
		return r.gate.Start(t.Context())
	}
	proofs := func() {
		t.Helper()
		r.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
		r.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		r.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
	}
	store := filepath.Join(r.gate.Dir(), "state", "records.db")

	r.must(use(former, noPolicies))
	r.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	r.must(use(now, r.settings...))
	proofs()
	r.must(use(former, noPolicies))
	proofs()

	r.must(use(now, r.settings...))
	r.run(pod("team-a", signed, node.IfNotPresent, node.Alice()), signed, node.Running, -1)
	r.must(r.gate.Stop())
	content, err := os.ReadFile(store)
	r.must(err)
	if err := use(former, noPolicies); err == nil || !strings.Contains(err.Error(), "written by a newer version") {
		t.Fatalf("start of the version before endorsements on a store with one: %v; want a refusal", err)
	}
	if after, err := os.ReadFile(store); err != nil || !bytes.Equal(after, content) {
		t.Errorf("the version before endorsements changed the store (%v)", err)
	}

	r.must(use(now, noPolicies))
	ctl, err := node.Program("pullgatectl")
	r.must(err)
	_, err = host.Run(t.Context(), ctl, "endorsement", "revoke", "--all", "--yes", "--endpoint", "unix://"+filepath.Join(r.gate.Dir(), "admin.sock"))
	r.must(err)
	r.must(use(former, noPolicies))
	proofs()
}
