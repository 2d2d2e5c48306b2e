package records

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// Format is the newest version of the file that this code reads and writes.
const Format = 3

// The versions of the file, see the package comment.
const (
	formatPlain     = 1
	formatEndorsing = 2
	formatAttesting = 3
)

const asideInfix = ".damaged-"

// The keys of the meta bucket.
const (
	metaFormat   = "format"
	metaDistrust = "distrust"
	metaScanned  = "scanned"
	metaKey      = "key"
	metaRevoked  = "revoked"
)

// Options are the settings of [Open]. The zero value is for the first start on a node.
type Options struct {
	// KeyExists means that the node has a key, so that there was a store: a missing one was lost.
	KeyExists bool
	Now       time.Time     // that Open writes; the zero value is the time of the call
	LockWait  time.Duration // for the file lock; the zero value is 2 s
	// OnPanic is called for a panic in a transaction, which returns ErrUnreadable; nil is allowed. Every later call fails,
	// because bbolt may hold its locks. So the program should end.
	OnPanic func(value any, stack []byte)
	OnSync  func(time.Duration) // called with the duration of each write transaction; nil is allowed
}

// A Report is the result of Open.
type Report struct {
	Created bool // Open created a new store
	// SetAside is where a damaged file was moved to; "" if there was none. If Created is false, it is a copy of the file
	// from which Open has removed the values that could not be read.
	SetAside string
	Damage   string    // of that file
	Distrust *Distrust // nil if the store is trusted
}

// Open opens the store at path, or creates a new one. The error is ErrNewerFormat or ErrInUse, or that of the disk. A
// damaged tree, which Open sets aside, and values that cannot be read, which it removes, are not errors: see [Report].
func Open(path string, o Options) (*Store, Report, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	var report Report
	var distrust *Distrust
	f, damage, err := openFile(path, o)
	if errors.Is(err, fs.ErrNotExist) {
		distrust, err = absent(path, o)
	}
	if err != nil {
		return nil, report, fmt.Errorf("open records %s: %w", path, err)
	}
	if damage != nil {
		report.Damage = damage.Error()
		report.SetAside, err = setAside(path, o.Now)
		if err != nil {
			return nil, report, fmt.Errorf("set damaged records %s aside: %w", path, err)
		}
		distrust = &Distrust{Since: o.Now, Reason: "the store was damaged and set aside as " + filepath.Base(report.SetAside)}
	}
	if f == nil {
		report.Created = true
		if f, err = create(path, o, distrust); err != nil {
			return nil, report, fmt.Errorf("begin records %s: %w", path, err)
		}
	}
	s := &Store{file: f, onSync: o.OnSync}
	s.facts, err = readFacts(f, path, o.Now, &report)
	if err == nil {
		s.facts.reserved = &s.reserved
		report.Distrust = s.Distrusted()
		if !report.Created && (report.Distrust == nil || !report.Distrust.Copy) {
			s.lastWrite, err = s.LastWrite()
		}
	}
	if err != nil {
		return nil, report, errors.Join(fmt.Errorf("open records %s: %w", path, err), f.Close())
	}
	return s, report, nil
}

func openFile(path string, o Options) (f *boltfile.File, damage, err error) {
	file, err := boltfile.Lock(context.Background(), path, false, o.LockWait)
	if err != nil {
		return nil, nil, err
	}
	return OpenLocked(file, boltfile.Options{OnPanic: o.OnPanic})
}

// OpenLocked opens a file that boltfile.Lock has returned. It returns the damage for which Open sets the file aside.
func OpenLocked(file *os.File, o boltfile.Options) (f *boltfile.File, damage, err error) {
	o.Check = check
	f, damage, err = boltfile.OpenLocked(file, o)
	if errors.Is(damage, ErrNewerFormat) {
		return nil, nil, errors.Join(damage, err)
	}
	return f, damage, err
}

func absent(path string, o Options) (*Distrust, error) {
	aside, err := lastAside(path)
	switch {
	case err != nil:
		return nil, err
	case aside != "": // a crash after the damaged file was set aside and before the new store was made
		return &Distrust{Since: o.Now, Reason: "the store was damaged and set aside as " + aside}, nil
	case o.KeyExists:
		return &Distrust{Since: o.Now, Reason: "the store is missing although the node's key shows that there was one"}, nil
	}
	return nil, nil //nolint:nilnil // trusted
}

func lastAside(path string) (last string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+asideInfix) {
			last = e.Name()
		}
	}
	return last, err
}

func check(tx *bolt.Tx) error {
	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return errors.New("bucket meta is missing")
	}
	if _, err := decode(bucketMeta, []byte(metaFormat), meta.Get([]byte(metaFormat))); err != nil {
		return err
	}
	for _, name := range buckets() {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("bucket %s is missing", name)
		}
	}
	// It may be a bucket whose name is damaged.
	unknown := tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if b == nil || !slices.Contains(allBuckets(), string(name)) {
			return fmt.Errorf("bucket %q is unknown", name)
		}
		return nil
	})
	if unknown != nil {
		return unknown
	}
	// It may be the key of distrust, which must not get lost.
	return meta.ForEach(func(k, _ []byte) error {
		if !isPlace(bucketMeta, k) {
			return fmt.Errorf("bucket meta: unknown key %q", k)
		}
		return nil
	})
}

// create makes a new store under a temporary name, and renames it when it is complete.
func create(path string, o Options, distrust *Distrust) (*boltfile.File, error) {
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := boltfile.Create(temporary)
	if err != nil {
		return nil, err
	}
	err = f.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets() {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		t := beginTx(&facts{})
		t.setFormat(formatPlain)
		if distrust != nil {
			t.putMeta(metaDistrust, distrust)
		}
		return errors.Join(t.err, t.write(tx))
	})
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(temporary))
	}
	crashpoint.Hit(crashpoint.StoreTemporary)
	if err := os.Rename(temporary, path); err != nil {
		return nil, err
	}
	crashpoint.Hit(crashpoint.StoreRenamed)
	if err := disk.SyncFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, damage, err := openFile(path, o)
	return f, errors.Join(damage, err)
}

func asideOf(path string, now time.Time) string {
	base := path + asideInfix + now.UTC().Format("20060102T150405Z")
	to := base
	for n := 1; ; n++ {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to
		}
		to = fmt.Sprintf("%s-%d", base, n)
	}
}

func setAside(path string, now time.Time) (string, error) {
	to := asideOf(path, now)
	if err := os.Rename(path, to); err != nil {
		return "", err
	}
	crashpoint.Hit(crashpoint.SetAside)
	return to, disk.SyncFolder(filepath.Dir(path))
}

// readFacts reads all facts. It removes the values that cannot be read, and distrusts the store, in one transaction. A
// copy stays beside it.
func readFacts(f *boltfile.File, path string, now time.Time, report *Report) (found *facts, err error) {
	aside, copied := asideOf(path, now), path+".copy" // one name, so that starts that fail leave at most one copy
	var lost []place
	err = f.View(func(tx *bolt.Tx) error {
		if found, lost = load(tx); len(lost) == 0 {
			return nil
		}
		to, err := os.OpenFile(copied, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = tx.WriteTo(to)
		if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
			return errors.Join(err, os.Remove(copied))
		}
		return nil
	})
	if err != nil || len(lost) == 0 {
		return found, err
	}
	report.SetAside = aside
	report.Damage = fmt.Sprintf("values that could not be read: %d, the first: %s", len(lost), lost[0])
	t := beginTx(found)
	err = f.Update(func(b *bolt.Tx) error {
		for _, p := range lost {
			if err := b.Bucket([]byte(p.bucket)).Delete(p.key); err != nil {
				return err
			}
		}
		d := Distrust{Since: now}
		if t.meta.distrust != nil {
			d = *t.meta.distrust
			d.Reason += "; "
		}
		d.Reason += report.Damage + "; a start removed them, " + filepath.Base(aside) + " is a copy of the store before that"
		t.putMeta(metaDistrust, d)
		t.noteRevoked(now) // what was removed may have contained a revocation
		if t.endorsed == 0 {
			t.setFormat(formatPlain)
		}
		return errors.Join(t.err, t.write(b))
	})
	if err != nil {
		return nil, err
	}
	*found = t.facts
	return found, os.Rename(copied, aside)
}

type place struct {
	bucket string
	key    []byte
}

func (p place) String() string { return p.bucket + " " + KeyText(p.bucket, p.key) }
