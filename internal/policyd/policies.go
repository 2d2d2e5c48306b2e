package policyd

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/hint"
	"github.com/pullgate/pullgate/internal/policyd/metrics"
	"github.com/pullgate/pullgate/pkg/admission/files"
)

// Policies are the policy files in use. Its methods may be called concurrently.
type Policies struct {
	log     klog.Logger
	metrics *metrics.Metrics
	paths   files.Paths
	kinds   []files.Kind

	// current is the last valid set; it has nil without a folder.
	current atomic.Pointer[files.Set]

	// mu guards watcher. It is held while the folder is read.
	mu      sync.Mutex
	watcher *files.Watcher
}

// openPolicies reads the policy files.
func openPolicies(folder string, kinds []files.Kind, m *metrics.Metrics, log klog.Logger) (*Policies, error) {
	p := &Policies{log: log, metrics: m, paths: files.Paths{Folder: folder}, kinds: kinds, watcher: files.NewWatcher(kinds)}
	set, err := p.watcher.Load(p.paths)
	if err != nil {
		return nil, hint.Wrap(fmt.Errorf("read policies:\n%w", err),
			"correct the files, pullgate-policyd --check-config lists all errors; or set policies to \"\" for none")
	}
	p.publishLocked(set, nil)
	return p, nil
}

// Set returns the policy files in use, nil if no folder is configured. The result is immutable.
func (p *Policies) Set() *files.Set { return p.current.Load() }

// reload reads the folder now.
func (p *Policies) reload() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.publishLocked(p.watcher.Load(p.paths))
}

// poll reads the folder, and uses its content if it has changed and is complete.
func (p *Policies) poll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if set, changed, err := p.watcher.Poll(); changed {
		p.publishLocked(set, err)
	}
}

// withHash returns the policy files with a hash. It reads the folder again if those in use have another one; nil means that the folder
// has another one too. A matching hash shows that the files are complete, so that nothing is waited for.
func (p *Policies) withHash(hash string) *files.Set {
	if set := p.Set(); set == nil || set.Hash == hash {
		return set
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if set := p.Set(); set.Hash == hash { // another request has read it
		return set
	}
	set, err := files.Read(p.paths, p.kinds)
	if err != nil || set.Hash != hash {
		return nil // reload and poll report errors
	}
	p.publishLocked(set, nil)
	return set
}

// publishLocked uses a set that was read, or after an error the last valid one.
func (p *Policies) publishLocked(set *files.Set, err error) {
	if p.paths.Folder == "" {
		return
	}
	p.metrics.PoliciesRead(err == nil)
	if err != nil {
		p.log.Error(oneLine(err), "Policies not read, the previous ones stay in use", "policies", p.paths.Folder)
		return
	}
	before := p.current.Swap(set)
	if before != nil && before.Hash == set.Hash {
		return
	}
	var counts []any
	for _, k := range p.kinds {
		counts = append(counts, k.Name, set.Len(k.Name))
	}
	p.log.Info("Policies read", "policies", p.paths.Folder, "hash", set.Hash, "ignored", set.Ignored, "kinds", counts)
}

// oneLine returns an error with its lines in one, because the journal has one line for each event.
func oneLine(err error) error {
	return errors.New(strings.ReplaceAll(strings.ReplaceAll(err.Error(), ":\n", ": "), "\n", "; "))
}
