package gate

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/pullgate/pullgate/internal/decisionlog"
)

const (
	// repeatInterval is how often the journal has a line for a denial that is repeated. A kubelet may try to create a container
	// several times a second, and each line has some 400 bytes.
	repeatInterval = time.Minute
	// maxRepeats bounds how many denials are remembered. It is more than a node's pods have at a time; one that is forgotten
	// gets a line again.
	maxRepeats = 4096
)

// repeats decides which denials get a line in the journal. The zero value is empty and ready; it may be used concurrently. A denial
// takes the same memory whatever its names are.
type repeats struct {
	mu   sync.Mutex
	last *lru.Cache // *denial by the digest of call, pod and image
}

// A denial is the last one of a call, pod and image that got a line.
type denial struct {
	why     [sha256.Size]byte // digest of what may differ: reason, image ID and credential
	logged  time.Time
	skipped int
}

// next reports whether a decision gets a line, and how many decisions about the same call, pod and image got none since the last
// one. A denial gets a line if it differs from the last one, or that is a minute old; every other decision gets one.
func (r *repeats) next(d decisionlog.Decision) (skipped int, line bool) {
	key := digest(d.Call, d.Pod.UID, d.Pod.Namespace, d.Pod.Name, d.Image)
	why := digest(string(d.Verdict.Reason), d.Verdict.Pair.ImageID, string(d.Verdict.Credential))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = lru.New(maxRepeats)
	}
	var last *denial
	if v, ok := r.last.Get(key); ok {
		last, _ = v.(*denial)
	}
	now := time.Now()
	if last != nil {
		skipped = last.skipped
		if !d.Verdict.Allowed() && last.why == why && now.Sub(last.logged) < repeatInterval {
			last.skipped++
			return skipped, false
		}
		r.last.Remove(key)
	}
	if !d.Verdict.Allowed() {
		r.last.Add(key, &denial{why: why, logged: now})
	}
	return skipped, true
}

// digest returns a digest of the parts and of where one ends and the next begins.
func digest(parts ...string) [sha256.Size]byte {
	encoded, _ := json.Marshal(parts) // strings can always be encoded
	return sha256.Sum256(encoded)
}
