package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const maxAtOnce = 8

// maxLogged bounds the log lines of a request, because a tenant chooses the number of images.
const maxLogged = 10

// Judge returns a finding for each image and rule that applies, and a sentence for each image that cannot be judged
// here; it is not denied. template says that the images are those of a pod template: some rules are for pods only.
// Rules that are unselected do not apply.
func (s *Service) Judge(ctx context.Context, rules *Rules, namespace string, images []string, template bool,
	unselected Unselected,
) (
	findings []admission.Finding, undetermined []string,
) {
	return s.judge(ctx, rules, namespace, images, func(image string) requirement.ImageRules {
		of := applied(rules.set.For(namespace, imageref.New(image)), template)
		of.Rules = slices.DeleteFunc(slices.Clone(of.Rules), func(r *requirement.Rule) bool { return unselected[r] })
		return of
	})
}

func (s *Service) judge(ctx context.Context, rules *Rules, namespace string, images []string,
	rulesFor func(image string) requirement.ImageRules,
) (
	findings []admission.Finding, undetermined []string,
) {
	type question struct {
		name  imageref.Ref
		rules []*requirement.Rule
	}
	var open []question
	for _, image := range slices.Compact(slices.Sorted(slices.Values(images))) {
		name := imageref.New(image)
		j := rulesFor(image).Judge(name)
		findings = append(findings, j.Findings...)
		if len(j.Signed) > 0 {
			open = append(open, question{name, j.Signed})
		}
	}
	if !admission.DecisionOf(findings).Admitted() && len(findings) > 0 {
		return findings, nil
	}
	answers := make([]answer, len(open))
	var asked errgroup.Group
	asked.SetLimit(maxAtOnce)
	for i, q := range open {
		asked.Go(func() error {
			answers[i].Report, answers[i].err = s.ask(ctx, rules, q.name, q.rules, nil)
			return nil
		})
	}
	_ = asked.Wait() // the errors are in the answers
	log := s.log(ctx, namespace)
	for i, q := range open {
		if i == maxLogged {
			log = klog.Logger{} // it discards
		}
		got, unknown := answers[i].judge(log, q.name, q.rules, rules.trusted)
		findings, undetermined = append(findings, got...), append(undetermined, unknown...)
	}
	return findings, undetermined
}

func applied(a requirement.ImageRules, template bool) requirement.ImageRules {
	if !template {
		return a
	}
	a.Pinned = a.AddsDigest() // also by a rule that is for pods only
	a.Rules = slices.DeleteFunc(slices.Clone(a.Rules), func(r *requirement.Rule) bool { return r.PodsOnly })
	if a.DefaultRule != nil && a.DefaultRule.PodsOnly {
		a.Default, a.DefaultRule = requirement.NoDefault, nil
	}
	return a
}

type answer struct {
	requirement.Report

	err error
}

// judge returns the findings of rules, and a sentence for each that cannot be judged; if no node enforces the rule, it
// is a denial instead. trusted says that this process has a trusted root. What the registry did is in the log alone: a
// tenant could tell by it what is at an address.
func (a answer) judge(log klog.Logger, name imageref.Ref, rules []*requirement.Rule, trusted bool) (
	findings []admission.Finding, undetermined []string,
) {
	for _, r := range rules {
		result, ok := a.of(r)
		unknown, why := a.unknown(result, ok, name, r.Requirement), "it could not read them from the registry"
		if !trusted && !result.Met && r.Requirement.UsesTrustedRoot() {
			unknown, why = "no trusted root", "it has no trusted root; set trustedRoot to that of the nodes"
		}
		text := fmt.Sprintf("image %q: %s requires signatures, and pullgate-policyd cannot verify them: %s",
			name, r, why)
		log := log.WithValues("image", name.String(), "rule", r, "reason", safetext.Shorten(unknown, requirement.MaxText))
		switch {
		case unknown != "" && !r.AtNode(): // unless the images get into pods of another rule
			log.Info("Signatures could not be verified, no node verifies them")
			findings = append(findings, r.Finding(admission.Deny, admission.SignatureMissing, text))
		case unknown != "":
			log.Info("Skipping signatures that could not be verified, the node verifies them")
			undetermined = append(undetermined, text+"; the node verifies them")
		case result.Met:
			f := r.Finding(admission.Admit, "", fmt.Sprintf("image %q: it has the signatures that %s requires", name, r))
			f.Signers, f.Digest = result.Signers, result.Digest
			findings = append(findings, f)
		default:
			findings = append(findings, r.NotMet(name, result.Reason, result.Message))
		}
	}
	return findings, undetermined
}

func (a answer) of(r *requirement.Rule) (result requirement.Result, ok bool) {
	i := slices.IndexFunc(a.Results, func(result requirement.Result) bool { return result.Requirement == r.Hash })
	if i >= 0 {
		result = a.Results[i]
	}
	return result, i >= 0
}

// unknown returns why the answer for a requirement is neither an approval nor a denial here; "" if it is one. This
// process has another credential than the pull, and can have another platform than the node.
func (a answer) unknown(r requirement.Result, ok bool, name imageref.Ref, required *requirement.Requirement) string {
	switch {
	case a.err != nil:
		return a.err.Error()
	case !ok:
		return "there is no result"
	case r.Met:
		return ""
	}
	switch r.Reason {
	case requirement.RegistryUnavailable, requirement.RegistryDenied, requirement.ContentMismatch:
		return cmp.Or(r.Message, r.Reason)
	case requirement.SignatureMissing, requirement.AttestationMissing, requirement.ConditionNotMet:
		// A registry can answer 404 for a repository that the credential does not allow. That of the image was read.
		elsewhere := func(s *requirement.Signer) bool { return s.Repository != "" && s.Repository != name.Repository() }
		if slices.ContainsFunc(required.Signers(), elsewhere) {
			return cmp.Or(r.Message, r.Reason)
		}
	}
	return ""
}

// ask asks about rules. With a patch, which is by the only rule, the result has the values for it.
func (s *Service) ask(
	ctx context.Context, rules *Rules, name imageref.Ref, applied []*requirement.Rule, patch *condition.Patch,
) (report requirement.Report, err error) {
	if patch.Key() == "" {
		patch = nil
	}
	want := slices.SortedFunc(slices.Values(applied),
		func(a, b *requirement.Rule) int { return cmp.Compare(a.Hash, b.Hash) })
	want = slices.CompactFunc(want, func(a, b *requirement.Rule) bool { return a.Hash == b.Hash })
	if digest, ok := s.digestOf(name); ok {
		if report, missing := s.known(name.Repository(), digest, want, patch); len(missing) == 0 {
			return report, nil
		}
	}
	k := key{rules: rules, name: name, webhook: true, requirements: patch.Key()}
	for _, w := range want {
		k.requirements += w.Hash + "\n"
	}
	report, err = s.share(ctx, k, func(ctx context.Context) (report requirement.Report, err error) {
		ctx, cancel := context.WithTimeout(ctx, s.options.Config.Limits.Time.Value())
		defer cancel()
		digest, err := s.resolve(ctx, name)
		if err != nil {
			return report, err
		}
		report, missing := s.known(name.Repository(), digest, want, patch)
		if len(missing) == 0 {
			return report, nil
		}
		image := Image{Name: imageref.New(name.Repository() + "@" + digest), Patch: patch}
		got, err := rules.webhook(ctx, image, missing, admission.Login{}, false)
		if err != nil {
			return report, err
		}
		s.countAll(got)
		for _, r := range got.Results {
			s.keep(fact{name.Repository(), digest, r.Requirement, patch.Key()}, r)
			if r.Met && patch != nil { // the validating webhook asks about the same
				r.Values, r.Reason, r.Message = nil, "", ""
				s.keep(fact{name.Repository(), digest, r.Requirement, ""}, r)
			}
		}
		report.Results = append(report.Results, got.Results...)
		return report, nil
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errors.New("the verification is not finished in time")
	}
	return report, err
}

// resolve returns the digest of the manifest or index with a name. One that is named by its digest is read too: what
// the registry does not give to this process has no result.
func (s *Service) resolve(ctx context.Context, name imageref.Ref) (string, error) {
	if digest, ok := s.digestOf(name); ok {
		return digest, nil
	}
	tagOrDigest := name.Name().String()[len(name.Repository())+1:]
	read := s.options.Resolve
	if read == nil {
		read = func(repository, reference string) (string, error) {
			from := s.webhook.Repository(repository, s.credential(repository, admission.Login{}))
			data, err := from.Manifest(ctx, reference)
			return digestOf(data), err
		}
	}
	digest, err := read(name.Repository(), tagOrDigest)
	if err != nil {
		return "", err
	}
	s.digests.Add(name.Name(), digest, tagFor)
	s.digests.Add(imageref.New(name.Repository()+"@"+digest).Name(), digest, tagFor) // as the digest is added to pods
	return digest, nil
}

const (
	cacheSize = 1024 // how many results, and how many digests of tags, are kept for the webhook
	// How long a result that admits is kept, one that denies, and the digest of a tag: an image can be signed any time.
	metFor, deniedFor, tagFor = time.Hour, 10 * time.Second, 10 * time.Second
)

// A fact is what a result is about, with the values for a patch by its key. The hash covers the trusted root; the
// repository is where signatures count.
type fact struct{ repository, digest, requirement, patch string }

func (s *Service) known(repository, digest string, want []*requirement.Rule, patch *condition.Patch) (
	report requirement.Report, missing []*requirement.Rule,
) {
	for _, w := range want {
		value, _ := s.results.Get(fact{repository, digest, w.Hash, patch.Key()})
		if r, ok := value.(requirement.Result); ok {
			report.Results = append(report.Results, r)
		} else {
			missing = append(missing, w)
		}
	}
	return report, missing
}

func (s *Service) keep(f fact, r requirement.Result) {
	if r.Met && r.Reason == "" {
		keep := metFor
		if !r.Until.IsZero() {
			keep = min(keep, time.Until(r.Until))
		}
		s.results.Add(f, r, keep)
	} else if r.Reason != requirement.RegistryUnavailable {
		s.results.Add(f, r, deniedFor)
	}
}

func (s *Service) digestOf(name imageref.Ref) (string, bool) {
	value, _ := s.digests.Get(name.Name())
	digest, ok := value.(string)
	return digest, ok
}
