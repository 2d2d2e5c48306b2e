package admission

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Rules are what a chain decides by. The zero value has no validator and admits everything.
type Rules struct {
	Validators       []Named // asked in parallel
	PolicyHash       string  // identifies the policies of the validators; it is in each decision
	AuditOnly        bool    // marks all findings Audit, so that nothing is denied
	ExemptStaticPods bool
	ExemptNamespaces []string
	// RecheckRestarts has a container judged again that its pod has started before, and a new sandbox of such a pod.
	RecheckRestarts bool
}

// A Named is a validator with its name, which is in all of its findings.
type Named struct {
	Name      string
	Validator Validator
}

// A Chain asks validators. A nil Chain admits everything and remembers nothing. Its methods may be called concurrently.
type Chain struct {
	onPanic func(validator string, value any, stack []byte)
	rules   atomic.Pointer[Rules]
	mu      sync.RWMutex
	started map[string][]container // by pod UID; the latest container is the last one
}

var none Rules //nolint:gochecknoglobals // never modified

// New returns a chain. onPanic, or nil, is called, concurrently, when a validator panics.
func New(r Rules, onPanic func(validator string, value any, stack []byte)) *Chain {
	c := &Chain{onPanic: onPanic, started: map[string][]container{}}
	c.Set(r)
	return c
}

// Set replaces the rules for each Evaluate that begins after it returns. The caller must not modify what r refers to.
// Containers that were marked as admitted stay marked.
func (c *Chain) Set(r Rules) { c.rules.Store(&r) }

func (c *Chain) current() *Rules {
	if c == nil {
		return &none
	}
	return c.rules.Load()
}

// MarkAdmitted notes that a pod has started a container from an image, so that its restart, and a new sandbox for the
// pod, are admitted. It does nothing if one of the three is "". What exceeds the limits is judged again.
func (c *Chain) MarkAdmitted(podUID, name, imageID string) {
	if name != "" {
		c.note(podUID, container{name, imageID})
	}
}

// MarkMounted notes that a pod has started a container that mounts an image. The restart of a container is admitted
// only if all images that it mounts were noted: the tag of a volume can move while the pod runs.
func (c *Chain) MarkMounted(podUID, imageID string) {
	c.note(podUID, container{imageID: imageID})
}

// HasStarted reports whether a pod has started a container with an image, and its restart is not judged again.
func (c *Chain) HasStarted(podUID, imageID string) bool {
	return c != nil && !c.rules.Load().RecheckRestarts && podUID != "" && imageID != "" &&
		c.hasStarted(podUID, func(started container) bool { return started.imageID == imageID })
}

// ForgetPod removes what MarkAdmitted and MarkMounted noted about a pod.
func (c *Chain) ForgetPod(podUID string) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.started, podUID)
	}
}

// Evaluate asks all validators about a subject that is not exempt, and combines their findings.
func (c *Chain) Evaluate(ctx context.Context, s Subject) Decision {
	r := c.current()
	return c.evaluate(ctx, r, r.Validators, s)
}

// Ask is Evaluate with one validator, which need not be in the rules.
func (c *Chain) Ask(ctx context.Context, v Named, s Subject) Decision {
	return c.evaluate(ctx, c.current(), []Named{v}, s)
}

// An Explanation is what a chain would decide about a subject. The zero value denies.
type Explanation struct {
	Decision
	Stage     Stage
	Container string // its name; "" at StageSandbox, and if it is not known
	Certain   bool   // false if the decision denies and could admit by the values of unknown fields
}

// Explain evaluates a subject that the caller knows in part; if it is Offline, answers of the network are unknown. If
// the container was started before, Findings are those that would deny or report another one, whatever is unknown.
func (c *Chain) Explain(ctx context.Context, s Subject) Explanation {
	e := Explanation{Stage: s.Stage, Certain: true}
	if s.Container != nil {
		e.Container = s.Container.Name
	}
	r := c.current()
	e.Decision = c.evaluate(ctx, r, r.Validators, s)
	switch {
	case e.Exemption == StartedBefore:
		s.AssumeUnknown = true
		e.Findings = slices.DeleteFunc(c.askAll(ctx, r, r.Validators, s), func(f Finding) bool {
			return f.Answer == Admit && !f.Reported()
		})
	case !e.Admitted():
		s.AssumeUnknown = true
		e.Certain = !c.evaluate(ctx, r, r.Validators, s).Admitted()
	}
	return e
}

func (c *Chain) evaluate(ctx context.Context, r *Rules, validators []Named, s Subject) Decision {
	if e := c.exemption(r, &s); e != "" {
		return r.exempted(e)
	}
	return r.decision(c.askAll(ctx, r, validators, s))
}

func (r *Rules) exempted(e Exemption) Decision {
	return Decision{Answer: Admit, Exemption: e, PolicyHash: r.PolicyHash}
}

func (r *Rules) decision(findings []Finding) Decision {
	return Decision{Answer: answerOf(findings), Findings: findings, PolicyHash: r.PolicyHash}
}

// EvaluateEdited is Evaluate for a subject that is exempt as StartedBefore, and differs from before, which was started.
// A finding about a rule that before does not meet either is left out: new policies stop no workload that runs. What
// hooks find is never left out, because a hook names one reason of several.
func (c *Chain) EvaluateEdited(ctx context.Context, before, edited Subject) Decision {
	r := c.current()
	if e := c.exemption(r, &edited); e != "" && e != StartedBefore {
		return r.exempted(e)
	}
	edited.Edited = true
	noAnswer := []Reason{ValidatorFailed, ReviewUnavailable}
	denies := func(f Finding) bool { return f.Answer != Admit && !slices.Contains(noAnswer, f.Reason) }
	unmet := c.askAll(ctx, r, slices.DeleteFunc(slices.Clone(r.Validators), func(v Named) bool {
		return v.Name == HookValidator
	}), before)
	return r.decision(slices.DeleteFunc(c.askAll(ctx, r, r.Validators, edited), func(f Finding) bool {
		return denies(f) && slices.ContainsFunc(unmet, func(b Finding) bool {
			return denies(b) && b.Validator == f.Validator && b.Policy == f.Policy && b.Rule == f.Rule
		})
	}))
}

// Same is Comparer.Same for all validators.
func (c *Chain) Same(a, b Subject) bool {
	for _, v := range c.current().Validators {
		if comparer, ok := v.Validator.(Comparer); !ok || !comparer.Same(a, b) {
			return false
		}
	}
	return true
}

// Exempts reports why the chain would ask no validator about a subject; "" if it would ask them.
func (c *Chain) Exempts(s Subject) Exemption { return c.exemption(c.current(), &s) }

func (c *Chain) exemption(r *Rules, s *Subject) Exemption {
	switch {
	case len(r.Validators) == 0:
		return NoPolicies
	case r.ExemptStaticPods && s.Pod.Static:
		return ExemptStaticPod
	case s.Pod.Namespace != "" && slices.Contains(r.ExemptNamespaces, s.Pod.Namespace):
		return ExemptNamespace
	case !r.RecheckRestarts && c.startedBefore(s):
		return StartedBefore
	}
	return ""
}

// startedBefore reports whether the pod has started the container or, for a sandbox, any one: a reboot ends sandboxes.
func (c *Chain) startedBefore(s *Subject) bool {
	switch s.Stage {
	case StageContainer:
		if s.Pod.UID == "" || s.Container == nil || s.Container.Name == "" || s.Image.ID == "" {
			return false
		}
		for _, mounted := range s.Mounted {
			if mounted.ID == "" || !c.hasStarted(s.Pod.UID, container{imageID: mounted.ID}.equal) {
				return false
			}
		}
		return c.hasStarted(s.Pod.UID, container{s.Container.Name, s.Image.ID}.equal)
	case StageSandbox:
		return c.hasStarted(s.Pod.UID, func(container) bool { return true })
	case StageAdmission, StageTemplate, StageImageReview:
	}
	return false
}

// askAll asks the validators in parallel, the first one in the goroutine of the caller.
func (c *Chain) askAll(ctx context.Context, r *Rules, validators []Named, s Subject) []Finding {
	switch len(validators) {
	case 0:
		return nil
	case 1:
		return c.ask(ctx, validators[0], r.AuditOnly, s)
	}
	each := make([][]Finding, len(validators))
	var others sync.WaitGroup
	for i := 1; i < len(validators); i++ {
		others.Go(func() { each[i] = c.ask(ctx, validators[i], r.AuditOnly, s) })
	}
	each[0] = c.ask(ctx, validators[0], r.AuditOnly, s)
	others.Wait()
	for i, findings := range each {
		if len(findings) == 0 { // the goroutine ended without a result
			each[i] = []Finding{failed(validators[i].Name, r.AuditOnly)}
		}
	}
	return slices.Concat(each...)
}

// ask returns at least one finding.
func (c *Chain) ask(ctx context.Context, v Named, auditOnly bool, s Subject) []Finding {
	began := time.Now()
	findings := slices.Clone(c.call(ctx, v, s)) // the validator may return the same slice to all callers
	took := time.Since(began)
	if len(findings) == 0 {
		findings = []Finding{failed(v.Name, auditOnly)}
	}
	for i := range findings {
		f := &findings[i]
		f.Validator, f.Duration, f.Audit = v.Name, took, f.Audit || auditOnly
	}
	return findings
}

func (c *Chain) call(ctx context.Context, v Named, s Subject) (findings []Finding) {
	defer func() {
		if value := recover(); value != nil {
			findings = nil
			if c.onPanic != nil {
				c.onPanic(v.Name, value, debug.Stack())
			}
		}
	}()
	return v.Validator.Validate(ctx, s)
}

// failed is the finding for a validator without one. It denies, because a pull cannot bring what is missing.
func failed(name string, auditOnly bool) Finding {
	return Finding{
		Validator: name, Answer: Deny, Reason: ValidatorFailed, Audit: auditOnly,
		Message: "validator " + name + " failed, which is a defect of pullgate; see the log of pullgated on this node",
	}
}

// Limits of the containers that are noted. A kubelet runs some hundreds of pods, and images of a pod can be changed.
const (
	maxPods       = 4096
	maxContainers = 256 // per pod
)

type container struct{ name, imageID string }

func (c container) equal(o container) bool { return c == o }

// note notes a container. Above the limits, a pod loses its first container, and a further pod is not noted.
func (c *Chain) note(podUID string, started container) {
	if c == nil || podUID == "" || started.imageID == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list, known := c.started[podUID]
	switch {
	case slices.Contains(list, started), !known && len(c.started) == maxPods:
		return
	case len(list) == maxContainers:
		list = slices.Delete(list, 0, 1)
	}
	c.started[podUID] = append(list, started)
}

func (c *Chain) hasStarted(podUID string, matches func(container) bool) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.ContainsFunc(c.started[podUID], matches)
}
