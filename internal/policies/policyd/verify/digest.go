package verify

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Tagged is an image of a pod without a digest.
type Tagged struct {
	Image string // as it is written
	// Stored is the digest that the pod has for the image already; "" if it has none.
	Stored string
}

// MutatesDigests reports whether a rule adds digests to images.
func (r *Rules) MutatesDigests() bool { return policyfiles.MutateDigests(r.set) }

// Digests returns the digest of each image that a rule adds one to, "" for the others: the stored digest, else that of
// the manifest or index that the registry has under the tag. For an image that cannot be resolved there is a finding if
// the rule fails closed, and otherwise a sentence.
func (s *Service) Digests(ctx context.Context, rules *Rules, namespace string, images []Tagged) (
	digests []string, findings []admission.Finding, unresolved []string,
) {
	digests = make([]string, len(images))
	type answer struct {
		name   imageref.Ref
		rule   *requirement.Rule // that adds the digest
		named  bool              // otherwise the name is not known
		digest string
		err    error
	}
	answers := map[string]*answer{}
	var open []*answer
	for i, image := range images {
		name := imageref.New(image.Image)
		applied := rules.set.For(namespace, name)
		switch r := adding(applied); {
		case name.Name().IsDigest() || r == nil:
		case image.Stored != "":
			digests[i] = image.Stored
		case answers[image.Image] == nil:
			a := &answer{name: name, rule: r, named: !applied.Unknown}
			answers[image.Image], open = a, append(open, a)
		}
	}
	var asked errgroup.Group
	asked.SetLimit(maxAtOnce)
	for _, a := range open {
		if digest, ok := s.digestOf(a.name); ok || !a.named {
			a.digest = digest
			continue
		}
		asked.Go(func() error {
			a.digest, a.err = s.digest(ctx, namespace, a.name)
			return nil
		})
	}
	_ = asked.Wait() // the errors are in the answers
	for i, image := range images {
		if a := answers[image.Image]; a != nil && digests[i] == "" && image.Stored == "" {
			digests[i] = a.digest
		}
	}
	log, logged := s.log(ctx, namespace), 0
	for _, a := range open {
		denial, otherwise := a.rule.Unnamed(a.name), ""
		switch {
		case !a.named:
		case a.err == nil:
			continue
		default:
			if logged++; logged > maxLogged {
				log = klog.Logger{} // it discards
			}
			image := safetext.Shorten(a.name.String(), requirement.MaxText)
			log.Info("Failed to resolve an image to its digest",
				"image", image, "rule", a.rule, "reason", safetext.Shorten(a.err.Error(), requirement.MaxText))
			// What the registry did is in the log alone: a tenant could tell by it what is at an address.
			denial = a.rule.Finding(admission.Deny, admission.DigestRequired, fmt.Sprintf("image %q: its digest, which %s "+
				"adds, is not known: pullgate-policyd could not read it from the registry", image, a.rule))
			otherwise = "; the image keeps its tag"
		}
		if closed(a.rule) {
			findings = append(findings, denial)
		} else {
			unresolved = append(unresolved, denial.Message+otherwise)
		}
	}
	return digests, findings, unresolved
}

// closed reports whether a pod is denied for an image that does not get the digest that a rule adds.
func closed(r *requirement.Rule) bool { return r.FailClosed && r.Mode == requirement.Enforce }

// adding returns the rule that adds digests to an image, the strictest if there are several; nil if there is none.
func adding(a requirement.ImageRules) (strictest *requirement.Rule) {
	for _, r := range a.Rules {
		if r.MutateDigest && (strictest == nil || closed(r) && !closed(strictest)) {
			strictest = r
		}
	}
	return strictest
}

// The limits of a namespace: how many of its images are resolved, or verified for changes, at the same time, so that
// others have turns at the same registry, and how many of them are in flight. A tenant can have many namespaces.
const maxPerNamespace, maxOfNamespace = maxPerRegistry / 2, maxFlights / 32

func (s *Service) log(ctx context.Context, namespace string) klog.Logger {
	log := s.options.Log.WithValues("namespace", namespace)
	if cluster := admission.ClusterOf(ctx); cluster != "" {
		log = log.WithValues("cluster", cluster)
	}
	return log
}

var errLate = errors.New("it was not answered in time")

// A namespaced is what is asked for a namespace: a digest, or what a change needs.
type namespaced struct {
	tenant string
	name   imageref.Name
	change string
}

func newNamespaces() *inflight.Group[namespaced, requirement.Report] {
	return inflight.New[namespaced, requirement.Report](inflight.Limits{
		PerTenant: maxPerNamespace, TenantSize: maxOfNamespace, TotalSize: maxFlights, Wait: waitLimit,
	}, nil)
}

// askIn asks in a turn of a namespace. It goes on if the caller leaves, so that a repeated request finds the answer.
func (s *Service) askIn(
	ctx context.Context, k namespaced, ask func(context.Context) (requirement.Report, error),
) (report requirement.Report, err error) {
	if ctx.Err() != nil { // the rest of the images of a request must not fill the queue
		return report, errLate
	}
	report, err = s.namespaces.Do(ctx, k, inflight.Work[requirement.Report]{
		Tenant: k.tenant, Size: 1, Ending: inflight.Continue,
		Run: func(ctx context.Context, _ inflight.Turn[requirement.Report]) (requirement.Report, error) {
			return ask(ctx)
		},
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errLate
	}
	return report, err
}

func (s *Service) digest(ctx context.Context, namespace string, name imageref.Ref) (string, error) {
	report, err := s.askIn(ctx, namespaced{tenant: admission.Tenant(ctx, namespace), name: name.Name()},
		func(ctx context.Context) (requirement.Report, error) {
			return s.share(ctx, key{name: name, webhook: true}, func(ctx context.Context) (requirement.Report, error) {
				ctx, cancel := context.WithTimeout(ctx, s.options.Config.Limits.Time.Value())
				defer cancel()
				digest, err := s.resolve(ctx, name)
				return requirement.Report{Results: []requirement.Result{{Digest: digest}}}, err
			})
		})
	if err != nil {
		return "", err
	}
	return report.Results[0].Digest, nil
}
