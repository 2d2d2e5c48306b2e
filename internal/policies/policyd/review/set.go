package review

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// A Set asks several backends, all of which must allow. It may be used concurrently. The zero value has no backend.
type Set struct {
	set outbound.Set[policyfiles.Backend, *target, *Client]
}

// Replace makes a set ask these backends, or returns the errors of all kubeconfigs and changes nothing. A backend that
// the set has already keeps its cache.
func (s *Set) Replace(backends []policyfiles.Backend) error {
	targets, err := outbound.Read(backends, targetOf)
	if err == nil {
		s.set.Replace(backends, targets, newClient)
	}
	return err
}

// Reload reads all kubeconfigs again, with the files that they name. It returns the errors of those that are invalid;
// their last valid content stays in use.
func (s *Set) Reload() error { return s.set.Reload(targetOf) }

// Clients returns the clients of the backends, by name. They can be asked until Close, also after Replace.
func (s *Set) Clients() Clients {
	return slices.SortedFunc(slices.Values(s.set.Clients()), func(a, b *Client) int {
		return cmp.Compare(a.backend.Name, b.backend.Name)
	})
}

// Close closes all clients; see Client.Close. The set must not be used afterwards.
func (s *Set) Close() { s.set.Close() }

// Clients are clients of several backends, all of which must allow.
type Clients []*Client

// Review asks all backends that review the subject at the same time. See Client.Review.
func (all Clients) Review(ctx context.Context, subject Subject) []Result {
	results := make([][]Result, len(all))
	outbound.Together(len(all), func(i int) {
		if r, ok := all[i].Review(ctx, subject); ok {
			results[i] = []Result{r}
		}
	})
	return slices.Concat(results...)
}

// maxAnnotations bounds the audit annotations that are kept of an answer, in bytes. The cache keeps 1,024 answers.
const maxAnnotations = 8192

// A Result is what one backend says. The zero value denies.
type Result struct {
	// Answer is about all images. Its Reason, only of a denial, and its Failure are one line of at most 1,024 bytes. Its
	// AuditAnnotations, at most 8 KiB, have keys without a prefix. The caller must not modify the map.
	policyfiles.Answer
	// FailedOpen reports that the images are allowed because the backend did not answer.
	FailedOpen bool
	Err        error // nil if the backend did answer. Its text can be that of a backend; Failure is for logs
}

func bounded(s v1alpha1.ImageReviewStatus) v1alpha1.ImageReviewStatus {
	kept := v1alpha1.ImageReviewStatus{Allowed: s.Allowed}
	if !s.Allowed {
		kept.Reason = safetext.Line(s.Reason, safetext.Event)
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.AuditAnnotations)) {
		if size += len(key) + len(s.AuditAnnotations[key]); size > maxAnnotations {
			break
		}
		if kept.AuditAnnotations == nil {
			kept.AuditAnnotations = map[string]string{}
		}
		// Copies, so that the document that they are a part of is not kept.
		kept.AuditAnnotations[strings.Clone(key)] = strings.Clone(s.AuditAnnotations[key])
	}
	return kept
}
