package imageref

import (
	"strings"
	"sync"
)

const (
	// maxRecent limits the names that are kept. It is more than a node uses at a time.
	maxRecent = 1024
	// maxRecentName limits their length in bytes; few names are as long.
	maxRecentName = 256
)

// recent holds the Refs of names that were parsed lately, because a kubelet sends the same few names again and again,
// and to parse one takes longer than to judge it. It forgets all of them when it is full.
var recent struct { //nolint:gochecknoglobals // what New returns does not depend on it
	mu sync.Mutex
	of map[string]Ref
}

func recentRef(s string, parse func(string) Ref) Ref {
	if len(s) > maxRecentName {
		return parse(s)
	}
	recent.mu.Lock()
	r, ok := recent.of[s]
	recent.mu.Unlock()
	if ok {
		return r
	}
	s = strings.Clone(s) // it may be part of a larger text, which is not kept
	r = parse(s)
	recent.mu.Lock()
	defer recent.mu.Unlock()
	if recent.of == nil || len(recent.of) >= maxRecent {
		recent.of = map[string]Ref{}
	}
	recent.of[s] = r
	return r
}
