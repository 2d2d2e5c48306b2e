package gate_test

import (
	"context"
	"errors"
	"slices"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// accept lets an operator accept the selected images as preloaded.
func (w *modelWorld) accept(o op, name string) {
	present := w.presentPairs()
	a := tracker.Acceptance{Selection: w.selection(o, name), IncludingProved: o.n/4%2 == 0}
	if _, err := w.tracker.AcceptMarks(context.Background(), a); err != nil {
		return
	}
	w.counts["accepted"]++
	for _, p := range present {
		byName := o.n%4 != 0 // independent of what is recorded for it
		if !covers(o, name, p) || !byName && !w.truth.named[p] {
			continue
		}
		if byName {
			delete(w.truth.present, p)
		}
		w.truth.brought(p, true)
	}
}

// forget lets an operator remove marks.
func (w *modelWorld) forget(o op, name string) {
	gone, err := w.tracker.ForgetMarks(context.Background(), w.selection(o, name), false)
	w.must(err)
	w.truth.forgotten(func(p pair) bool { // an image that no scan has found has no mark yet
		return slices.ContainsFunc(gone.Marks, func(m records.Mark) bool {
			return contentOf(m.Pair.ImageID) == p.content && m.Pair.Repository == p.repository
		})
	})
}

// trust lets an operator end the distrust of the store. The operator takes responsibility for the runtime's actions
// before the store was lost.
func (w *modelWorld) trust() {
	w.lateAll()
	present := w.presentPairs()
	_, _, err := w.tracker.EndDistrust(context.Background(), false)
	if errors.Is(err, tracker.ErrTrusted) {
		return
	}
	w.must(err)
	w.counts["distrust ended"]++
	w.scanned = len(w.waiting) == 0 // else the next scan is like the very first one
	for _, p := range present {
		w.truth.brought(p, true)
	}
}

func (w *modelWorld) presentPairs() (all []pair) {
	w.direct(func() {
		for c, names := range w.runtime.images {
			for n := range names {
				if p := (pair{c, repositoryOf(n)}); !slices.Contains(all, p) {
					all = append(all, p)
				}
			}
		}
	})
	return all
}

// selection returns the operator's selection for opAccept and opForget.
func (*modelWorld) selection(o op, name string) records.Selection {
	switch o.n % 4 {
	case 0:
		return records.Selection{All: true}
	case 1:
		return records.Selection{Repository: repositoryOf(name)}
	case 2:
		return records.Selection{ImageID: o.content.id()}
	default:
		return records.Selection{ImageID: o.content.id(), Repository: repositoryOf(name)}
	}
}

func covers(o op, name string, p pair) bool {
	switch o.n % 4 {
	case 0:
		return true
	case 1:
		return p.repository == repositoryOf(name)
	case 2:
		return p.content == o.content
	default:
		return p == pair{o.content, repositoryOf(name)}
	}
}

// revoke lets an operator revoke something.
func (w *modelWorld) revoke(o op, repository string) {
	ns := [...]string{"alice", "bob"}[o.pod%2]
	var r revocation
	var by records.Revocation
	id := func(password string) credential.ID {
		return w.key.ID(credential.New(credential.Login{Username: "tenant", Password: password}))
	}
	secret := w.secrets[ns][0]
	switch o.n % 8 {
	case 0:
		r.repository, by.Repository = repository, repository
	case 1:
		r.content, by.ImageID = o.content, o.content.id()
	case 2:
		r.password = ns[:1] + "0"
	case 3:
		r.password = secret.password
	case 4:
		r.secret = secretRef{UID: secret.uid, Namespace: ns, Name: "pull-0"}
	case 5:
		r.secret = secretRef{Namespace: ns}
	case 6:
		r.password = "junk"
	case 7:
		r.secret = given{ns, w.accounts[ns].uid}.ref()
	}
	if r == (revocation{}) { // of no image
		return
	}
	if r.password != "" {
		by.Credential = id(r.password)
	}
	by.Secret = r.secret
	gone, err := w.tracker.Revoke(context.Background(), tracker.Revocation{Revocation: by})
	w.must(err)
	w.counts["revoked"]++
	w.truth.revoked(r, len(gone.Proofs)+len(gone.Closed)+len(gone.Grants) > 0)
	w.unlive(func(p pair, password string) bool { return r.covers(p) })
}
