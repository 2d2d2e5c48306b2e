package nodecreds

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/pkg/credential"
)

// File is the name of the file in the state directory of the daemon.
const File = "node-credentials.json"

const (
	savedVersion = 1
	maxSaved     = 64 << 20 // bytes of the file
)

var (
	errDamaged = errors.New("the file is damaged")
	errLost    = errors.New("an earlier run could not read the file")
)

// saved is what survives a restart. It has IDs in place of credentials.
type saved struct {
	Version        int    `json:"version"`
	KeyFingerprint string `json:"keyFingerprint"`
	// Reserved is read by the credential provider: it then withholds an answer that it cannot report.
	Reserved bool          `json:"reserved"`
	Lost     bool          `json:"lost,omitempty"` // what earlier runs had is missing
	Reports  []savedReport `json:"reports"`
	Held     []savedHeld   `json:"held"`
}

type savedReport struct {
	ID      credential.ID `json:"id"`
	Images  []string      `json:"images"`
	Expires time.Time     `json:"expires"`
}

type savedHeld struct {
	ID       credential.ID `json:"id"`
	Until    time.Time     `json:"until"`
	Reported bool          `json:"reported,omitempty"`
}

// readSaved reads the file at path. Its first line is the checksum of the rest.
func readSaved(path string) (s saved, err error) {
	data, err := disk.Read(path, maxSaved)
	if err != nil {
		return s, err
	}
	sum, content, _ := bytes.Cut(data, []byte("\n"))
	if string(sum) != sumOf(content) || json.Unmarshal(content, &s) != nil || s.Version != savedVersion {
		return saved{}, errDamaged
	}
	return s, nil
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Reserved reports whether credentials of the node are for some namespaces only, by the file at path that the daemon
// writes. If it cannot be read, they may be.
func Reserved(path string) bool {
	s, err := readSaved(path)
	return err == nil && s.Reserved || err != nil && !errors.Is(err, fs.ErrNotExist)
}

func (c *Credentials) load() {
	s, err := readSaved(c.path)
	if err == nil && s.KeyFingerprint != c.key.Fingerprint() {
		err = errors.New("its IDs were made with another key")
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		// A new file at once: what is reported from now on must be known after a restart.
		err = errors.Join(err, os.Rename(c.path, c.path+".damaged"))
		c.lost, c.unsaved = err, true
		c.logLost(err)
		return
	case s.Lost:
		c.lost = errLost
		c.logLost(errLost)
	}
	c.reserved = s.Reserved
	for _, h := range s.Held {
		c.held[h.ID] = hold{h.Until, h.Reported}
	}
	for _, r := range s.Reports {
		_, _ = c.Add(r.Images, r.ID, r.Expires)
	}
	c.unsaved = false
}

func (c *Credentials) logLost(err error) {
	c.log.Error(err, "Failed to read the node credentials of earlier runs: with nodeCredentials.namespaces, other "+
		"namespaces can pull only with credentials that the pod source knows", "file", c.path,
		"hint", "stop the kubelet, which forgets the credentials that it has in its cache; delete the file, restart "+
			"pullgated, then start the kubelet")
}

// Save writes what has changed to disk. After an error, which it logs, Run writes it again.
func (c *Credentials) Save() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	s, ok := c.toSave()
	if !ok {
		return nil
	}
	content, err := json.Marshal(s)
	if err == nil {
		err = disk.Write(c.path, disk.Options{Replace: true}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s\n%s", sumOf(content), content)
			return err
		})
	}
	if err != nil && !c.failed {
		c.log.Error(err, "Failed to save the node credentials, will retry every 3 s", "file", c.path)
	}
	if c.failed = err != nil; c.failed {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unsaved = true
		return fmt.Errorf("save the node credentials: %w", err)
	}
	return nil
}

// toSave returns what is to be written, if anything is.
func (c *Credentials) toSave() (s saved, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unsaved {
		return s, false
	}
	c.unsaved = false
	s = saved{Version: savedVersion, KeyFingerprint: c.key.Fingerprint(), Reserved: c.reserved, Lost: c.lost != nil}
	for _, r := range c.reports {
		s.Reports = append(s.Reports, savedReport{r.id, r.patterns, r.expiry.UTC()})
	}
	for id, h := range c.held {
		s.Held = append(s.Held, savedHeld{id, h.until.UTC(), h.reported})
	}
	slices.SortFunc(s.Reports, func(a, b savedReport) int {
		return cmp.Or(strings.Compare(string(a.ID), string(b.ID)), slices.Compare(a.Images, b.Images))
	})
	slices.SortFunc(s.Held, func(a, b savedHeld) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return s, true
}
