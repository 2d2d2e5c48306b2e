package gate

import "sync"

// cleared holds the containers that may be started, because their image has been read back after their creation. The zero value is empty and
// ready to use; it may be used concurrently.
type cleared struct {
	mu sync.Mutex
	of map[string]string // sandbox by container
}

func (c *cleared) add(container, sandbox string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]string{}
	}
	c.of[container] = sandbox
}

func (c *cleared) has(container string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.of[container]
	return ok
}

func (c *cleared) forget(container string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, container)
}

func (c *cleared) endSandbox(ended string) {
	c.keep(func(sandbox string) bool { return sandbox != ended })
}

// keep removes the containers of every sandbox that is not alive. alive must not call back.
func (c *cleared) keep(alive func(sandbox string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for container, of := range c.of {
		if !alive(of) {
			delete(c.of, container)
		}
	}
}
