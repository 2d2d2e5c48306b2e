package policyfiles

// The files of both dialects as they are written.
type (
	KyvernoDocument = kyvernoDocument
	CIPDocument     = cipDocument
)

// ReadKinds is Read for files of other kinds.
func ReadKinds(p Paths, kinds []Kind) (*Set, error) { return NewWatcherOf(kinds).Load(p) }

// NewWatcherOf is NewWatcher for files of other kinds.
func NewWatcherOf(kinds []Kind) *Watcher { return &Watcher{kinds: kinds} }
