package gate

import (
	"maps"
	"sync"
)

// cleared holds the containers that may be started, because their image has been read back after their creation. The zero value is empty and
// ready to use; it may be used concurrently.
type cleared struct {
	mu sync.Mutex
	of map[string]clearedContainer // by ID
}

// A clearedContainer is what the gate has to know about a container when it starts.
type clearedContainer struct {
	sandbox string
	name    string   // in the pod
	imageID string   // of the image that it runs on; "" if it was restored, because what the runtime reports then proves nothing
	mounted []string // the IDs of the images that it mounts
}

func (c *cleared) add(id string, container clearedContainer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]clearedContainer{}
	}
	c.of[id] = container
}

func (c *cleared) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.of[id]
	return ok
}

// take removes a container and returns it; ok is false if it is not cleared.
func (c *cleared) take(id string) (container clearedContainer, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	container, ok = c.of[id]
	delete(c.of, id)
	return container, ok
}

func (c *cleared) forget(id string) { _, _ = c.take(id) }

// keep removes the containers of every sandbox that is not alive. alive must not call back.
func (c *cleared) keep(alive func(sandbox string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.of, func(_ string, container clearedContainer) bool { return !alive(container.sandbox) })
}
