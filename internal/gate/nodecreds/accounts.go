package nodecreds

import (
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	maxBoundPatterns = 64   // how many patterns of one report about a service account are kept
	maxBound         = 2048 // how many of these reports are kept. Above it, the namespace with the most loses one

	maxBoundFor = 24 * time.Hour // how long a report is kept: nothing shows that the account was deleted
)

// bound is what a credential provider gave out for a service account.
type bound struct {
	account  tracker.Secret
	patterns string
	ring     credential.SealedKeyring
	expiry   time.Time
}

// AddBound notes that a credential provider returned a credential for the pods of a service account, for images that
// match the patterns, until expiry and at most for a day. The same report only changes the expiry. A report about an
// account ends those about an earlier one with its name. AddBound returns whether the report is new.
func (c *Credentials) AddBound(to Account, patterns []string, id credential.ID, expiry time.Time) (news bool) {
	now := time.Now()
	account, ok := tracker.OfAccount(c.key, to.Namespace, to.Name, to.UID)
	patterns = first(patterns, maxBoundPatterns)
	sealed := credential.NewSealed(patterns, id)
	if !ok || id == "" || !now.Before(expiry) || sealed.Len() == 0 {
		return false
	}
	if most := now.Add(maxBoundFor); expiry.After(most) {
		expiry = most
	}
	next := bound{account, strings.Join(patterns, "\x00"), credential.SealedKeyring{sealed}, expiry}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accounts.Store(true)
	c.dropLocked(func(b *bound) bool {
		return !now.Before(b.expiry) || b.account.Ref.Namespace == account.Ref.Namespace &&
			b.account.Ref.Name == account.Ref.Name && b.account.Ref.UID != account.Ref.UID
	})
	at := slices.IndexFunc(c.bound[id], func(b bound) bool { return b.account == account && b.patterns == next.patterns })
	if at >= 0 {
		if old := c.bound[id][at]; old.expiry.After(expiry) {
			next.expiry = old.expiry
		}
		c.bound[id][at] = next
		return false
	}
	c.bound[id] = append(c.bound[id], next)
	if c.boundSize++; c.boundSize > maxBound {
		c.makeRoomForAccountLocked(account.Ref.Namespace)
	}
	return true
}

// makeRoomForAccountLocked removes the report that expires first from the namespace with the most: that of the latest
// report, if several have as many.
func (c *Credentials) makeRoomForAccountLocked(most string) {
	held := map[string]int{}
	for _, all := range c.bound {
		for _, b := range all {
			held[b.account.Ref.Namespace]++
		}
	}
	for namespace, n := range held {
		if n > held[most] {
			most = namespace
		}
	}
	var oldest *bound
	for _, all := range c.bound {
		for i := range all {
			if b := &all[i]; b.account.Ref.Namespace == most && (oldest == nil || b.expiry.Before(oldest.expiry)) {
				oldest = b
			}
		}
	}
	c.dropLocked(func(b *bound) bool { return b == oldest })
}

func (c *Credentials) dropLocked(which func(*bound) bool) {
	for id, all := range c.bound {
		kept := all[:0]
		for i := range all {
			if !which(&all[i]) {
				kept = append(kept, all[i])
			}
		}
		clear(all[len(kept):])
		c.boundSize -= len(all) - len(kept)
		switch len(kept) {
		case len(all):
		case 0:
			delete(c.bound, id)
		default:
			c.bound[id] = kept
		}
	}
}

// AccountsOf returns the service accounts for which credential providers gave out a credential for the repository.
func (c *Credentials) AccountsOf(repository string, id credential.ID) (accounts []tracker.Secret) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	now := time.Now()
	for _, b := range c.bound[id] {
		if now.Before(b.expiry) && holds(b.ring, repository, id) && !slices.Contains(accounts, b.account) {
			accounts = append(accounts, b.account)
		}
	}
	return accounts
}

// HasAccounts reports whether a credential provider has given out anything for a service account.
func (c *Credentials) HasAccounts() bool { return c.accounts.Load() }
