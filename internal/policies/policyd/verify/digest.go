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
		digest string
		err    error
	}
	answers := map[string]*answer{}
	var open []imageref.Ref
	for i, image := range images {
		name := imageref.New(image.Image)
		switch {
		case name.Name().IsDigest() || adding(rules.set.For(namespace, name)) == nil:
		case image.Stored != "":
			digests[i] = image.Stored
		case answers[image.Image] == nil:
			answers[image.Image] = &answer{}
			open = append(open, name)
		}
	}
	var asked errgroup.Group
	asked.SetLimit(maxAtOnce)
	for _, name := range open {
		a := answers[name.String()]
		if digest, ok := s.digestOf(name); ok {
			a.digest = digest
			continue
		}
		asked.Go(func() error {
			a.digest, a.err = s.digest(ctx, namespace, name)
			return nil
		})
	}
	_ = asked.Wait() // the errors are in the answers
	for i, image := range images {
		if a := answers[image.Image]; a != nil && digests[i] == "" && image.Stored == "" {
			digests[i] = a.digest
		}
	}
	log, logged := s.options.Log.WithValues("namespace", namespace), 0
	for _, name := range open {
		err := answers[name.String()].err
		if err == nil {
			continue
		}
		if logged++; logged > maxLogged {
			log = klog.Logger{} // it discards
		}
		r := adding(rules.set.For(namespace, name))
		log.Info("Failed to resolve an image to its digest",
			"image", safetext.Shorten(name.String(), requirement.MaxText), "rule", r,
			"reason", safetext.Shorten(err.Error(), requirement.MaxText))
		// What the registry did is in the log alone: a tenant could tell by it what is at an address.
		text := fmt.Sprintf("image %q: its digest, which %s adds, is not known: pullgate-policyd could not read it from "+
			"the registry", safetext.Shorten(name.String(), requirement.MaxText), r)
		if r.FailClosed && r.Mode == requirement.Enforce {
			findings = append(findings, r.Finding(admission.Deny, admission.DigestRequired, text))
		} else {
			unresolved = append(unresolved, text+"; the image keeps its tag")
		}
	}
	return digests, findings, unresolved
}

// adding returns the rule that adds digests to an image, the strictest if there are several; nil if there is none.
func adding(a requirement.ImageRules) (strictest *requirement.Rule) {
	closed := func(r *requirement.Rule) bool { return r.FailClosed && r.Mode == requirement.Enforce }
	for _, r := range a.Rules {
		if r.MutateDigest && (strictest == nil || closed(r) && !closed(strictest)) {
			strictest = r
		}
	}
	return strictest
}

// The limits of a namespace: how many of its images are resolved at the same time, so that others have turns at the
// same registry, and how many of them are in flight.
const maxPerNamespace, maxOfNamespace = maxPerRegistry / 2, maxFlights / 4

type namespaced struct {
	namespace string
	name      imageref.Name
}

func newResolving() *inflight.Group[namespaced, string] {
	return inflight.New[namespaced, string](inflight.Limits{
		PerTenant: maxPerNamespace, TenantSize: maxOfNamespace, TotalSize: maxFlights, Wait: waitLimit,
	}, nil)
}

// digest resolves an image for a namespace. It goes on if the caller leaves, so that a repeated request finds it.
func (s *Service) digest(ctx context.Context, namespace string, name imageref.Ref) (string, error) {
	if !name.Parsed() || name.MayBeImageID() {
		return "", ErrName
	}
	digest, err := s.resolving.Do(ctx, namespaced{namespace, name.Name()}, inflight.Work[string]{
		Tenant: namespace, Size: 1, Ending: inflight.Continue,
		Run: func(ctx context.Context, _ inflight.Turn[string]) (string, error) {
			report, err := s.share(ctx, key{name: name, webhook: true},
				func(ctx context.Context) (requirement.Report, error) {
					ctx, cancel := context.WithTimeout(ctx, s.options.Config.Limits.Time.Value())
					defer cancel()
					digest, err := s.resolve(ctx, name)
					return requirement.Report{Results: []requirement.Result{{Digest: digest}}}, err
				})
			if err != nil {
				return "", err
			}
			return report.Results[0].Digest, nil
		},
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errors.New("it was not resolved in time")
	}
	return digest, err
}
