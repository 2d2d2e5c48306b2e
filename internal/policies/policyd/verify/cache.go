package verify

import (
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const (
	// cacheSize is how many results, and how many digests of tags, are kept.
	cacheSize = 1024
	// metFor is how long a result that admits is kept, and deniedFor one that denies: an image can be signed any time.
	metFor, deniedFor = time.Hour, 10 * time.Second
	// tagFor is how long the digest of a tag is kept.
	tagFor = 10 * time.Second
)

// A cache has results and digests for the webhook. It may be used concurrently.
type cache struct {
	results, digests *utilcache.LRUExpireCache
}

func newCache() *cache {
	return &cache{utilcache.NewLRUExpireCache(cacheSize), utilcache.NewLRUExpireCache(cacheSize)}
}

// A fact is what a result is about. The hash covers the trusted root. Signatures count only where the repository has
// them.
type fact struct{ repository, digest, requirement string }

// lookUp returns the results that are known, and the requirements without one.
func (c *cache) lookUp(repository, digest string, want []Wanted) (results map[string]requirement.Result, missing []Wanted) {
	results = map[string]requirement.Result{}
	for _, w := range want {
		value, _ := c.results.Get(fact{repository, digest, w.Hash})
		if r, ok := value.(requirement.Result); ok {
			results[w.Hash] = r
		} else {
			missing = append(missing, w)
		}
	}
	return results, missing
}

// add keeps a result, unless it says nothing about the image.
func (c *cache) add(repository, digest string, r requirement.Result) {
	switch {
	case r.Met:
		c.results.Add(fact{repository, digest, r.Requirement}, r, metFor)
	case r.Reason != requirement.RegistryUnavailable:
		c.results.Add(fact{repository, digest, r.Requirement}, r, deniedFor)
	}
}

func (c *cache) digest(name imageref.Name) (string, bool) {
	value, _ := c.digests.Get(name)
	digest, ok := value.(string)
	return digest, ok
}

func (c *cache) addDigest(name imageref.Name, digest string) { c.digests.Add(name, digest, tagFor) }
