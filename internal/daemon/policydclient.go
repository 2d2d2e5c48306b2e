package daemon

import (
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// failureInterval is the interval of log lines about one failing backend, and about signatures that are not verified.
const failureInterval = time.Minute

// A policydClient is the connection to pullgate-policyd, and what is logged about it. It may be used concurrently.
type policydClient struct {
	*policyclient.Client

	log klog.Logger

	mu     sync.Mutex // guards failed
	failed map[string]*failing
}

// failing is a backend that failed.
type failing struct {
	logged  time.Time
	skipped int // failures since then
}

func newPolicydClient(log klog.Logger, endpoint string) (*policydClient, error) {
	c, err := policyclient.New(endpoint, policyclient.Options{})
	if err != nil {
		return nil, err
	}
	return &policydClient{Client: c, log: log, failed: map[string]*failing{}}, nil
}

// notReviewed logs a failed review, for each backend at most once in each failureInterval.
func (d *policydClient) notReviewed(f policyclient.ReviewFailure) {
	skipped, due := d.due(f.Answer.Backend)
	if !due {
		return
	}
	d.log.Error(errors.New(f.Answer.Failure), "Failed to review an image: falling back to defaultAllow of the backend",
		"backend", f.Answer.Backend, "failedOpen", f.Answer.Allowed,
		"image", f.Answer.Image, "pod", klog.KRef(f.Namespace, f.Pod), "took", f.Answer.Took, "repeated", skipped)
}

// notVerified logs a verification without a result, at most one in each failureInterval.
func (d *policydClient) notVerified(f policyclient.VerificationFailure) {
	skipped, due := d.due("")
	if !due {
		return
	}
	d.log.Error(f.Err, "Failed to verify the signatures of an image: pods that need them wait",
		"image", f.Image, "imageID", f.ImageID,
		"namespace", klog.KRef("", f.Namespace), "repeated", skipped)
}

// due reports whether a failure of a backend is logged now, and how many were not since the last one.
func (d *policydClient) due(backend string) (skipped int, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.failed[backend]
	switch {
	case b == nil:
		d.failed[backend] = &failing{logged: time.Now()}
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
func (d *policydClient) keep(backends []policyfiles.Backend) {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := map[string]*failing{}
	if f := d.failed[""]; f != nil { // of signatures
		kept[""] = f
	}
	for _, b := range backends {
		if f := d.failed[b.Name]; f != nil {
			kept[b.Name] = f
		}
	}
	d.failed = kept
}
