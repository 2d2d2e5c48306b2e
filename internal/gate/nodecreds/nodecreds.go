// Package nodecreds implements the set of credentials that the node itself offers to every pod, from docker
// configuration files and from reported answers of credential provider plugins. A pull with one of them proves nothing
// about the pod, and opens the image to all pods of the node. Each file is read as a whole every few seconds, which
// detects every kind of change on every file system. Credentials are stored as IDs.
package nodecreds

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	interval    = 3 * time.Second // how often the files are read
	maxPatterns = 256             // how many patterns of one report are kept
	maxReports  = 1000            // how many reports are kept; above it, the one that expires first is removed
)

// Credentials are the credentials that the node offers. Its methods may be called concurrently.
type Credentials struct {
	key credential.Key

	reading sync.Mutex // locked by the goroutine that reads the files, and guards files
	files   []file

	// mu guards the fields below. Lock order: reading, then mu.
	mu      sync.RWMutex
	ring    credential.SealedKeyring // of all files, in their order
	reports map[string]reported
}

// file is a docker configuration file, with the state from its last reading.
type file struct {
	path   string
	sealed credential.Sealed
	sum    [sha256.Size]byte // of the parsed content; zero if none was parsed
	err    error             // of parsing it
	logged string            // describes the latest message about it
}

type reported struct {
	id     credential.ID
	ring   credential.SealedKeyring
	expiry time.Time
}

// New returns the credentials that these files, config.json or .dockercfg, offer now; Run keeps them up to date. A file
// that is absent, cannot be read or is malformed offers nothing.
func New(ctx context.Context, files []string, key credential.Key) *Credentials {
	c := &Credentials{key: key, reports: map[string]reported{}}
	for _, path := range files {
		c.files = append(c.files, file{path: path})
	}
	c.read(ctx)
	return c
}

// Run reads the files every three seconds until the context ends, then returns nil.
func (c *Credentials) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, c.read, interval)
	return nil
}

// Offers reports whether the kubelet would send the credential, which is not anonymous, for an image of the repository.
func (c *Credentials) Offers(repository string, id credential.ID) bool {
	if id == "" {
		return false
	}
	holds := func(ring credential.SealedKeyring) bool {
		return slices.ContainsFunc(ring.Lookup(repository), func(o credential.SealedOffer) bool { return o.ID == id })
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if holds(c.ring) {
		return true
	}
	now := time.Now()
	for _, r := range c.reports {
		if r.id == id && now.Before(r.expiry) && holds(r.ring) {
			return true
		}
	}
	return false
}

// Add notes that a credential provider returned a credential for images that match the patterns, until expiry. It must
// not be bound to a service account. The same report only changes the expiry; Add reports whether it is new.
func (c *Credentials) Add(patterns []string, id credential.ID, expiry time.Time) (news bool) {
	now := time.Now()
	if id == "" || !now.Before(expiry) {
		return false
	}
	patterns = slices.Sorted(slices.Values(patterns))
	patterns = slices.Compact(patterns)
	patterns = patterns[:min(len(patterns), maxPatterns)]
	sealed := credential.NewSealed(patterns, id)
	if sealed.Len() == 0 {
		return false
	}
	sum := sha256.Sum256([]byte(string(id) + "\x00" + strings.Join(patterns, "\x00")))
	c.mu.Lock()
	defer c.mu.Unlock()
	at := string(sum[:])
	old, ok := c.reports[at]
	if ok && old.expiry.After(expiry) {
		expiry = old.expiry
	}
	c.reports[at] = reported{id, credential.SealedKeyring{sealed}, expiry}
	if len(c.reports) > maxReports {
		c.makeRoomLocked(now)
	}
	return !ok || !now.Before(old.expiry)
}

// makeRoomLocked removes the expired reports or, if there are none, the one that expires first.
func (c *Credentials) makeRoomLocked(now time.Time) {
	var first string
	for at, r := range c.reports {
		if !now.Before(r.expiry) {
			delete(c.reports, at)
		} else if first == "" || r.expiry.Before(c.reports[first].expiry) {
			first = at
		}
	}
	if len(c.reports) > maxReports {
		delete(c.reports, first)
	}
}

func (c *Credentials) read(ctx context.Context) {
	c.reading.Lock()
	defer c.reading.Unlock()
	log := klog.FromContext(ctx)
	ring := make(credential.SealedKeyring, len(c.files))
	for i := range c.files {
		f := &c.files[i]
		err := f.read(c.key)
		ring[i] = f.sealed
		state := fmt.Sprintf("%x %v", f.sum, err)
		if state == f.logged {
			continue
		}
		f.logged = state
		switch {
		case err == nil:
			log.Info("Node credentials read", "file", f.path, "entries", f.sealed.Len())
		case errors.Is(err, fs.ErrNotExist):
			log.Info("Node credentials absent", "file", f.path)
		default:
			log.Error(err, "Failed to read node credentials: no longer using those from the file", "file", f.path)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring = ring
}

// read reads the file and parses it if its content has changed. After an error no content is kept.
func (f *file) read(key credential.Key) error {
	content, err := disk.Read(f.path, credential.MaxPayload)
	if err != nil {
		f.sealed, f.sum = credential.Sealed{}, [sha256.Size]byte{}
		return err
	}
	sum := sha256.Sum256(content)
	if sum == f.sum {
		return f.err
	}
	parse := credential.ParseDockerConfigJSON
	if filepath.Base(f.path) == ".dockercfg" {
		parse = credential.ParseDockercfg
	}
	sealed, err := parse(content, key) // it is empty after an error
	f.sealed, f.sum, f.err = sealed, sum, err
	return err
}
