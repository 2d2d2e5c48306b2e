package records_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/records"
)

// pull is the Secret that contains alice's credential.
var pull = records.SecretRef{UID: "u1", Namespace: "team-a", Name: "pull"}

// A scenario is a sequence of steps for one pair, with the expected state after each step.
type scenario struct {
	name   string
	steps  []func(s *records.Store, p records.Pair, intent *records.Intent) error
	states []string
}

func scenarios() []scenario {
	type step = func(s *records.Store, p records.Pair, intent *records.Intent) error
	begin := func(s *records.Store, p records.Pair, intent *records.Intent) (err error) {
		*intent, err = s.Begin("name", p.Repository, noon())
		return err
	}
	beginWithout := func(s *records.Store, p records.Pair, intent *records.Intent) (err error) {
		*intent, _, err = s.BeginListed("name", p.Repository, noon(), map[string]struct{}{})
		return err
	}
	prove := func(open bool) step {
		return func(s *records.Store, p records.Pair, intent *records.Intent) error {
			return s.Prove(*intent, records.Result{Pair: p, Open: open, Credential: alice, At: noon()})
		}
	}
	proveBySecret := func(s *records.Store, p records.Pair, intent *records.Intent) error {
		return s.Prove(*intent, records.Result{Pair: p, Credential: alice, Secrets: []records.SecretRef{pull}, At: noon()})
	}
	rotate := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		_, err := s.Rotate(records.Rotation{Pair: p, Secret: pull, Credential: bob, At: noon()})
		return err
	}
	revoke := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		_, err := s.Revoke(records.Revocation{Repository: p.Repository}, noon(), nil, false)
		return err
	}
	deny := func(s *records.Store, p records.Pair, intent *records.Intent) error {
		return s.Deny(*intent, records.Denial{Pair: p, Credential: alice, At: noon()})
	}
	drop := func(s *records.Store, _ records.Pair, intent *records.Intent) error { return s.Drop(*intent) }
	end := func(s *records.Store, _ records.Pair, intent *records.Intent) error { return s.End(*intent, noon()) }
	mark := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		_, err := s.MarkPreloaded(records.Scan{Pairs: []records.Pair{p}, Now: noon()})
		return err
	}
	accept := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		_, err := s.AcceptMarks([]records.Pair{p}, "operator", noon(), false)
		return err
	}
	forget := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		_, err := s.ForgetMarks(records.Selection{ImageID: p.ImageID}, noon(), false)
		return err
	}
	endorse := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		return s.Endorse([]records.Endorsement{endorsement(p, signedByTeam), endorsement(p, signedByBoth)}, nil)
	}
	withdraw := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		_, err := s.RevokeEndorsements(records.EndorsementSelection{ImageID: p.ImageID})
		return err
	}
	settle := func(s *records.Store, p records.Pair, intent *records.Intent) error {
		return s.Settle(records.Settlement{Intents: []records.Intent{*intent}, Present: []records.Pair{p}, Now: noon()})
	}
	prune := func(s *records.Store, p records.Pair, _ *records.Intent) error {
		present := map[string]struct{}{}
		known, err := s.Images()
		for _, i := range known {
			present[i.ImageID] = struct{}{}
		}
		endorsed, endorsedErr := s.SelectedEndorsements(records.EndorsementSelection{All: true})
		err = errors.Join(err, endorsedErr)
		for _, e := range endorsed {
			present[e.Pair.ImageID] = struct{}{}
		}
		delete(present, p.ImageID)
		present["sha256:any"] = struct{}{}
		if err == nil {
			_, err = s.Prune(pruning(present, s.Written()))
		}
		return err
	}
	return []scenario{
		{"proved", []step{begin, prove(false)}, []string{"", "1 intent", "record a11ce"}},
		{"opened", []step{begin, prove(true)}, []string{"", "1 intent", "record open"}},
		{"proved then opened", []step{begin, prove(false), begin, prove(true)}, []string{
			"", "1 intent", "record a11ce", "record a11ce 1 intent", "record open a11ce",
		}},
		{"rotated", []step{begin, proveBySecret, rotate}, []string{"", "1 intent", "record a11ce", "record b0b"}},
		{"revoked", []step{begin, prove(false), revoke}, []string{"", "1 intent", "record a11ce", "record"}},
		{"closed", []step{begin, prove(true), begin, prove(false), revoke}, []string{
			"", "1 intent", "record open", "record open 1 intent", "record open a11ce", "record",
		}},
		{"denied", []step{begin, prove(false), begin, deny}, []string{
			"", "1 intent", "record a11ce", "record a11ce 1 intent", "record a11ce denied",
		}},
		{"dropped", []step{begin, drop}, []string{"", "1 intent", ""}},
		{"lost", []step{begin, end, settle}, []string{"", "1 intent", "1 intent ended", "record"}},
		{"preloaded", []step{mark, begin, settle}, []string{"", "marked", "marked 1 intent", "marked"}},
		{"accepted", []step{begin, prove(false), accept}, []string{"", "1 intent", "record a11ce", "record a11ce marked"}},
		{"forgotten", []step{mark, forget}, []string{"", "marked", "record"}},
		{"forgotten, never marked again", []step{accept, forget, mark}, []string{"", "marked", "record", "record"}},
		{"forgotten, proof kept", []step{mark, begin, prove(false), forget}, []string{
			"", "marked", "marked 1 intent", "record a11ce marked", "record a11ce",
		}},
		{"unmarked by a pull", []step{mark, beginWithout, prove(false)}, []string{"", "marked", "1 intent", "record a11ce"}},
		{"unmarked", []step{mark, prune}, []string{"", "marked", ""}},
		{"pruned", []step{begin, prove(true), prune}, []string{"", "1 intent", "record open", ""}},
		{"endorsed", []step{begin, prove(false), endorse}, []string{"", "1 intent", "record a11ce", "record a11ce endorsed"}},
		{"endorsement revoked", []step{endorse, withdraw}, []string{"", "endorsed", ""}},
		{"endorsement pruned", []step{begin, endorse, prove(true), prune}, []string{
			"", "1 intent", "1 intent endorsed", "record open endorsed", "",
		}},
	}
}

func scenarioPair(name string, round int) records.Pair {
	return pair(fmt.Sprintf("sha256:%s-%d", name, round), fmt.Sprintf("repo.test/%s/%d", name, round))
}

// state returns the state of a pair in the store as text.
func state(t *testing.T, s *records.Store, p records.Pair) string {
	t.Helper()
	f := lookup(t, s, p)
	words := strings.Fields(strings.ReplaceAll(said(f), " of "+p.ImageID+" in "+p.Repository, ""))
	if f.Intents > 0 {
		words = append(words, fmt.Sprintf("%d intent", f.Intents))
	}
	intents, err := s.Intents()
	if err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(intents, func(in records.Intent) bool {
		return in.Repository == p.Repository &&
			!in.Ended.IsZero()
	}) {
		words = append(words, "ended")
	}
	if f.Record != nil && slices.ContainsFunc(f.Record.Proofs, func(p records.Proof) bool { return !p.Denied.IsZero() }) {
		words = append(words, "denied")
	}
	switch n := len(s.Endorsements(p)); {
	case n == 2:
		words = append(words, "endorsed")
	case n != 0:
		words = append(words, "half endorsed")
	}
	return strings.Join(words, " ")
}
