// Package nodecreds implements the set of credentials that the node itself offers to every pod, from docker
// configuration files and from reported answers of credential provider plugins. A pull with one of them proves nothing
// about the pod, and opens the image to all pods of the node. Answers that are bound to a service account are kept
// apart: they say for whom a credential was given out. Each file is read as a whole every few seconds, which detects
// every kind of change on every file system. Credentials are stored as IDs, in memory and in a file, so that those that
// a kubelet has in its cache are known after a restart.
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
	"sync/atomic"
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
	maxHeld     = 16384           // how many reported credentials are remembered
	remembered  = 2 * time.Hour   // how long those of a file are; kubelets cache files for five minutes
	readLimit   = 2 * time.Second // how long a pull waits for a reading
)

var errTooMany = errors.New("too many credentials of the node are in use at a time, see matchImages of the plugin")

// Credentials are the credentials that the node offers. Its methods may be called concurrently.
type Credentials struct {
	key  credential.Key
	log  klog.Logger
	path string // of the file that survives a restart

	reading sync.Mutex // locked by the goroutine that reads the files, and guards files
	files   []file
	saving  sync.Mutex // locked by the goroutine that writes the file, and guards failed
	failed  bool       // that the file cannot be written is logged

	// mu guards the fields below. Lock order: reading, saving, mu.
	mu       sync.RWMutex
	next     chan struct{}            // closed after a reading that has not begun; nil if none is asked for
	ring     credential.SealedKeyring // of all files, in their order
	unread   bool                     // a file exists that cannot be read or parsed
	reports  map[string]reported
	held     map[credential.ID]hold
	reserved bool  // the credentials are for some namespaces only
	lost     error // why the file cannot be read: what the node held is not known
	unsaved  bool  // the file on disk is not as it should be
	// bound are the reports about service accounts, by credential; boundSize is their number.
	bound     map[credential.ID][]bound
	boundSize int

	accounts atomic.Bool // see HasAccounts
}

// hold is a credential that a kubelet may have in its cache until a time.
type hold struct {
	until    time.Time
	reported bool // kept after that time too, while there is room: a kubelet may keep it longer
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
	id       credential.ID
	patterns []string
	ring     credential.SealedKeyring
	expiry   time.Time
}

// New returns the credentials that these files, config.json or .dockercfg, offer now, and those of the reports in the
// file at path, which need not exist; Run keeps both up to date. A docker configuration that is absent, cannot be read
// or is malformed offers nothing.
func New(ctx context.Context, path string, files []string, key credential.Key) *Credentials {
	c := &Credentials{
		key: key, log: klog.FromContext(ctx), path: path, reports: map[string]reported{}, held: map[credential.ID]hold{},
		bound: map[credential.ID][]bound{},
	}
	for _, path := range files {
		c.files = append(c.files, file{path: path})
	}
	c.load()
	c.reading.Lock()
	defer c.reading.Unlock()
	c.readLocked()
	return c
}

// Run reads the files every three seconds until the context ends, then returns nil.
func (c *Credentials) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		c.read(ctx)
		_ = c.Save()
	}, interval)
	return nil
}

// Offers reports whether the kubelet would send the credential, which is not anonymous, for an image of the repository.
func (c *Credentials) Offers(repository string, id credential.ID) bool {
	if id == "" {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if holds(c.ring, repository, id) {
		return true
	}
	now := time.Now()
	for _, r := range c.reports {
		if r.id == id && now.Before(r.expiry) && holds(r.ring, repository, id) {
			return true
		}
	}
	return false
}

// Holds reports whether the node offers the credential for any image, or has offered it before: a kubelet may still
// have it in its cache. If it cannot be known what the node offers, every credential may be one. It reads the files for
// a credential that is not known: the kubelet may have read them already.
func (c *Credentials) Holds(ctx context.Context, id credential.ID) bool {
	if id == "" || c.holds(id) {
		return id != ""
	}
	return !c.read(ctx) || c.holds(id)
}

func (c *Credentials) holds(id credential.ID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if _, ok := c.held[id]; ok || c.lost != nil || c.unread {
		return true
	}
	return slices.ContainsFunc(c.ring, func(s credential.Sealed) bool { return slices.Contains(s.IDs(), id) })
}

// Reserve sets whether the credentials are for some namespaces only, also on disk.
func (c *Credentials) Reserve(reserved bool) {
	c.mu.Lock()
	changed := c.reserved != reserved
	c.reserved, c.unsaved = reserved, c.unsaved || changed
	lost := c.lost
	c.mu.Unlock()
	if changed && reserved && lost != nil {
		c.logLost(lost)
	}
	_ = c.Save() // Run does it again
}

func holds(ring credential.SealedKeyring, repository string, id credential.ID) bool {
	return slices.ContainsFunc(ring.Lookup(repository), func(o credential.SealedOffer) bool { return o.ID == id })
}

// first returns the first of the patterns in their order, each once.
func first(patterns []string, most int) []string {
	patterns = slices.Compact(slices.Sorted(slices.Values(patterns)))
	return patterns[:min(len(patterns), most)]
}

// Add notes that a credential provider returned a credential for images that match the patterns, until expiry. It must
// not be bound to a service account. The same report only changes the expiry; Add reports whether it is new. Save
// writes it to disk. After an error the credential is not known.
func (c *Credentials) Add(patterns []string, id credential.ID, expiry time.Time) (news bool, err error) {
	now := time.Now()
	if id == "" || !now.Before(expiry) {
		return false, nil
	}
	patterns = first(patterns, maxPatterns)
	sealed := credential.NewSealed(patterns, id)
	sum := sha256.Sum256([]byte(string(id) + "\x00" + strings.Join(patterns, "\x00")))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.holdLocked(now, id, expiry, true); err != nil || sealed.Len() == 0 {
		return false, err
	}
	at := string(sum[:])
	old, ok := c.reports[at]
	if ok && old.expiry.After(expiry) {
		expiry = old.expiry
	}
	c.reports[at] = reported{id, patterns, credential.SealedKeyring{sealed}, expiry}
	c.unsaved = c.unsaved || !ok || !old.expiry.Equal(expiry)
	if len(c.reports) > maxReports {
		c.makeRoomLocked(now)
	}
	return !ok || !now.Before(old.expiry), nil
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

// holdLocked notes that a kubelet may have a credential in its cache until a time. If there is no room, it forgets only
// what no kubelet has: otherwise a pod that makes the kubelet run a plugin often could use the token of the node as its
// own.
func (c *Credentials) holdLocked(now time.Time, id credential.ID, until time.Time, reported bool) error {
	old, known := c.held[id]
	h := hold{until, reported || old.reported}
	if old.until.After(until) {
		h.until = old.until
	}
	if h.reported && !old.reported && len(c.held) >= maxHeld { // else there is room, and nothing to count
		all := 0
		for _, h := range c.held {
			if h.reported {
				all++
			}
		}
		if all >= maxHeld && !c.forgetLocked(now) {
			return errTooMany
		}
	}
	c.unsaved = c.unsaved || !known || h != old
	c.held[id] = h
	return nil
}

// forgetLocked removes the reported credentials that are in no cache, and reports whether there was one.
func (c *Credentials) forgetLocked(now time.Time) (forgotten bool) {
	for id, h := range c.held {
		if h.reported && !now.Before(h.until) {
			delete(c.held, id)
			forgotten = true
		}
	}
	return forgotten
}

// read reads the files, or waits for another goroutine that begins to read them now. It reports whether it was done
// in time.
func (c *Credentials) read(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	c.mu.Lock()
	done := c.next
	if done == nil {
		done = make(chan struct{})
		c.next = done
		go func() {
			defer close(done)
			c.reading.Lock() // at most one goroutine waits for it
			defer c.reading.Unlock()
			c.mu.Lock()
			c.next = nil
			c.mu.Unlock()
			c.readLocked()
		}()
	}
	c.mu.Unlock()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Credentials) readLocked() {
	ring, unread := make(credential.SealedKeyring, len(c.files)), false
	for i := range c.files {
		f := &c.files[i]
		err := f.read(c.key)
		ring[i] = f.sealed
		unread = unread || err != nil && !errors.Is(err, fs.ErrNotExist)
		state := fmt.Sprintf("%x %v", f.sum, err)
		if state == f.logged {
			continue
		}
		f.logged = state
		switch {
		case err == nil:
			c.log.Info("Node credentials read", "file", f.path, "entries", f.sealed.Len())
		case errors.Is(err, fs.ErrNotExist):
			c.log.Info("Node credentials absent", "file", f.path)
		default:
			c.log.Error(err, "Failed to read node credentials: no longer using those from the file", "file", f.path)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring, c.unread = ring, unread
	now := time.Now()
	for _, sealed := range ring {
		for _, id := range sealed.IDs() {
			if c.held[id].until.Before(now.Add(remembered / 2)) { // so that the disk is not written at each reading
				_ = c.holdLocked(now, id, now.Add(remembered), false)
			}
		}
	}
	c.forgetFilesLocked(now)
}

// forgetFilesLocked removes the credentials that files have not offered for an hour or two, so that their owner can
// give them to a pod instead.
func (c *Credentials) forgetFilesLocked(now time.Time) {
	for id, h := range c.held {
		if !h.reported && !now.Before(h.until) {
			delete(c.held, id)
			c.unsaved = true
		}
	}
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
