package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// Met is the outcome for an image that meets the requirement, Failed that of a verification without a result.
const (
	Met    = "met"
	Failed = "failed"
)

// Outcomes returns all outcomes of the verification of one requirement: Met, Failed, and the reasons in lower case.
func Outcomes() []string {
	all := []string{Met, Failed}
	for _, reason := range requirement.Reasons() {
		all = append(all, strings.ToLower(reason))
	}
	return all
}

// Errors of verifications. None of them says anything about an image.
var (
	ErrBusy               = errors.New("verify: too many verifications at the same time")
	ErrUnknownRequirement = errors.New("verify: unknown requirement") // the policy files have none with a hash
	ErrPanic              = errors.New("verify: the verification panicked")
)

// A Func verifies the signatures of an image; see [Verifier.Verify].
type Func func(ctx context.Context, i Image, want []*requirement.Rule, cred admission.Login, list bool) (
	requirement.Report, error,
)

// ServiceOptions are the settings of a Service.
type ServiceOptions struct {
	Config config.Policyd // Config must have been validated by the package config
	Log    klog.Logger
	// Requested gets the outcome of each request to a registry, and Verified that of each requirement.
	Requested, Verified func(outcome string)
	OnPanic             func(value any, stack []byte) // is called when a verification panics

	Verify  Func // Verify and Resolve replace those that use registries, for tests; nil means these
	Resolve func(repository, tag string) (string, error)
}

// A Service has signatures verified. Its methods may be called concurrently.
type Service struct {
	options ServiceOptions
	// registry is for images that the node has pulled, and webhook for images of pods that may never run.
	registry, webhook *registry.Client
	results, digests  *cache.LRUExpireCache // for the webhook

	inFlight   *inflight.Group[key, requirement.Report]
	namespaces *inflight.Group[namespaced, requirement.Report] // each of its work is one of inFlight
	memory     *semaphore.Weighted
	decoding   *semaphore.Weighted // see registry.Decoding
}

// NewService returns a service. It asks no registry. The caller must close it.
func NewService(o ServiceOptions) (*Service, error) {
	s := &Service{
		options: o, memory: semaphore.NewWeighted(maxMemory), decoding: semaphore.NewWeighted(1),
		results: cache.NewLRUExpireCache(cacheSize), digests: cache.NewLRUExpireCache(cacheSize),
		namespaces: newNamespaces(),
	}
	options := registry.Options{HostsDir: o.Config.Registries.HostsDir, Bundles: o.Config.Bundles, Count: o.Requested}
	var err error
	if s.registry, err = registry.New(options); err != nil {
		return nil, err
	}
	options.Untrusted = true
	if s.webhook, err = registry.New(options); err != nil {
		return nil, err
	}
	s.inFlight = inflight.New[key, requirement.Report](inflight.Limits{
		PerTenant: maxPerRegistry, Total: maxVerifications, TotalSize: maxFlights, TenantMemory: memoryPerRegistry,
		Wait: waitLimit,
	}, func(k key, err error) {
		if k.rules != nil { // otherwise nothing was verified; see Digests
			o.Verified(Failed)
		}
		if p, ok := errors.AsType[*inflight.PanicError](err); ok {
			o.OnPanic(p.Value, p.Stack)
		}
	})
	return s, nil
}

// Close ends the verifications in progress, and waits for them.
func (s *Service) Close() {
	s.namespaces.Close()
	s.inFlight.Close()
	s.registry.Close()
	s.webhook.Close()
}

// Rules are the rules about signatures of a set of policy files. They are immutable.
type Rules struct {
	set             *requirement.Set
	trusted         bool // there is a trusted root
	verify, webhook Func
	objects         map[*requirement.Validation]*condition.Compiled // conditions on pods and custom resources
	patches         map[*requirement.Rule]*condition.Patch          // nil if there is an error
	custom          *requirement.Set                                // rules for custom resources
	paths           map[string]*condition.Path                      // where they name images; nil if there is an error
}

// Compile returns the rules of policy files. The error says why the trusted root cannot be used.
func (s *Service) Compile(set *policyfiles.Set) (*Rules, error) {
	r := &Rules{
		set: policyfiles.Requirements(set), trusted: set.TrustedRoot != nil, custom: policyfiles.CustomRequirements(set),
	}
	r.compileObjects()
	r.compilePatches()
	r.compilePaths()
	if r.verify, r.webhook = s.options.Verify, s.options.Verify; r.verify != nil {
		return r, nil
	}
	if err := condition.Check(policyfiles.AllRules(set)); err != nil {
		return nil, err
	}
	for client, f := range map[*registry.Client]*Func{s.registry: &r.verify, s.webhook: &r.webhook} {
		open := func(repository string, passed admission.Login) Repository {
			return client.Repository(repository, s.credential(repository, passed))
		}
		v, err := New(Options{Open: open, TrustedRoot: set.TrustedRoot, Limits: s.options.Config.Limits})
		if err != nil {
			return nil, fmt.Errorf("trustedRoot %s: %w", s.options.Config.TrustedRoot, err)
		}
		*f = v.Verify
	}
	return r, nil
}

// Verifies reports whether signatures decide about images.
func (r *Rules) Verifies() bool {
	needed, _ := policyfiles.NeedSignatures(r.set)
	custom, _ := policyfiles.NeedSignatures(r.custom)
	return needed || custom
}

// credential returns the one for a repository. passed is that of the pull, which is for the registry of the image.
func (s *Service) credential(repository string, passed admission.Login) admission.Login {
	switch s.options.Config.Credentials {
	case config.CredentialsPull:
		return passed
	case config.CredentialsNode:
		c, err := registry.NodeLogin(s.options.Config.NodeCredentials.DockerConfigFiles, repository)
		if err != nil { // the registry is asked without a credential, and denies
			s.options.Log.Error(err, "Failed to read the credentials of the node")
		}
		return c
	default:
		return admission.Login{}
	}
}

// A Request asks which requirements an image meets.
type Request struct {
	Image

	Requirements []string        // hashes
	Credential   admission.Login // that of the pull. It is used only if the configuration says so
	List         bool            // List asks for the signatures that are found
}

// Verify returns one result for each requirement. An error, of this package or of ctx, says nothing about the image.
func (s *Service) Verify(ctx context.Context, rules *Rules, r Request) (requirement.Report, error) {
	want, all := make([]*requirement.Rule, len(r.Requirements)), rules.set.Rules()
	for i, hash := range r.Requirements {
		known := slices.IndexFunc(all, func(r requirement.Rule) bool { return r.Requirement != nil && r.Hash == hash })
		if known < 0 {
			return requirement.Report{}, fmt.Errorf("%w %.80q", ErrUnknownRequirement, hash)
		}
		want[i] = &all[known]
	}
	if r.Background && s.options.Config.Credentials == config.CredentialsPull {
		return refused(want), nil
	}
	k := key{
		rules: rules, name: r.Name, imageID: r.ID, list: r.List, background: r.Background,
		digests: strings.Join(r.Digests, "\n"), requirements: strings.Join(r.Requirements, "\n"),
	}
	if s.options.Config.Credentials == config.CredentialsPull {
		k.credential = r.Credential
	}
	return s.share(ctx, k, func(ctx context.Context) (requirement.Report, error) {
		report, err := rules.verify(ctx, r.Image, want, k.credential, r.List)
		if err == nil {
			s.countAll(report)
		}
		return report, err
	})
}

// refused is the answer to a request in the background where only the credential of a pull may be used: without one,
// the registry must not be asked, and a folder of bundles may lack what it has.
func refused(want []*requirement.Rule) (report requirement.Report) {
	for _, w := range want {
		report.Results = append(report.Results, requirement.Result{
			Requirement: w.Hash, Reason: requirement.RegistryDenied,
			Message: "pullgate-policyd uses the credential of a pull (credentials: Pull), and none is in progress",
		})
	}
	return report
}

func (s *Service) countAll(report requirement.Report) {
	for _, r := range report.Results {
		outcome := Met
		if !r.Met {
			outcome = strings.ToLower(r.Reason)
		}
		s.options.Verified(outcome)
	}
}

// Examine is the part of policyd.Examine about signatures. A nil set cannot be read.
func Examine(c config.Policyd, set *policyfiles.Set, now time.Time) (warnings []string, err error) {
	var errs []error
	if set != nil && set.TrustedRoot != nil {
		expired, err := ExpiredParts(set.TrustedRoot, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("trustedRoot %s: %w", c.TrustedRoot, err))
		}
		for _, part := range expired {
			warnings = append(warnings, fmt.Sprintf("trustedRoot %s: %s", c.TrustedRoot, part))
		}
	}
	if err := condition.Check(policyfiles.AllRules(set)); err != nil {
		errs = append(errs, fmt.Errorf("policies:\n%w", err))
	}
	if dir := c.Registries.HostsDir; dir != "" {
		if err := registry.CheckHosts(dir); err != nil {
			errs = append(errs, fmt.Errorf("registries.hostsDir:\n%w", err))
		}
	}
	if c.Bundles != "" {
		if info, err := os.Stat(c.Bundles); err != nil {
			errs = append(errs, fmt.Errorf("bundles: %w", err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("bundles %s: not a folder", c.Bundles))
		}
	}
	if c.Credentials == config.CredentialsNode {
		files := c.NodeCredentials.DockerConfigFiles
		if _, err := registry.NodeLogin(files, "registry.invalid/image"); err != nil {
			errs = append(errs, fmt.Errorf("nodeCredentials.dockerConfigFiles: %w", err))
		}
		exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
		if !slices.ContainsFunc(files, exists) {
			warnings = append(warnings, fmt.Sprintf("credentials: Node: none of nodeCredentials.dockerConfigFiles exists (%s), "+
				"so registries are asked without a credential", strings.Join(files, ", ")))
		}
	}
	return warnings, errors.Join(errs...)
}

const (
	// maxVerifications are done at the same time, of one registry maxPerRegistry.
	maxVerifications, maxPerRegistry = 24, 8
	// maxMemory bounds the memory for large documents of registries, memoryPerRegistry that for those of one.
	maxMemory, memoryPerRegistry = 96 << 20, 48 << 20
	maxFlights                   = 1024 // bounds those that wait for a turn too
	// waitLimit bounds the wait for a turn. With the longest verification it is shorter than pullgated waits.
	waitLimit = 10 * time.Second
)

type key struct {
	rules                          *Rules
	name                           imageref.Ref
	imageID, digests, requirements string
	credential                     admission.Login
	list, background               bool
	webhook                        bool // the image is resolved, and results are cached
}

// share returns the result of a verification, which callers with the same key share. If all of them leave, it is
// canceled; one of the webhook goes on, so that its result is known when the request is repeated.
func (s *Service) share(ctx context.Context, k key, work func(context.Context) (requirement.Report, error)) (
	requirement.Report, error,
) {
	if err := ctx.Err(); err != nil {
		return requirement.Report{}, err
	}
	w := inflight.Work[requirement.Report]{Tenant: registryOf(k.name.Repository()), Size: 1}
	if k.webhook {
		w.Ending = inflight.Continue
	}
	w.Run = func(ctx context.Context, turn inflight.Turn[requirement.Report]) (requirement.Report, error) {
		// Without its memory a verification says nothing about the image: it must not end like one that a registry delays.
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		reservation := &registry.Reservation{
			Limit: memoryPerRegistry, Budgets: []*semaphore.Weighted{turn.Memory, s.memory}, Turn: s.decoding,
			Busy: func() { giveUp(fmt.Errorf("%w: their large documents take all memory for them", ErrBusy)) },
		}
		defer reservation.Release()
		return work(registry.WithReservation(ctx, reservation))
	}
	report, err := s.inFlight.Do(ctx, k, w)
	switch _, panicked := errors.AsType[*inflight.PanicError](err); {
	case panicked:
		err = ErrPanic
	case errors.Is(err, inflight.ErrNoTurn):
		err = fmt.Errorf("%w: waited %v for those of %s and of other registries", ErrBusy, waitLimit, w.Tenant)
	case errors.Is(err, inflight.ErrFull), errors.Is(err, inflight.ErrClosed):
		err = ErrBusy
	}
	return report, err
}
