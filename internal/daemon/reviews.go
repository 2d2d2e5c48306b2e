package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/imagepolicy"
	"github.com/pullgate/pullgate/internal/imagereview"
	"github.com/pullgate/pullgate/internal/podsource"
	"github.com/pullgate/pullgate/internal/policyclient"
	"github.com/pullgate/pullgate/pkg/admission/files"
)

const (
	// settleTime is the time between two readings of the policy files when pullgate-policyd has other ones. They are used if both are the same,
	// because files may be written at the moment.
	settleTime = 250 * time.Millisecond
	// failureInterval is the interval of log lines about one image review backend that fails.
	failureInterval = time.Minute
)

// reviewedFields returns the fields of pods that image reviews use, for the pod source.
func reviewedFields() []string {
	return []string{podsource.ReviewAnnotations, "spec.spec.containers[].image[]", "spec.spec.volumes[]"}
}

// reviews are the connection to pullgate-policyd, which is made for the first review, and what is logged about it.
type reviews struct {
	log      klog.Logger
	endpoint string
	client   func() (*policyclient.Client, error)

	mu     sync.Mutex // guards the fields that follow
	failed map[string]*failing
	made   *policyclient.Client
}

// failing is a backend that failed.
type failing struct {
	logged  time.Time
	skipped int // failures since then
}

func newReviews(log klog.Logger, endpoint string) *reviews {
	r := &reviews{log: log, endpoint: endpoint, failed: map[string]*failing{}}
	r.client = sync.OnceValues(func() (*policyclient.Client, error) {
		c, err := policyclient.New(endpoint, policyclient.Options{})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.made = c
		return c, err
	})
	return r
}

// Review asks pullgate-policyd.
func (r *reviews) Review(ctx context.Context, q policyclient.Request) ([]policyclient.Result, error) {
	c, err := r.client()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", policyclient.ErrNotReached, err)
	}
	return c.Review(ctx, q)
}

// Verify has signatures verified by pullgate-policyd.
func (r *reviews) Verify(ctx context.Context, q policyclient.VerifyRequest) (policyclient.Verification, error) {
	c, err := r.client()
	if err != nil {
		return policyclient.Verification{}, fmt.Errorf("%w: %w", policyclient.ErrNotReached, err)
	}
	return c.Verify(ctx, q)
}

// close ends the connection, if there is one. No review may follow.
func (r *reviews) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil {
		return nil
	}
	return r.made.Close()
}

// report logs a failure, for each backend at most once in each failureInterval.
func (r *reviews) report(f imagereview.Failure) {
	skipped, due := r.due(f.Answer.Backend)
	if !due {
		return
	}
	r.log.Error(errors.New(f.Answer.Failure), "Image not reviewed, defaultAllow of the backend decides", "backend", f.Answer.Backend, "failedOpen", f.Answer.Allowed,
		"image", f.Answer.Image, "pod", klog.KRef(f.Namespace, f.Pod), "took", f.Answer.Took, "repeated", skipped)
}

// due reports whether a failure of a backend is logged now, and how many were not since the last one.
func (r *reviews) due(backend string) (skipped int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.failed[backend]
	switch {
	case b == nil:
		r.failed[backend] = &failing{logged: time.Now()}
		return 0, true
	case time.Since(b.logged) < failureInterval:
		b.skipped++
		return 0, false
	}
	skipped = b.skipped
	*b = failing{logged: time.Now()}
	return skipped, true
}

// keep forgets the failures of all backends but these.
func (r *reviews) keep(backends []imagepolicy.Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := map[string]*failing{}
	if f := r.failed[""]; f != nil { // of signatures
		kept[""] = f
	}
	for _, b := range backends {
		if f := r.failed[b.Name]; f != nil {
			kept[b.Name] = f
		}
	}
	r.failed = kept
}

// reviewBy returns the validator that asks the backends of a set, which can be nil.
func (p *policies) reviewBy(set *files.Set) *imagereview.Validator {
	backends, hash := imagepolicy.Of(set), ""
	if set != nil {
		hash = set.Hash
	}
	p.reviews.keep(backends.Backends())
	return imagereview.New(backends, imagereview.Options{
		Client: p.reviews, PolicyHash: hash, Failed: p.reviews.report,
		Successor: func(ctx context.Context) *imagereview.Validator {
			if !p.followed(ctx, contentOf(set)) {
				return nil
			}
			return p.validator()
		},
	})
}

// followed reads the policy files again if those in use still have a content. It returns when they were read, and false if ctx ended before. All
// calls that wait at the same time are answered by the same readings.
func (p *policies) followed(ctx context.Context, in content) bool {
	// A reading that began before this call may have been too early for it, so there is a second one.
	for last := false; ; last = true {
		read := p.following.DoChan(in.policyHash+in.trustedRoot, func() (any, error) {
			changed := p.follow(in)
			if !changed {
				time.Sleep(settleTime)
				changed = p.follow(in)
			}
			return changed, nil
		})
		select {
		case <-ctx.Done():
			return false
		case r := <-read:
			if changed, _ := r.Val.(bool); changed || last || !r.Shared {
				return true
			}
		}
	}
}

// follow reads the policy files again if those in use have a content, and reports whether others are in use then.
func (p *policies) follow(in content) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set != nil && contentOf(p.set) == in {
		p.pollLocked()
	}
	return p.set == nil || contentOf(p.set) != in
}

func (p *policies) validator() *imagereview.Validator {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.review
}
