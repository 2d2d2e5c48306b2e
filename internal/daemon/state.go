package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// The files of the state directory. The key is made after the store: a key without a store means that the store was lost.
const (
	storeFile  = "records.db"
	keyFile    = "node.key"
	grantsFile = "grants.json" // from an orderly stop to the next start
)

// KeyPath returns the path of the node's key in a state directory.
func KeyPath(stateDir string) string { return filepath.Join(stateDir, keyFile) }

// state is what is kept over a restart.
type state struct {
	store     *records.Store
	key       credential.Key
	lastWrite uint64 // to the store, before this start; 0 if this start has created it
}

// openState opens the store and the node's key. Only an error of the store stops the start. If the key is lost or damaged, old
// proofs do not match any more.
func openState(dir string, o records.Options, log klog.Logger) (*state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, program.WithHint(fmt.Errorf("create state directory: %w", err), "set stateDir to a directory on a local disk that pullgated may write")
	}
	keyPath, storePath := KeyPath(dir), filepath.Join(dir, storeFile)
	key, keyErr := credential.LoadKey(keyPath)
	if errors.Is(keyErr, credential.ErrExposedKey) {
		log.Error(keyErr, "node.key had unsafe permissions; reset to 0600", "path", keyPath,
			"hint", "a user who has read node.key and records.db can test guessed passwords; if in doubt, delete node.key and restart: every image then needs proof once")
		if keyErr = os.Chmod(keyPath, 0o600); keyErr == nil {
			key, keyErr = credential.LoadKey(keyPath)
		}
	}
	o.KeyExists = !errors.Is(keyErr, fs.ErrNotExist)

	store, report, err := records.Open(storePath, o)
	if err != nil {
		return nil, storeHint(err)
	}
	lastWrite, err := store.LastWrite()
	if err != nil {
		return nil, errors.Join(storeHint(err), store.Close())
	}
	if report.Created || report.Distrust != nil && report.Distrust.Copy {
		lastWrite = 0 // another store, or the original of a copy, has the same numbers
	}
	logReport(log, storePath, report)
	if keyErr != nil {
		crashpoint.Hit(crashpoint.KeyMissing)
		var kept bool
		if key, kept = replaceKey(keyPath, keyErr, store, log); !kept {
			return &state{store: store, key: key, lastWrite: lastWrite}, nil
		}
	}
	if err := noteKey(store, key, log); err != nil {
		log.Error(err, "Fingerprint of the node's key not written, a lost key may go unnoticed")
	}
	return &state{store: store, key: key, lastWrite: lastWrite}, nil
}

func storeHint(err error) error {
	switch {
	case errors.Is(err, records.ErrNewerFormat):
		return program.WithHint(err, "a newer pullgated wrote this store; install that version again, or move the file away: every image then needs proof once")
	case errors.Is(err, records.ErrInUse):
		return program.WithHint(err, "another pullgated has it open; see systemctl status pullgated")
	default:
		return program.WithHint(err, "the store was left as it was; look for errors of the disk in the kernel log (dmesg), and check that stateDir is a directory on a local disk that pullgated may write and that is not full")
	}
}

// panicked ends the process after a panic in a transaction of the store: bbolt may hold its locks for ever. systemd starts pullgated
// again.
func panicked(log klog.Logger, path string) func(value any, stack []byte) {
	return func(value any, stack []byte) {
		err := fmt.Errorf("panic: %v", value)
		if records.FailedRead(value) {
			log.Error(err, "Failed to read the store of pull records, pullgated ends", "path", path, "hint", "look for errors of the disk in the kernel log (dmesg)")
		} else {
			log.Error(err, "A transaction of the store of pull records panicked, pullgated ends. Report it with the stack, unless pullgatectl store check finds damage",
				"path", path, "stack", string(stack))
		}
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func logReport(log klog.Logger, path string, r records.Report) {
	switch {
	case r.SetAside != "" && !r.Created:
		log.Error(errors.New(r.Damage), "Removed values that cannot be read from the store of pull records, which is now distrusted: images on the node are not marked preloaded",
			"path", path, "copy", r.SetAside, "hint", distrustHint)
	case r.SetAside != "":
		log.Error(errors.New(r.Damage), "Store of pull records damaged and moved aside, the new one is distrusted: images on the node need proof",
			"path", path, "setAside", r.SetAside, "hint", distrustHint)
	case r.Distrust != nil:
		log.Error(errors.New(r.Distrust.Reason), "Store of pull records is distrusted: images on the node are not marked preloaded",
			"path", path, "since", r.Distrust.Since, "hint", distrustHint)
	}
	if r.Created && r.SetAside == "" {
		log.Info("Store of pull records made", "path", path)
	}
}

// replaceKey makes a new key if the old one cannot be used. It keeps a damaged key beside the new one; a key that temporarily
// cannot be read stays in place. If no key can be written, a key in memory is used until the next start; kept reports that the
// key is on disk.
func replaceKey(path string, why error, store *records.Store, log klog.Logger) (key credential.Key, kept bool) {
	switch old, err := store.KeyFingerprint(); {
	case errors.Is(why, credential.ErrDamagedKey):
		aside := fmt.Sprintf("%s.damaged-%s", path, time.Now().UTC().Format("20060102T150405.000000000Z"))
		log.Error(why, "The node's key cannot be read: no proof that was recorded before matches, every image needs proof once", "path", path, "setAside", aside)
		if err := os.Rename(path, aside); err != nil {
			log.Error(err, "The node's key cannot be set aside", "path", path)
		}
	case !errors.Is(why, fs.ErrNotExist):
		log.Error(why, "The node's key cannot be read at the moment: until the next restart no proof that was recorded before matches", "path", path)
		return credential.NewKey(), false
	case err == nil && old != "":
		log.Error(why, "The node's key is lost: no proof that was recorded before matches, every image needs proof once", "path", path)
	}
	key, err := credential.CreateKey(path)
	if err != nil {
		log.Error(err, "The node's key cannot be written: proofs last until the next restart only", "path", path)
		return credential.NewKey(), false
	}
	return key, true
}

func noteKey(store *records.Store, key credential.Key, log klog.Logger) error {
	old, err := store.KeyFingerprint()
	if err != nil {
		return err
	}
	if old == key.Fingerprint() {
		return nil
	}
	if old != "" {
		log.Error(errors.New("fingerprints differ"), "The node's key is not the one that the store was written with: no proof that was recorded before matches")
	}
	return store.SetKeyFingerprint(key.Fingerprint())
}

// distrustHint describes how an operator lets pods use the images on the node of a distrusted store.
const distrustHint = "pullgatectl preloaded accept IMAGE opens one image to every pod, pullgatectl distrust end opens all that nothing is known of; " +
	"without the admin API start once with --accept-present-images"
