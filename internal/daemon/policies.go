package daemon

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	policyInterval = 3 * time.Second  // how often the policy files are read
	kubeletLimit   = 10 * time.Second // how long systemd may take to show the unit of the kubelet
	// maxUnjudgedLogged is how many fields are logged that this node never sees. The metric counts all of them.
	maxUnjudgedLogged = 20
)

func policyPaths(c config.Admission) policyfiles.Paths {
	return policyfiles.Paths{Folder: c.Policies, NamespaceLabels: c.NamespaceLabels, TrustedRoot: c.TrustedRoot}
}

// policies keeps a chain up to date. reload, poll, list, followed and the chain may be called concurrently.
type policies struct {
	log     klog.Logger
	metrics *metrics.Metrics
	from    restriction.Source
	listed  atomic.Pointer[adminv1.ListPoliciesResponse] // for the admin API; nil while there are no policies
	policyd *policydClient
	// kubelet receives admission.kubeletRoot when policies come into use. Only the newest value waits.
	kubelet chan string

	store      policyclient.EndorsementStore
	endorsing  *policyclient.EndorserState
	signatures atomic.Pointer[signatureSet] // never nil
	following  singleflight.Group           // of followed, by hash

	// mu guards the fields that follow, also while files are read. Calls wait for it if pullgate-policyd has other files.
	mu        sync.Mutex
	watcher   *policyfiles.Watcher
	config    config.Admission
	grace     time.Duration    // registryUnavailableGrace
	set       *policyfiles.Set // the last valid one; nil while there are no policies
	waiting   *policyfiles.Set // a newer one whose expressions pullgate-policyd has not compiled yet; mostly nil
	chain     *admission.Chain // nil while there are no policies
	review    *policyclient.Reviewer
	hooks     *policyclient.HookValidator // nil if no hook is asked at the node
	node      string                      // the name of the node, for hooks
	access    access
	readErr   error  // of the last reading
	published func() // called after each change, with mu held; nil until the gate exists
}

func (p *policies) close() error { return p.policyd.Close() }

// forGate returns what the gate asks, nil while there are no policies. views is the pod source, nil if there is none.
func (p *policies) forGate(views gate.ViewSource) *gate.Admission {
	if p.chain == nil {
		return nil
	}
	a := &gate.Admission{
		Chain: p.chain, NamespaceLabels: p.set.NamespaceLabels, KubeletRoot: p.config.KubeletRoot,
		Views: views,
	}
	if e := p.signatures.Load().endorser; e != nil {
		a.Endorser = e
	}
	return a
}

// publishTo has a gate use what is in force from now on, and after each change.
func (p *policies) publishTo(judge *gate.Gate, views gate.ViewSource, keep func(fields []string)) {
	p.published = func() {
		keep(p.fields()) // first, so that the pod source has what the new policies use
		judge.SetAdmission(p.forGate(views))
		p.accessFor(judge)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.access.gate = judge
	p.accessFor(judge)
}

func (p *policies) fields() []string {
	if p.set == nil {
		return nil
	}
	used := policyfiles.Restrictions(p.set).Restricted()
	if len(policyfiles.BackendsOf(p.set)) > 0 {
		used = append(used, podsource.ReviewAnnotations, "spec.spec.containers[].image[]", "spec.spec.volumes[]")
	}
	if policyfiles.HooksOf(p.set).AtNode() {
		used = append(used, podsource.Object)
		for _, f := range restriction.Fields() { // the object counts only if nothing differs from the CRI
			used = append(used, f.Path)
		}
	}
	return used
}

func openPolicies(o Options, m *metrics.Metrics, store policyclient.EndorsementStore) (*policies, error) {
	p := &policies{
		log: o.Log.WithName("policies"), metrics: m, watcher: new(policyfiles.Watcher),
		from: restriction.SourceOf(o.Config.PodSource.Kubeconfig != ""), config: o.Config.Admission,
		grace: o.Config.RegistryUnavailableGrace.Value(), store: store, node: o.Config.PodSource.NodeName,
		endorsing: policyclient.NewEndorserState(), kubelet: make(chan string, 1),
		access: access{neverVerify: o.Config.NeverVerifyByKubelet()},
	}
	if p.node == "" {
		host, _ := os.Hostname() // only hooks need it
		p.node = strings.ToLower(host)
	}
	set, err := p.watcher.Load(policyPaths(p.config))
	if err != nil {
		return nil, program.WithHint(fmt.Errorf("read admission.policies:\n%w", err),
			"correct the files, pullgated --check-config lists all errors; or set admission.policies to \"\" for no policies")
	}
	if p.policyd, err = newPolicydClient(p.log, p.config.PolicydSocket); err != nil {
		return nil, err
	}
	p.apply(set, nil)
	return p, nil
}

// reload reads the policy files by a new configuration. If they are invalid, it applies that to the last valid ones.
func (p *policies) reload(c config.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.grace, p.access.neverVerify = c.Admission, c.RegistryUnavailableGrace.Value(), c.NeverVerifyByKubelet()
	set, err := p.watcher.Load(policyPaths(p.config))
	p.apply(set, err)
}

func (p *policies) poll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pollLocked()
}

func (p *policies) pollLocked() {
	set, changed, err := p.watcher.Poll()
	switch waiting := p.waiting; {
	case changed:
		p.apply(set, err)
	case waiting != nil && p.compiled(waiting) == nil:
		p.waiting = nil
		p.accept(waiting, nil)
	default:
		if p.useAccess() {
			p.publish()
			p.keepList(p.readErr)
		}
	}
}

// apply uses a set that was read, unless it has to wait, or after an error the last valid one.
func (p *policies) apply(set *policyfiles.Set, err error) {
	if p.waiting = nil; err == nil {
		p.access.newest = set // which needs no pullgate-policyd
		if err = p.compiled(set); err != nil {
			p.waiting = set
		}
	}
	p.accept(set, err)
}

func (p *policies) accept(set *policyfiles.Set, err error) {
	p.readErr = err
	p.use(set, err)
	p.useAccess()
	p.publish()
	p.keepList(err)
}

func (p *policies) publish() {
	if p.published != nil {
		p.published()
	}
}

// compiledLimit bounds how long pullgate-policyd may take to say that it has the same policy files.
const compiledLimit = 2 * time.Second

// compiled returns an error if a set has other expressions or hooks than the one in force, and pullgate-policyd, which
// compiles and asks them, does not have the set. The set in force stays until then.
//
//nolint:contextcheck,nolintlint // files are read by a loop, and the question is short
func (p *policies) compiled(set *policyfiles.Set) error {
	if set == nil || p.set == nil {
		return nil
	}
	hooks, known := policyfiles.HooksOf(set), expressionsOf(p.set, true)
	signed, _ := policyfiles.NeedSignatures(policyfiles.Requirements(set))
	newHooks := hooks.AtNode() && !reflect.DeepEqual(hooks, policyfiles.HooksOf(p.set))
	if !newHooks && !slices.ContainsFunc(expressionsOf(set, signed), func(e expressions) bool {
		return !slices.ContainsFunc(known, func(k expressions) bool { return reflect.DeepEqual(k, e) })
	}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), compiledLimit)
	defer cancel()
	_, err := p.policyd.Review(ctx, policyclient.ReviewRequest{PolicyHash: set.Hash, Namespace: "default"})
	if err != nil {
		return fmt.Errorf("the policies have conditions or hooks, and pullgate-policyd has not accepted them: %w", err)
	}
	return nil
}

// expressions are what pullgate-policyd compiles of a rule.
type expressions struct {
	requirement string // its hash, if it has conditions
	object      [2]*requirement.Validation
	mutation    *requirement.Mutation
	paths       []requirement.ImagePath
}

// expressionsOf returns those of nodes, or all. With an invalid one, pullgate-policyd would keep the set before, and
// verify nothing by the new one. What no node enforces does not delay others unless they need pullgate-policyd.
func expressionsOf(set *policyfiles.Set, all bool) (list []expressions) {
	for _, r := range policyfiles.AllRules(set) {
		e := expressions{object: [2]*requirement.Validation{r.Object, r.Selects}, mutation: r.Mutation}
		if r.Requirement != nil && r.Requirement.HasConditions() {
			e.requirement = r.Hash
		}
		if r.Custom != nil {
			e.paths = r.Custom.Paths
		}
		if all && !reflect.DeepEqual(e, expressions{}) || r.AtNode() && e.requirement != "" {
			list = append(list, e)
		}
	}
	return list
}

func (p *policies) use(set *policyfiles.Set, err error) {
	if err != nil {
		p.metrics.PoliciesRead(false)
		p.log.Error(safetext.OneLine(err), "Failed to read the policies: the previous ones stay in use",
			"policies", p.config.Policies)
		if p.chain != nil {
			p.useSignatures(p.set) // under the new settings
			p.chain.Set(p.rules())
		}
		return
	}
	if set == nil {
		if p.set != nil {
			p.log.Info("Policies disabled")
		}
		p.set, p.chain, p.review, p.hooks = nil, nil, p.reviewBy(nil), nil
		p.useSignatures(nil)
		p.metrics.NoPolicies()
		return
	}
	p.set, p.review, p.hooks = set, p.reviewBy(set), p.askedBy(set)
	p.useSignatures(set)
	if p.chain == nil {
		p.chain = admission.New(p.rules(), p.panicked)
	} else {
		p.chain.Set(p.rules())
	}
	p.report()
}

func (p *policies) rules() admission.Rules {
	r := admission.Rules{
		PolicyHash: p.set.Hash, AuditOnly: !p.config.Enforce, RecheckRestarts: p.config.RecheckRestarts,
		ExemptStaticPods: p.config.Exempt.StaticPods, ExemptNamespaces: slices.Clone(p.config.Exempt.Namespaces),
	}
	if p.set.Len(restriction.Kind) > 0 {
		options := restriction.Options{From: p.from, Refuse: p.config.Unjudged == config.UnjudgedRefuse}
		r.Validators = append(r.Validators, admission.Named{
			Name:      admission.RestrictionValidator,
			Validator: restriction.NewValidator(policyfiles.Restrictions(p.set), options),
		})
	}
	if len(policyfiles.BackendsOf(p.set)) > 0 {
		r.Validators = append(r.Validators, admission.Named{Name: admission.ReviewValidator, Validator: p.review})
	}
	if e := p.signatures.Load().endorser; e != nil {
		r.Validators = append(r.Validators, admission.Named{Name: admission.SignatureValidator, Validator: e})
	}
	if p.hooks != nil {
		r.Validators = append(r.Validators, admission.Named{Name: admission.HookValidator, Validator: p.hooks})
	}
	return r
}

func (p *policies) report() {
	fields := policyfiles.Unjudged(p.set, p.from)
	p.metrics.PoliciesRead(true)
	p.metrics.Policies(p.set.Len, len(fields))
	p.log.Info("Policies read", "policies", p.config.Policies, "restrictions", p.set.Len(restriction.Kind),
		"hash", p.set.Hash, "enforcing", p.config.Enforce,
		"exemptStaticPods", p.config.Exempt.StaticPods, "exemptNamespaces", p.config.Exempt.Namespaces,
		"unjudged", p.config.Unjudged,
		"namespaces", len(p.set.NamespaceLabels), "recheckRestarts", p.config.RecheckRestarts, "ignored", p.set.Ignored,
		"imageAccesses", p.set.Len(imageaccess.Kind),
		"hooks", len(policyfiles.HooksOf(p.set)), "imageReviewBackends", p.set.Len(policyfiles.BackendKind),
		"signatureRules", len(p.Rules().Rules()),
		"trustedRoot", p.signatures.Load().version.TrustedRoot)
	policyfiles.BackendsOf(p.set).Log(p.log)
	policyfiles.HooksOf(p.set).Log(p.log)
	select {
	case <-p.kubelet: // an older value
	default:
	}
	p.kubelet <- p.config.KubeletRoot // report is called with mu held, so there is room
	for _, f := range fields[:min(len(fields), maxUnjudgedLogged)] {
		p.log.Info("Policy restricts a field that this node never sees", "policy", f.Policy, "field", f.Path,
			"unjudged", p.config.Unjudged)
	}
	if more := len(fields) - maxUnjudgedLogged; more > 0 {
		p.log.Info("Policies restrict more fields that this node never sees", "fields", more,
			"hint", "pullgatectl policy list")
	}
}

// compareKubelet compares admission.kubeletRoot with the kubelet whenever policies come into use. It waits for systemd.
func (p *policies) compareKubelet(ctx context.Context, host doctor.Host) {
	for {
		select {
		case <-ctx.Done():
			return
		case root := <-p.kubelet:
			limited, cancel := context.WithTimeout(ctx, kubeletLimit)
			if err := host.CheckRoot(limited, "", root); err != nil && ctx.Err() == nil {
				p.log.Error(err, "Volumes of pods may be evaluated as hostPath: "+
					"compare admission.kubeletRoot with --root-dir of the kubelet")
			}
			cancel()
		}
	}
}

func (p *policies) panicked(validator string, value any, stack []byte) {
	p.metrics.Panic()
	p.log.Error(fmt.Errorf("panic: %v", value), "A validator of policies panicked, the container is denied",
		"validator", validator, "stack", string(stack))
}

// list returns the policies in use for the admin API, nil if there are none. It may be called concurrently.
func (p *policies) list() *adminv1.ListPoliciesResponse { return p.listed.Load() }

// keepList makes list return what is in use now. err is why that is not the present content of the folder.
func (p *policies) keepList(err error) {
	if p.set == nil && err == nil {
		p.listed.Store(nil)
		return
	}
	l := &adminv1.ListPoliciesResponse{
		Folder: p.config.Policies, Enforcing: p.config.Enforce,
		RefuseUnjudged: p.config.Unjudged == config.UnjudgedRefuse,
	}
	if p.set != nil {
		l.Hash = p.set.Hash
	}
	if err != nil {
		l.ReloadError = safetext.OneLine(err).Error()
	}
	unjudged := map[string][]string{}
	for _, f := range policyfiles.Unjudged(p.set, p.from) {
		unjudged[f.Policy] = append(unjudged[f.Policy], f.Path)
	}
	backends := policyfiles.BackendsOf(p.set)
	for _, b := range backends {
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: policyfiles.BackendKind, Name: b.Name, AllNamespaces: b.Namespaces == nil, Namespaces: b.Namespaces,
			ReviewBackend: &adminv1.ReviewBackend{
				DefaultAllow: b.DefaultAllow, DefaultAllowAbsent: b.DefaultAllowAbsent,
				AllowTtl: durationpb.New(b.AllowTTL), DenyTtl: durationpb.New(b.DenyTTL),
				IncludeImageVolumes: b.IncludeImageVolumes,
			},
		})
	}
	for _, f := range policyfiles.AccessOf(p.access.newest).Files() {
		namespaces, accounts := f.Who()
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: imageaccess.Kind, Name: f.Name, Mode: string(f.Grant), Audit: f.Audit,
			Namespaces: append(namespaces, accounts...), Images: f.Images,
		})
	}
	l.Warnings = append(backends.Warnings(), p.access.warnings()...)
	l.Warnings = append(l.Warnings, policyfiles.Notes(p.set)...)
	hooks := policyfiles.HooksOf(p.set)
	for i := range hooks {
		h := &hooks[i]
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: h.Kind(), Name: h.Name, Audit: h.Audit, AllNamespaces: h.Namespaces.String() == "",
			NamespaceSelector: h.Namespaces.String(), Hook: &adminv1.Hook{
				At: h.At, Stages: h.Stages, Address: h.Address(), FailurePolicy: h.FailurePolicy(),
				Timeout: durationpb.New(h.Timeout), ObjectSelector: h.Objects.String(),
			},
		})
	}
	for _, d := range policyfiles.DefaultsOf(p.set) {
		bound := d.Summary()
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: policyfiles.DefaultsKind, Name: d.Name, Mode: "Admission", AllNamespaces: bound.Everywhere,
			Namespaces: bound.Namespaces, NamespaceSelector: bound.Selector,
		})
	}
	rules := p.Rules().Rules()
	for i := range rules {
		r := &rules[i]
		if i == 0 || rules[i-1].Kind != r.Kind || rules[i-1].Policy != r.Policy {
			l.Policies = append(l.Policies, &adminv1.Policy{Kind: r.Kind, Name: r.Policy})
		}
		last := l.Policies[len(l.Policies)-1]
		last.SignatureRules = append(last.SignatureRules, signatureRule(r))
	}
	for _, s := range policyfiles.Restrictions(p.set).Policies() {
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: restriction.Kind, Name: s.Name, Mode: string(s.Mode), Audit: s.Audit,
			AllNamespaces: s.Everywhere, Namespaces: s.Namespaces, NamespaceSelector: s.Selector,
			Unjudged: unjudged[s.Name],
		})
	}
	slices.SortStableFunc(l.Policies, func(a, b *adminv1.Policy) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetName(), b.GetName()))
	})
	p.listed.Store(l)
}

func signatureRule(r *requirement.Rule) *adminv1.SignatureRule {
	to := &adminv1.SignatureRule{
		Name: r.Name, Namespaces: r.Scope.String(), Requirement: r.Hash, DigestRequired: r.RequireDigest,
		Default: r.Default.String(), Audit: r.Mode == requirement.Audit, Requires: r.Requires(),
	}
	for _, image := range r.Images {
		to.Images = append(to.Images, image.String())
	}
	return to
}
