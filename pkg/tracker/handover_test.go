package tracker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// handOver restarts the world like an orderly stop and a start, and changes the store between them.
func (w *world) handOver(between func(s *records.Store), change func(string) string) (int, error) {
	w.t.Helper()
	data, err := w.HandOver()
	testkit.Must(w.t, err)
	w.close()
	s, _, err := records.Open(w.path, records.Options{})
	testkit.Must(w.t, err)
	between(s)
	testkit.Must(w.t, s.Close())
	w.open()
	return w.TakeOver([]byte(change(string(data))))
}

func TestGrantsAreHandedOverWithTheirDependencies(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	img := image(id1, app+":1")
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.want(w.check(pod("carol"), app+":1", img, "alice"), policy.Allow, policy.Proved)
	n, err := w.handOver(func(*records.Store) {}, func(s string) string { return s })
	if n != 2 || err != nil || w.Grants() != 2 {
		t.Fatalf("TakeOver = %d, %v with %d grants; want both", n, err, w.Grants())
	}
	w.want(w.check(pod("alice"), app+":1", img), policy.Allow, policy.Granted)
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)
	if got := w.revokeCredential("alice"); len(got.Grants) != 2 ||
		w.Grants() != 0 {
		t.Errorf("the revocation of the credential ended %v, %d grants are left; want both ended", got.Grants, w.Grants())
	}
}

func TestGrantsThatMayBeStaleAreNotTakenOver(t *testing.T) {
	nothing := func(*records.Store) {}
	same := func(s string) string { return s }
	for name, tc := range map[string]struct {
		between func(s *records.Store)
		change  func(string) string
	}{
		"something was revoked": {func(s *records.Store) {
			testkit.Value(s.Revoke(records.Revocation{Repository: app}, time.Now(), nil, false))(t)
		}, same},
		"something was written":    {func(s *records.Store) { testkit.Must(t, s.Trust()) }, same},
		"they are of another form": {nothing, strings.NewReplacer(`"version":1`, `"version":2`).Replace},
		"they are cut off":         {nothing, func(s string) string { return s[:len(s)-3] }},
		"they are empty":           {nothing, func(string) string { return "" }},
		"they are nothing":         {nothing, func(string) string { return "{}" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{VerifyUntracked: true})
			w.pulled(pod("alice"), app+":1", id1, "alice")
			if n, err := w.handOver(tc.between, tc.change); err == nil || n != 0 || w.Grants() != 0 {
				t.Errorf("TakeOver = %d, %v with %d grants; want an error and none", n, err, w.Grants())
			}
		})
	}
}
