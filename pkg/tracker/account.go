package tracker

import (
	"context"
	"slices"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// OfAccount returns the credential of a service account: one for all that credential providers give out for it. So its
// proofs survive the rotation of a token, and end with the UID of the account. ok is false for an invalid account.
func OfAccount(k credential.Key, namespace, name, uid string) (s Secret, ok bool) {
	ref, ok := records.OfAccount(namespace, name, uid)
	if !ok {
		return Secret{}, false
	}
	return Secret{Credential: k.AccountID(namespace, name, uid), Ref: ref}, true
}

// isAccount reports whether s is the credential of a service account.
func (s Secret) isAccount() bool {
	_, ok := s.Ref.Account()
	return ok
}

// Bound returns the service accounts of the pod's namespace to which credential providers have bound what is sent. A
// static pod has none, and a credential that the node offers to every pod, or had lately, is bound to none.
func (t *Tracker) Bound(ctx context.Context, s Sent, p Pod, repository string) []Secret {
	o := &t.options
	if o.AccountsOf == nil || s.id == "" || s.namespace != "" || p.Namespace == "" || p.Static {
		return nil
	}
	all := slices.DeleteFunc(o.AccountsOf(repository, s.id), func(s Secret) bool {
		return !s.isAccount() || s.Ref.Namespace != p.Namespace
	})
	if len(all) == 0 || o.NodeHolds != nil && o.NodeHolds(ctx, s.id) {
		return nil
	}
	return all
}

// SentBy returns what is sent for a service account in place of the credential that a provider gave out for it.
func SentBy(account Secret) Sent { return Sent{account.Credential, "", true} }

// HasAccounts reports whether a service account may have proved access to an image. It does not become false.
func (t *Tracker) HasAccounts() bool { return t.accounts.Load() }

func (t *Tracker) noteAccounts(from []records.SecretRef) {
	if slices.ContainsFunc(from, func(s records.SecretRef) bool { return Secret{Ref: s}.isAccount() }) {
		t.accounts.Store(true)
	}
}

func (t *Tracker) findAccounts() error {
	images, err := t.store.Images()
	for _, i := range images {
		for _, r := range i.Records {
			for _, p := range r.Proofs {
				t.noteAccounts(p.Secrets)
			}
		}
	}
	return err
}

// Considered returns those of the pod's credentials that count: the first credential.MaxOffers, and a service account
// before them.
func Considered(all []Secret) []Secret {
	limit := credential.MaxOffers
	if len(all) > 0 && all[0].isAccount() {
		limit++
	}
	return all[:min(len(all), limit)]
}
