package policyfiles

import "crypto/sha256"

// A Watcher reads paths again when their content has changed. It is for one goroutine at a time.
type Watcher struct {
	kinds []Kind
	paths Paths
	// decoded are the contents that Load or Poll returned last, valid or not. pending are other contents that the last
	// Poll saw first.
	decoded, pending [sha256.Size]byte
}

// NewWatcher returns a watcher. It reads nothing before Load.
func NewWatcher() *Watcher { return &Watcher{kinds: Kinds()} }

// Load reads paths now, as Read does. The following calls of Poll read these paths, also after an error.
func (w *Watcher) Load(p Paths) (*Set, error) {
	w.paths = p
	w.decoded, w.pending = [sha256.Size]byte{}, [sha256.Size]byte{}
	if p.Folder == "" {
		return nil, nil //nolint:nilnil // no folder is not an error
	}
	return w.decode(scan(p))
}

// Poll reads the paths of the last Load. If their content differs from what Load or Poll returned last, and was the
// same in the previous call of Poll, changed is true, and the result is that of Read.
func (w *Watcher) Poll() (set *Set, changed bool, err error) {
	if w.paths.Folder == "" {
		return nil, false, nil
	}
	c := scan(w.paths)
	switch sum := c.sum(); sum {
	case w.decoded:
		w.pending = sum
		return nil, false, nil
	case w.pending:
		set, err = w.decode(c)
		return set, true, err
	default:
		w.pending = sum
		return nil, false, nil
	}
}

func (w *Watcher) decode(c *contents) (*Set, error) {
	w.decoded = c.sum()
	return c.decode(w.paths, w.kinds)
}
