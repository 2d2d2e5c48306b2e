package gate_test

import (
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// accountName is the name of the only service account of each tenant.
const accountName = "app"

// A modelAccount is a service account, for which a credential provider gives out tokens.
type modelAccount struct {
	uid    string
	tokens []string // the newest last
}

// A given says for which account a token was given out.
type given struct{ namespace, uid string }

// proves returns what a proof of the account has in the place of a password.
func (g given) proves() string { return "account " + g.uid }

func (g given) ref() secretRef {
	ref, _ := records.OfAccount(g.namespace, accountName, g.uid)
	return ref
}

// accountsOf are the reports of the credential provider to this process.
func (w *modelWorld) accountsOf(_ string, id credential.ID) []tracker.Secret {
	w.givenMu.Lock()
	defer w.givenMu.Unlock()
	for token, g := range w.given {
		if w.key.ID(credential.New(credential.Login{Username: "tenant", Password: token})) == id {
			account, _ := tracker.OfAccount(w.key, g.namespace, accountName, g.uid)
			return []tracker.Secret{account}
		}
	}
	return nil
}

// bound returns the account for which a pull of a pod proves access: the credential was given out for it, and as far as
// the gate can know, the pod has this account.
func (w *modelWorld) bound(p *modelPod, password string) (g given, ok bool) {
	w.givenMu.Lock()
	defer w.givenMu.Unlock()
	g, ok = w.given[password]
	ok = ok && p.source == "api" && g.namespace == p.namespace &&
		(!w.podSource || w.accounts[p.namespace].uid == g.uid)
	return g, ok
}

// proving returns what a pull of a pod with a password proves access for.
func (w *modelWorld) proving(p *modelPod, password string) string {
	if g, ok := w.bound(p, password); ok {
		return g.proves()
	}
	return password
}

// account returns the account of a pod, if the gate can know it.
func (w *modelWorld) account(p *modelPod) (g given, ok bool) {
	if !w.podSource || p == nil || p.source != "api" || w.accounts[p.namespace] == nil {
		return g, false
	}
	return given{p.namespace, w.accounts[p.namespace].uid}, true
}

// give lets the kubelet ask the provider for a token of a namespace's account.
func (w *modelWorld) give(namespace string) {
	w.passwords++
	token := fmt.Sprintf("%s-token-%d", namespace[:1], w.passwords)
	a := w.accounts[namespace]
	a.tokens = append(a.tokens, token)
	w.direct(func() { w.runtime.passwords[token] = true })
	w.report(namespace, token)
}

// report tells this process for which account a token is.
func (w *modelWorld) report(namespace, token string) {
	w.givenMu.Lock()
	defer w.givenMu.Unlock()
	uid := w.accounts[namespace].uid
	for other, g := range w.given {
		if g.namespace == namespace && g.uid != uid {
			delete(w.given, other)
		}
	}
	w.given[token] = given{namespace, uid}
}

// changeAccount rotates the token of an account, lets its tokens end at the registry, or deletes it and creates it
// again.
func (w *modelWorld) changeAccount(o op) {
	namespace := [...]string{"alice", "bob"}[o.pod%2]
	a := w.accounts[namespace]
	switch o.n % 6 {
	case 0: // as after a restart of the kubelet
		w.report(namespace, a.tokens[len(a.tokens)-1])
		return
	case 1:
		w.uids++
		a.uid = fmt.Sprintf("account-%d-%s", w.uids, namespace)
		if o.other%2 == 0 {
			return // the kubelet has not asked for a token yet; a tenant can still send the earlier ones
		}
		a.tokens = nil
	case 2, 3:
		w.direct(func() {
			for _, token := range a.tokens {
				delete(w.runtime.passwords, token)
			}
		})
	}
	w.give(namespace)
	a.tokens = slices.Clip(a.tokens[max(0, len(a.tokens)-3):])
}
