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
	// maxContainers bounds those that are known, with some 100 bytes each. With more, the next list is the first one.
	maxContainers = 10_000
)

type containerKey [sha256.Size]byte

// containers are those that were created through the gate, or before it first listed them.
type containers struct {
	mu     sync.Mutex
	known  map[containerKey]time.Time // when each was created or listed last; nil before the first list
	listed bool
}

func keyOf(sandbox string, m *runtimeapi.ContainerMetadata) containerKey {
	return sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", sandbox, m.GetName(), m.GetAttempt()))
}

// add adds a container, and reports whether it was not known.
func (k *containers) add(key containerKey) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		return false
	}
	_, before := k.known[key]
	if k.known[key] = time.Now(); len(k.known) > maxContainers {
		k.known, k.listed = nil, false
	}
	return !before
}

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
// gate. It lists the containers; those of the first list are not judged.
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
	for _, c := range all {
		key := keyOf(c.GetPodSandboxId(), c.GetMetadata())
		_, created := k.known[key]
		_, restored := k.known[sha256.Sum256([]byte(c.GetId()))]
		switch {
		case !k.listed || created || restored:
			k.known[key] = now
		// One that was not started has used nothing, and may be one that was denied and could not be removed.
		case c.GetLabels()[podUIDLabel] != "" && c.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED:
			bypassed = true
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
