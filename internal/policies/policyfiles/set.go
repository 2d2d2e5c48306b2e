package policyfiles

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// Paths are what a Set is read from.
type Paths struct {
	Folder          string // of policy files; "" means that there are no policies, and nothing is read
	NamespaceLabels string // a YAML file with the labels of namespaces; "" means that they are not known
	TrustedRoot     string // a file with certificates and keys that signatures are verified by; "" means none
	// AnyOwner reads files regardless of who owns them and who can write to them, for tests of policies.
	AnyOwner bool
	// Volume accepts a folder with mode 0777 if it is a volume of a ConfigMap, which kubelets mount read-only. Instead of
	// the folder, the one that its link ..data leads to must not be writable by others.
	Volume bool
}

// A Set has the policies of all files of a folder. It is immutable.
type Set struct {
	Hash            string                       // of the names and contents of the policy files
	Ignored         []string                     // names of entries that are not policy files, without hidden ones
	NamespaceLabels map[string]map[string]string // by namespace; others are not known
	TrustedRoot     []byte                       // the content of the file; nil if there is none
	restrictions    *restriction.Set
	access          *imageaccess.Set
	backends        Backends
	hooks           Hooks
	defaults        []PodDefaults
	notes           []string                // about hooks and defaults
	signatures      []*requirement.Policies // of each dialect
	number          map[string]int          // of policies, by kind
}

// Len returns the number of policies of a kind. A nil Set has none.
func (s *Set) Len(kind string) int { return cmp.Or(s, &Set{}).number[kind] }

// Empty reports whether a set has no policies. A nil Set has none.
func (s *Set) Empty() bool { return s == nil || len(s.number) == 0 }

// Read returns a complete set, nil if Paths.Folder is "", or an error that joins all errors of all files.
func Read(p Paths) (*Set, error) { return new(Watcher).Load(p) }

// ReadFiles is Read, and also returns the files.
func ReadFiles(p Paths) (*Set, []File, error) {
	c := scan(p)
	set, err := c.decode(p)
	return set, c.files, err
}

func (c *contents) decode(p Paths) (*Set, error) {
	s := &Set{Hash: c.hash, Ignored: c.ignored, TrustedRoot: c.trustedRoot, number: map[string]int{}}
	errs := c.errs
	byKind := map[string][]File{}
	for _, f := range c.files {
		k, err := kindOf(f.Data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Name, strictyaml.WithLines(f.Data, []error{err})[0]))
			continue
		}
		byKind[k] = append(byKind[k], f)
	}
	for _, k := range kinds() {
		if len(byKind[k.name]) == 0 {
			continue
		}
		if err := k.read(s, byKind[k.name]); err != nil {
			errs = append(errs, safetext.Split(err)...)
		}
		s.number[k.name] = len(byKind[k.name])
	}
	if p.NamespaceLabels != "" && c.labels != nil { // nil after an error
		labels, invalid := parseLabels(p.NamespaceLabels, c.labels)
		s.NamespaceLabels = labels
		errs = append(errs, invalid...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// A Watcher reads paths again when their content has changed. It is for one goroutine at a time.
type Watcher struct {
	paths            Paths
	decoded, pending [sha256.Size]byte // what Load or Poll returned last, valid or not, and what Poll saw last
}

// Load reads paths now, as Read does. Poll then reads these paths, also after an error.
func (w *Watcher) Load(p Paths) (*Set, error) {
	*w = Watcher{paths: p}
	if p.Folder == "" {
		return nil, nil //nolint:nilnil // no folder is not an error
	}
	c := scan(p)
	w.decoded = c.sum()
	return c.decode(p)
}

// Poll reads the paths of the last Load. It returns a content that differs from the one that was returned last, once it
// was the same in two successive calls.
func (w *Watcher) Poll() (set *Set, changed bool, err error) {
	if w.paths.Folder == "" {
		return nil, false, nil
	}
	c := scan(w.paths)
	sum := c.sum()
	if sum == w.decoded || sum != w.pending {
		w.pending = sum
		return nil, false, nil
	}
	w.decoded = sum
	set, err = c.decode(w.paths)
	return set, true, err
}
