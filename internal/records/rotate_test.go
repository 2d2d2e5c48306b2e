package records_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

const carol = credential.ID("ca201")

func secret(uid, namespace, name string) records.SecretRef {
	return records.SecretRef{UID: uid, Namespace: namespace, Name: name}
}

// Shows: 001-27
func TestRotateReplacesWhatTheSecretProved(t *testing.T) {
	proof := func(id credential.ID, first, last, used int, from ...records.SecretRef) records.Proof {
		return records.Proof{Credential: id, Secrets: from, FirstProved: at(first), LastProved: at(last), LastUsed: at(used)}
	}
	rotated := func(p records.Proof, from ...credential.ID) records.Proof {
		p.RotatedFrom, p.Namespace = from, pull.Namespace
		return p
	}
	type pulled struct {
		by      credential.ID
		secrets []records.SecretRef
	}
	twin := secret("u2", "team-b", "other")
	by := func(id credential.ID, secrets ...records.SecretRef) pulled { return pulled{id, secrets} }
	pulls := func(all ...pulled) []pulled { return all }
	proofs := func(all ...records.Proof) []records.Proof { return all }
	alone, unchanged := pulls(by(alice, pull)), proofs(proof(alice, 0, 0, 0, pull))
	for name, tc := range map[string]struct {
		pulls   []pulled // one after the other, at 0, 1, …
		secret  records.SecretRef
		to      credential.ID
		rotated bool
		want    []records.Proof
	}{
		"its old credential": {alone, pull, bob, true, proofs(rotated(proof(bob, 0, 0, 9, pull), alice))},
		"others stay": {
			pulls(by(alice, pull), by(carol, twin), by("none")), pull, bob, true,
			proofs(proof(carol, 1, 1, 1, twin), proof("none", 2, 2, 2), rotated(proof(bob, 0, 0, 9, pull), alice)),
		},
		"a credential that another Secret holds too": {
			pulls(by(alice, pull, twin)), pull, bob, true,
			proofs(proof(alice, 0, 0, 0, twin), rotated(proof(bob, 0, 0, 9, pull), alice)),
		},
		"two of its credentials": {
			pulls(by(alice, pull), by(carol, pull)), pull, bob, true, proofs(rotated(proof(bob, 1, 1, 9, pull), carol)),
		},
		"by one that proved access itself, later": {
			pulls(by(alice, pull), by(bob)), pull, bob, true, proofs(proof(bob, 1, 1, 9, pull)),
		},
		"by one that proved access itself, earlier": {
			pulls(by(bob), by(alice, pull)), pull, bob, true, proofs(proof(bob, 0, 0, 9, pull)),
		},
		"not for another uid":       {alone, secret("u9", pull.Namespace, pull.Name), bob, false, unchanged},
		"not for another namespace": {alone, secret(pull.UID, "team-b", pull.Name), bob, false, unchanged},
		"not for another name":      {alone, secret(pull.UID, pull.Namespace, "other"), bob, false, unchanged},
		"not for no Secret": {
			pulls(by(alice, records.SecretRef{})),
			records.SecretRef{},
			bob, false,
			proofs(proof(alice, 0, 0, 0, records.SecretRef{})),
		},
		"not by no credential": {alone, pull, "", false, unchanged},
		"not without a change": {alone, pull, alice, false, unchanged},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t, newPath(t), records.Options{})
			p := pair(id1, app)
			for i, by := range tc.pulls {
				prove(t, s, records.Result{Pair: p, Credential: by.by, Secrets: by.secrets, At: at(i)})
			}
			got, err := s.Rotate(records.Rotation{Pair: p, Secret: tc.secret, Credential: tc.to, At: at(9)})
			if got != tc.rotated || err != nil {
				t.Errorf("Rotate = %v, %v; want %v, nil", got, err, tc.rotated)
			}
			testkit.Equal(t, "proofs", lookup(t, s, p).Record.Proofs, tc.want)
		})
	}
}

// The store notes another Secret that contains a proved credential, up to a limit, so that the rotation of that Secret
// needs no registry either.
func TestTouchNotesSecrets(t *testing.T) {
	s, _ := open(t, newPath(t), records.Options{})
	p := pair(id1, app)
	prove(t, s, records.Result{Pair: p, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(0)})
	for i := range records.MaxSecrets {
		err := s.Touch(map[records.Pair]records.Use{p: {
			At: at(i), Credentials: map[credential.ID]time.Time{alice: at(i)},
			Secrets: map[credential.ID][]records.SecretRef{alice: {secret(fmt.Sprint(i), "n", "s"), pull}, bob: {pull}},
		}})
		testkit.Must(t, err)
	}
	got := lookup(t, s, p).Record.Proofs
	if len(got) != 1 || len(got[0].Secrets) != records.MaxSecrets || got[0].LastUsed != at(records.MaxSecrets-1) {
		t.Fatalf("proofs = %+v; want one with %d Secrets", got, records.MaxSecrets)
	}
	to := records.Rotation{Pair: p, Secret: secret("7", "n", "s"), Credential: bob, At: at(1)}
	if rotated, err := s.Rotate(to); !rotated || err != nil {
		t.Errorf("Rotate of a Secret that was noted = %v, %v; want true, nil", rotated, err)
	}
}
