package gate

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
)

const (
	// repeatInterval is the interval of journal lines for a repeated denial. A kubelet may try to create a container several times a second, and
	// each line has some 400 bytes.
	repeatInterval = time.Minute
	// maxRepeats limits the number of stored denials. It is more than the pods of a node have at a time. A removed denial gets a line again.
	maxRepeats = 4096
)

// repeats decides which denials get a line in the journal. The zero value is empty and ready to use; it may be used concurrently. A denial takes
// the same memory for names of any length.
type repeats struct {
	mu   sync.Mutex
	last *lru.Cache // *denial by the digest of call, pod, image and container
}

// A denial is the last denial of a call, pod, image and container that got a line.
type denial struct {
	why     [sha256.Size]byte // digest of the parts that may change: reason, image ID and credential
	logged  time.Time
	skipped int
}

// next reports whether a decision gets a line, and how many decisions about the same call, pod, image and container got none since the last line. A denial
// gets a line if it differs from the last denial, or if that one is a minute old; every other decision gets a line.
func (r *repeats) next(d decisionlog.Decision) (skipped int, line bool) {
	denies := !d.Verdict.Allowed() || wouldDeny(d)
	key := digest(d.Call, d.Pod.UID, d.Pod.Namespace, d.Pod.Name, d.Image, d.Container)
	why := digest(d.Verdict.Verdict.String(), string(d.Verdict.Reason), d.Verdict.Pair.ImageID, string(d.Verdict.Credential), d.Admission.PolicyHash)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = lru.New(maxRepeats)
	}
	now := time.Now()
	got, _ := r.last.Get(key)
	if last, known := got.(*denial); known {
		skipped = last.skipped
		if denies && last.why == why && now.Sub(last.logged) < repeatInterval {
			last.skipped++
			return skipped, false
		}
		r.last.Remove(key)
	}
	if denies {
		r.last.Add(key, &denial{why: why, logged: now})
	}
	return skipped, true
}

// digest returns a digest of the parts and of their boundaries.
func digest(parts ...string) [sha256.Size]byte {
	encoded, _ := json.Marshal(parts) // strings can always be encoded
	return sha256.Sum256(encoded)
}
