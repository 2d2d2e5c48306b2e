package records_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// With one valid credential, a tenant can create many Secrets and then put junk into each of them. That must neither
// make the record grow without limit nor evict the proofs of others.
func TestRotationNeitherGrowsARecordNorPushesOthersOut(t *testing.T) {
	s, _ := open(t, newPath(t), records.Options{})
	p := pair(id1, app)
	prove(t, s, records.Result{Pair: p, Credential: bob, At: at(0)}) // never used again
	prove(t, s, records.Result{Pair: p, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(1)})
	refused := 0
	for i := range 2 * records.MaxProofs {
		own := secret(fmt.Sprintf("m%d", i), "team-m", "own")
		err := s.Touch(map[records.Pair]records.Use{p: {
			At: at(2), Credentials: map[credential.ID]time.Time{alice: at(2)},
			Secrets: map[credential.ID][]records.SecretRef{alice: {own}},
		}})
		testkit.Must(t, err)
		to := records.Rotation{Pair: p, Secret: own, Credential: credential.ID(fmt.Sprintf("%04x", i)), At: at(3)}
		if !testkit.Value(s.Rotate(to))(t) {
			refused++
		}
	}
	proofs := lookup(t, s, p).Record.Proofs
	if len(proofs) > records.MaxProofs || refused == 0 {
		t.Errorf("%d proofs, %d rotations refused; want at most %d proofs", len(proofs), refused, records.MaxProofs)
	}
	left := map[credential.ID]bool{}
	for _, p := range proofs {
		left[p.Credential] = true
	}
	if !left[bob] || !left[alice] {
		t.Errorf("bob's and alice's proofs are there: %v, %v; want both, no other rotation removes them", left[bob],
			left[alice])
	}
	// A credential that replaces its own proof needs no room.
	to := records.Rotation{Pair: p, Secret: secret("m0", "team-m", "own"), Credential: carol, At: at(4)}
	if rotated, err := s.Rotate(to); !rotated || err != nil {
		t.Errorf("Rotate in a full record = %v, %v; want true, nil", rotated, err)
	}
}

// If every pull goes to the registry, a changed Secret proves itself by a pull, and no rotation is needed. Then, too,
// its old content must not count any more: the Secret may have been changed because the old content had leaked.
func TestPullWithANewCredentialOfTheSecretRemovesTheOldOne(t *testing.T) {
	s, _ := open(t, newPath(t), records.Options{})
	p, twin := pair(id1, app), secret("u2", "team-b", "twin")
	prove(t, s, records.Result{Pair: p, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(0)})
	prove(t, s, records.Result{Pair: p, Credential: carol, Secrets: []records.SecretRef{pull, twin}, At: at(1)})
	prove(t, s, records.Result{Pair: p, Credential: "none", At: at(2)})
	prove(t, s, records.Result{Pair: p, Credential: bob, Secrets: []records.SecretRef{pull}, At: at(3)})
	var got []string
	for _, p := range lookup(t, s, p).Record.Proofs {
		got = append(got, fmt.Sprint(p.Credential, len(p.Secrets)))
	}
	want := []string{fmt.Sprint(carol, 1), fmt.Sprint("none", 0), fmt.Sprint(bob, 1)}
	testkit.Equal(t, "proofs with their number of Secrets", got, want)
}
