package hook

import "k8s.io/apimachinery/pkg/types"

// Decode is decode.
func Decode(data []byte, uid types.UID) error {
	_, err := (&Client{}).decode(data, uid)
	return err
}

// A Circuit is that of a hook.
type Circuit struct{ circuit }

// Note is note.
func (c *Circuit) Note(namespace string, timedOut bool) { c.note(namespace, timedOut) }

// Open is open.
func (c *Circuit) Open(namespace string) bool { return c.open(namespace) }

// Kept returns how many namespaces are kept, and the bytes of their names.
func (c *Circuit) Kept() (names, size int) {
	for name := range c.namespaces {
		names, size = names+1, size+len(name)
	}
	return names, size
}
