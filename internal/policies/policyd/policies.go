package policyd

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

type policies struct {
	log        klog.Logger
	metrics    *metrics
	paths      policyfiles.Paths
	open       bool                  // everyone who reaches the webhook can send it requests
	namespaces clusters              // namespaces has the labels for restrictions; nil if there is no webhook
	signatures *verify.Service       // signatures has images verified
	chain      *admission.Chain      // chain judges restrictions for the webhook
	current    atomic.Pointer[inUse] // the last valid set; nil without a folder

	// mu guards the fields that follow. It is held while files are read.
	mu       sync.Mutex
	watcher  *policyfiles.Watcher
	backends review.Set
	hooks    hook.Set
	// failure is why the folder, a kubeconfig or a client certificate could not be read when it was last read.
	failure struct{ folder, kubeconfigs, certificates error }
	// sought is the version that with found when it last read the files; the zero value if they could not be read.
	sought policyfiles.Version

	// readings counts how often with has begun to read the files. It is changed with mu held.
	readings atomic.Uint64
}

// inUse is a set of policy files with the clients of its backends and hooks, and its rules about signatures. It is
// immutable.
type inUse struct {
	*policyfiles.Set

	version policyfiles.Version
	clients review.Clients
	hooks   []*hook.Client
	rules   *verify.Rules
}

// satisfies reports whether a request made with another version can be answered. The root counts for signatures alone.
func satisfies(v, want policyfiles.Version, signatures bool) bool {
	return v.Hash == want.Hash && (!signatures || v.TrustedRoot == want.TrustedRoot)
}

func openPolicies(c config.Policyd, n clusters, s *verify.Service, m *metrics, log klog.Logger) (*policies, error) {
	p := &policies{log: log, metrics: m, paths: paths(c), namespaces: n, signatures: s, watcher: new(policyfiles.Watcher)}
	p.open = c.HTTPS.Listen != "" && c.HTTPS.ClientCAFile == ""
	p.chain = admission.New(admission.Rules{}, p.panicked)
	p.mu.Lock()
	defer p.mu.Unlock()
	set, err := p.watcher.Load(p.paths)
	if err == nil {
		err = p.useLocked(set)
	}
	if err != nil {
		return nil, program.WithHint(fmt.Errorf("read policies:\n%w", err),
			"correct the files, pullgate-policyd --check-config lists all errors; or set policies to \"\" for none")
	}
	p.noteLocked(&p.failure.folder, nil, "")
	return p, nil
}

// paths returns how files are read. In a cluster the folder is a volume of a ConfigMap, which pullgated refuses.
func paths(c config.Policyd) policyfiles.Paths {
	return policyfiles.Paths{Folder: c.Policies, TrustedRoot: c.TrustedRoot, Volume: true}
}

func (p *policies) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backends.Close()
	p.hooks.Close()
}

// refresh reads the folder and the kubeconfigs; without a signal, the folder only if it has changed and is complete.
func (p *policies) refresh(signal bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if signal {
		p.failure.folder, p.failure.kubeconfigs, p.failure.certificates = nil, nil, nil // logged again
		set, err := p.watcher.Load(p.paths)
		p.takeLocked(set, err)
	} else if set, changed, err := p.watcher.Poll(); changed {
		p.takeLocked(set, err)
	}
	err := p.backends.Reload()
	p.noteLocked(&p.failure.kubeconfigs, err, "Failed to read the kubeconfig of a backend: the previous one stays in use")
	err = p.hooks.Reload()
	p.noteLocked(&p.failure.certificates, err,
		"Failed to read the client certificate of a hook: the previous one stays in use")
}

// with returns the policy files of a version, which it reads again if those in use have another one; nil means that the
// files have, too.
func (p *policies) with(want policyfiles.Version, signatures bool) *inUse {
	if set := p.current.Load(); set == nil || satisfies(set.version, want, signatures) {
		return set
	}
	before := p.readings.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	if set := p.current.Load(); satisfies(set.version, want, signatures) { // another request has read it
		return set
	}
	// since this request came, another one has found other files
	if p.readings.Load() > before && !satisfies(p.sought, want, signatures) {
		return nil
	}
	p.readings.Add(1)
	p.sought = policyfiles.Version{}
	set, err := policyfiles.Read(p.paths)
	if err != nil {
		return nil // reload and poll report errors
	}
	if p.sought = policyfiles.VersionOf(set); satisfies(p.sought, want, signatures) {
		p.takeLocked(set, nil)
	}
	if now := p.current.Load(); satisfies(now.version, want, signatures) {
		return now
	}
	return nil
}

func (p *policies) takeLocked(set *policyfiles.Set, err error) {
	if p.paths.Folder == "" {
		return
	}
	if err == nil {
		err = p.useLocked(set)
	}
	p.noteLocked(&p.failure.folder, err, "Failed to read the policies: the previous ones stay in use",
		"policies", p.paths.Folder)
}

func (p *policies) noteLocked(failure *error, err error, message string, keysAndValues ...any) {
	if err != nil && (*failure == nil || (*failure).Error() != err.Error()) {
		p.log.Error(safetext.OneLine(err), message, keysAndValues...)
	}
	*failure = err
	if p.paths.Folder != "" {
		p.metrics.policiesRead.Set(number(p.failure == struct{ folder, kubeconfigs, certificates error }{}))
	}
}

// useLocked uses a set, or returns why it cannot be used and changes nothing.
func (p *policies) useLocked(set *policyfiles.Set) error {
	current, version := p.current.Load(), policyfiles.VersionOf(set)
	if set == nil || current != nil && current.version == version {
		return nil
	}
	signed, err := p.signatures.Compile(set)
	if err != nil {
		return err
	}
	restrictions, backends := policyfiles.Restrictions(set), policyfiles.BackendsOf(set)
	hooks := policyfiles.HooksOf(set)
	checked, err := hook.Check(hooks) // before anything is changed
	if err != nil {
		return err
	}
	if err := p.namespaces.watch(policyfiles.NeedNamespaces(set)); err != nil {
		return err
	}
	if err := p.backends.Replace(backends); err != nil {
		return err
	}
	p.hooks.Replace(checked)
	rules := admission.Rules{PolicyHash: set.Hash}
	if restrictions.Len() > 0 {
		validator := restriction.NewValidator(restrictions, restriction.Options{From: restriction.Admission})
		rules.Validators = []admission.Named{{Name: admission.RestrictionValidator, Validator: validator}}
	}
	p.chain.Set(rules)
	p.current.Store(&inUse{set, version, p.backends.Clients(), p.hooks.Clients(), signed})
	if signed.Verifies() || signed.MutatesDigests() {
		p.metrics.verifiesSignatures()
	}
	var counts []any
	for _, k := range policyfiles.Kinds() {
		counts = append(counts, k, set.Len(k))
	}
	p.log.Info("Policies read", "policies", p.paths.Folder, "hash", set.Hash, "trustedRoot", version.TrustedRoot,
		"ignored", set.Ignored, "kinds", counts)
	backends.Log(p.log)
	hooks.Log(p.log)
	if p.open && slices.ContainsFunc(hooks, func(h policyfiles.Hook) bool { return h.AtAdmission() }) {
		p.log.Info("Hooks are asked about requests of everyone who reaches the webhook: set https.clientCAFile")
	}
	p.metrics.asksHooks(hooks, p.hooks.Open)
	return nil
}

func (p *policies) panicked(validator string, value any, stack []byte) {
	p.metrics.panics.Inc()
	p.log.Error(fmt.Errorf("panic: %v", value), "A validator of policies panicked, the request is denied",
		"validator", validator, "stack", string(stack))
}
