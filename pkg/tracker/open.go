package tracker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// The files of a tracker in its directory. The key is made after the store: a key without a store means that the store
// was lost.
const (
	StoreFile = "records.db"
	KeyFile   = "node.key"
)

// A Report says what [Open] found and changed. After every loss images need proof.
type Report struct {
	records.Report // about the store; while it is distrusted, no scan marks images
	Key            KeyReport
}

// A KeyReport says what happened to the node's key. Without the old key, no proof from before matches.
type KeyReport struct {
	// Exposed says that other users could read the key; its mode is 0600 now.
	Exposed error
	// Damaged says why the old key was replaced, and SetAside where it is now; "" if it could not be moved, for the reason
	// in Unmoved.
	Damaged, Unmoved error
	SetAside         string
	// Unread says why the key cannot be read. It stays in place, and a key in memory is in use until the next start.
	Unread    error
	Lost      bool  // the store was written with a key that is missing now
	Unwritten error // why the new key is in memory only
	Other     bool  // the store was written with another key
	Unnoted   error // why the key's fingerprint is not in the store: a lost key may go unnoticed
}

// Open opens the store and the key of a node in a directory on a local disk, or makes them, and returns a tracker on
// them. The error is [ErrInUse] if another process has the directory open, [ErrNewerFormat] for a store of a newer
// version, or that of the disk. A damaged or lost store or key is not an error: Open goes on with a new one, as the
// report says.
func Open(dir string, rt Runtime, o Options) (*Tracker, Report, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, Report{}, fmt.Errorf("create state directory: %w", err)
	}
	var report Report
	path := filepath.Join(dir, KeyFile)
	key, keyErr := credential.LoadKey(path)
	if errors.Is(keyErr, credential.ErrExposedKey) {
		report.Key.Exposed = keyErr
		if keyErr = os.Chmod(path, 0o600); keyErr == nil {
			key, keyErr = credential.LoadKey(path)
		}
	}
	store, found, err := records.Open(filepath.Join(dir, StoreFile), records.Options{
		KeyExists: !errors.Is(keyErr, fs.ErrNotExist), OnSync: o.OnSync, OnPanic: o.OnPanic,
	})
	if err != nil {
		return nil, Report{}, err
	}
	report.Report = found
	kept := true
	if keyErr != nil {
		crashpoint.Hit(crashpoint.KeyMissing)
		key, kept = replaceKey(path, keyErr, store, &report.Key)
	}
	if kept {
		noteKey(store, key, &report.Key)
	}
	return New(store, key, rt, o), report, nil
}

// replaceKey makes a new key if the old one cannot be used. kept reports that it is on disk.
func replaceKey(path string, why error, store *records.Store, r *KeyReport) (key credential.Key, kept bool) {
	switch {
	case errors.Is(why, credential.ErrDamagedKey):
		r.Damaged = why
		aside := fmt.Sprintf("%s.damaged-%s", path, time.Now().UTC().Format("20060102T150405.000000000Z"))
		if r.Unmoved = os.Rename(path, aside); r.Unmoved == nil {
			r.SetAside = aside
		}
	case !errors.Is(why, fs.ErrNotExist):
		r.Unread = why
		return credential.NewKey(), false
	default:
		old, err := store.KeyFingerprint()
		r.Lost = err == nil && old != ""
	}
	key, r.Unwritten = credential.CreateKey(path)
	if r.Unwritten != nil {
		return credential.NewKey(), false
	}
	return key, true
}

func noteKey(store *records.Store, key credential.Key, r *KeyReport) {
	old, err := store.KeyFingerprint()
	if err == nil && old != key.Fingerprint() {
		r.Other = old != ""
		err = store.SetKeyFingerprint(key.Fingerprint())
	}
	r.Unnoted = err
}

// Close closes the store. The caller first waits for [Tracker.Run] and for every other call.
func (t *Tracker) Close() error { return t.store.Close() }

// Key returns the key by which the tracker identifies credentials.
func (t *Tracker) Key() credential.Key { return t.key }

// Store returns the store, for what pullgated does with it besides the tracker. A program outside this module does not
// need it.
func (t *Tracker) Store() *records.Store { return t.store }
