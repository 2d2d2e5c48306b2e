package gate

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
)

const (
	podUIDLabel = "io.kubernetes.pod.uid" // a kubelet sets it on each container
	// unlisted is how long a container is known that no list has: the runtime may still be creating it, or loading.
	unlisted = 10 * time.Minute
	// maxContainers bounds what is known, two of some 100 bytes for each container. With more, the next list is the first
	// one.
	maxContainers = 20_000
)

type containerKey [sha256.Size]byte

// containers are those that were created through the gate, or before it first listed them.
type containers struct {
	mu       sync.Mutex
	known    map[containerKey]time.Time // when each was created or listed last; nil before the first list
	listed   bool
	suspects map[containerKey]bool // those of the last list that are not known
}

func keyOf(sandbox string, m *runtimeapi.ContainerMetadata) containerKey {
	return sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", sandbox, m.GetName(), m.GetAttempt()))
}

// keyOfID is the key of a container by its ID, for one that a runtime may list with other metadata than it was created
// with: it may be restored.
func keyOfID(id string) containerKey { return sha256.Sum256([]byte(id)) }

// add adds a container, and reports whether it was not known.
func (k *containers) add(key containerKey) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		return false
	}
	_, before := k.known[key]
	if k.known[key] = time.Now(); len(k.known) > maxContainers {
		k.forgetLocked()
	}
	return !before
}

// forget makes the next list the first one.
func (k *containers) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked()
}

func (k *containers) forgetLocked() { k.known, k.listed, k.suspects = nil, false, nil }

func (k *containers) drop(key containerKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, key)
}

// noteCreate notes a container from before it is created, because a list may have it before the answer does. One whose
// answer is lost may exist.
func (g *Gate) noteCreate(
	ctx context.Context, c *criproxy.Call, req *runtimeapi.CreateContainerRequest,
) ([]byte, error) {
	key := keyOf(req.GetPodSandboxId(), req.GetConfig().GetMetadata())
	isNew := g.containers.add(key)
	raw, err := g.createContainer(ctx, c, req)
	if err == nil || aborted(err) {
		g.containers.add(key)
	} else if isNew {
		g.containers.drop(key)
	}
	return raw, err
}

// HasBypassed reports whether the runtime has a container of a kubelet that was started and not created through the
// gate, by this list of the containers and the one before. Those of the first list are not judged.
func (g *Gate) HasBypassed(ctx context.Context) (bool, error) {
	now := time.Now()
	g.containers.begin()
	all, err := g.c.Runtime.containers(ctx, nil)
	if err != nil {
		return false, err
	}
	return g.containers.compare(all, now), nil
}

// begin is called before a list, so that no creation is missed between it and the first list.
func (k *containers) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = map[containerKey]time.Time{}
	}
}

func (k *containers) compare(all []*runtimeapi.Container, now time.Time) (bypassed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil { // too many were created meanwhile
		return false
	}
	before := k.suspects
	k.suspects = map[containerKey]bool{}
	for _, c := range all {
		key := keyOf(c.GetPodSandboxId(), c.GetMetadata())
		_, created := k.known[key]
		_, restored := k.known[keyOfID(c.GetId())]
		switch {
		case !k.listed || created || restored:
			k.known[key] = now
		// One that was not started has used nothing, and may be one that was denied and could not be removed.
		case c.GetLabels()[podUIDLabel] != "" && c.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED:
			bypassed = bypassed || before[key]
			k.suspects[key] = true
		}
	}
	for key, last := range k.known {
		if now.Sub(last) > unlisted {
			delete(k.known, key)
		}
	}
	k.listed = true
	return bypassed
}
