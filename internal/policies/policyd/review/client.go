package review

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

const (
	maxAttempts = 5 // how often a backend is asked in one review
	// maxReview bounds a review without an earlier deadline. A kubelet waits 2 minutes for the creation of a container.
	maxReview = 110 * time.Second
	// maxPerNamespace and maxRequests are how many requests are sent at the same time for one namespace, and for all.
	// Images about which a backend takes long, which a tenant chooses, do not delay the reviews of other namespaces.
	maxPerNamespace, maxRequests = 8, outbound.MaxConnections
	// maxBody bounds the body of a request, below what servers accept by default: a backend that refuses one has failed.
	maxBody = 64 << 10
	// maxWaiting and maxWaitingPerNamespace bound the bytes of requests; perRequest is what one takes beside its body.
	maxWaiting, maxWaitingPerNamespace = 64 << 20, 8 << 20
	perRequest                         = 16 << 10
	cacheSize                          = 1024 // how many answers are cached
)

// Errors of results that deny, whatever the default of the backend is: a tenant could cause them.
var (
	ErrBusy     = errors.New("review: too many other reviews are in progress, try again")
	ErrTooLarge = fmt.Errorf("review: the images and the annotations for backends have more than %d KiB as JSON",
		maxBody>>10)
	ErrClosed  = errors.New("review: client closed")
	ErrNotUTF8 = errors.New("review: an image, an annotation or the namespace is not valid UTF-8")
)

// A Subject is what is reviewed: images of one pod.
type Subject struct {
	Namespace   string
	Annotations map[string]string // all of the pod. Only some are sent
	Images      []string          // those of containers, as the pod has them, in the order in which they are sent
	// Volumes are those of image volumes. They are sent after Images, to the backends that review them.
	Volumes []string
}

// A Client asks one backend. It may be used concurrently.
type Client struct {
	backend policyfiles.Backend

	// mu guards the fields that follow. It is not held while the backend is asked.
	mu     sync.Mutex
	cache  *cache.LRUExpireCache // from specKey to v1alpha1.ImageReviewStatus
	target *target

	inFlight *inflight.Group[specKey, attempts] // with the namespaces as tenants
}

type specKey [sha256.Size]byte

// attempts are the result of a request, and until then what callers that leave have to know.
type attempts struct {
	queued bool      // it did not begin at once
	sent   time.Time // when the first attempt began; zero before
	last   error     // of the last attempt

	status v1alpha1.ImageReviewStatus
	cached bool
}

func newClient(b policyfiles.Backend, t *target) *Client {
	return &Client{
		backend: b, cache: cache.NewLRUExpireCache(cacheSize), target: t,
		inFlight: inflight.New[specKey, attempts](inflight.Limits{
			PerTenant: maxPerNamespace, Total: maxRequests,
			TenantSize: maxWaitingPerNamespace, TotalSize: maxWaiting, Wait: maxReview,
		}, nil),
	}
}

func targetOf(b policyfiles.Backend) (*target, error) {
	t, errs := readTarget(b.Kubeconfig)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: imagePolicy.kubeConfigFile: %w", b.File, err)
	}
	return t, errors.Join(errs...)
}

// Use makes reviews use another target. Answers of another backend are dropped; rotated credentials keep them.
func (c *Client) Use(t *target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.target.sum == t.sum {
		return
	}
	if !c.target.sameBackend(t) {
		c.cache = cache.NewLRUExpireCache(cacheSize)
	}
	outbound.CloseIdle(c.target.transport)
	c.target = t
}

// Close ends all reviews, which deny, and the connections. It returns when all goroutines of the client have ended.
func (c *Client) Close() {
	c.inFlight.Close()
	c.CloseIdle()
}

// CloseIdle closes connections that are not in use, and reports whether no review is in flight.
func (c *Client) CloseIdle() (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	outbound.CloseIdle(c.target.transport)
	return c.inFlight.Idle()
}

// Review asks the backend, or the cache, and returns before the deadline of ctx. ok is false if the backend does not
// review the namespace or any of the images. If ctx is canceled, the result denies; see also the errors.
func (c *Client) Review(ctx context.Context, s Subject) (r Result, ok bool) {
	spec, ok := c.spec(s)
	if !ok {
		return Result{}, false
	}
	start := time.Now()
	status, cached, err := c.ask(ctx, spec)
	r.Answer = policyfiles.Answer{Backend: c.backend.Name, Allowed: status.Allowed, Reason: status.Reason, Cached: cached}
	r.AuditAnnotations = status.AuditAnnotations
	if r.Err = err; err != nil {
		r.Failure = safetext.Line(strings.TrimPrefix(err.Error(), "review: "), safetext.Event)
		if !isAny(err, ErrBusy, ErrTooLarge, ErrClosed, ErrNotUTF8, context.Canceled) {
			r.Allowed, r.FailedOpen = c.backend.DefaultAllow, c.backend.DefaultAllow
		}
	}
	r.Took = time.Since(start)
	return r, true
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

func (c *Client) spec(s Subject) (spec v1alpha1.ImageReviewSpec, ok bool) {
	if c.backend.Namespaces != nil && !slices.Contains(c.backend.Namespaces, s.Namespace) {
		return spec, false
	}
	images := s.Images
	if c.backend.IncludeImageVolumes {
		images = slices.Concat(s.Images, s.Volumes)
	}
	for _, image := range images {
		spec.Containers = append(spec.Containers, v1alpha1.ImageReviewContainerSpec{Image: image})
	}
	spec.Namespace, spec.Annotations = s.Namespace, admission.ForReview(s.Annotations)
	return spec, len(spec.Containers) > 0
}

func (c *Client) ask(ctx context.Context, spec v1alpha1.ImageReviewSpec) (
	status v1alpha1.ImageReviewStatus, cached bool, err error,
) {
	if err := checkTexts(spec); err != nil {
		return status, false, err
	}
	// Keys of maps are sorted, so that a spec has one body.
	header := metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
	body, err := json.Marshal(v1alpha1.ImageReview{TypeMeta: header, Spec: spec})
	if err != nil {
		return status, false, err
	}
	if len(body) > maxBody {
		return status, false, ErrTooLarge
	}
	// A backend cannot tell clusters apart, and an answer is about a namespace of one.
	tenant := admission.Tenant(ctx, spec.Namespace)
	key := specKey(sha256.Sum256(append([]byte(tenant), body...)))
	if deadline, ok := ctx.Deadline(); ok { // the caller needs time for the answer
		early, cancel := context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, time.Second)))
		defer cancel()
		ctx = early
	}
	start := time.Now()
	if known, ok := c.known(key); ok {
		return known, true, nil
	}
	got, err := c.inFlight.Do(ctx, key, inflight.Work[attempts]{
		Tenant: tenant, Size: int64(len(body) + perRequest),
		Run: func(ctx context.Context, turn inflight.Turn[attempts]) (attempts, error) {
			ctx, cancel := context.WithDeadline(ctx, start.Add(maxReview))
			defer cancel()
			return c.request(ctx, turn, key, body)
		},
	})
	if _, ok := errors.AsType[*inflight.LeftError](err); ok {
		err = got.leftAfter(time.Since(start), err)
	}
	switch {
	case errors.Is(err, inflight.ErrClosed):
		err = ErrClosed
	case errors.Is(err, inflight.ErrFull), errors.Is(err, inflight.ErrNoTurn):
		err = ErrBusy
	}
	return got.status, got.cached, err
}

func (c *Client) known(key specKey) (status v1alpha1.ImageReviewStatus, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, _ := c.cache.Get(key)
	status, ok = answer.(v1alpha1.ImageReviewStatus)
	return status, ok
}

// checkTexts returns why a spec must not be encoded: JSON would have the same text for different names that are not
// UTF-8, and can be six times as large as its texts.
func checkTexts(spec v1alpha1.ImageReviewSpec) error {
	texts := []string{spec.Namespace}
	for _, c := range spec.Containers {
		texts = append(texts, c.Image)
	}
	for key, value := range spec.Annotations {
		texts = append(texts, key, value)
	}
	size := 0
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return ErrNotUTF8
		}
		size += len(text)
	}
	if size > maxBody {
		return ErrTooLarge
	}
	return nil
}

func (a *attempts) leftAfter(d time.Duration, left error) error {
	d = d.Round(time.Millisecond)
	switch {
	case errors.Is(left, context.Canceled):
		return context.Canceled
	case a.heldUp():
		return ErrBusy
	case a.last != nil:
		return fmt.Errorf("no answer within %v; the last attempt: %w", d, a.last)
	}
	return fmt.Errorf("no answer within %v", d)
}

// heldUp reports whether a request without an answer waited for its turn, so that the backend had no time to answer.
func (a *attempts) heldUp() bool {
	return a.sent.IsZero() || a.queued && time.Since(a.sent) < attemptTimeout
}

func (c *Client) request(ctx context.Context, turn inflight.Turn[attempts], key specKey, body []byte) (a attempts,
	_ error,
) {
	if known, ok := c.known(key); ok { // the request before this one ended after the caller had looked
		return attempts{status: known, cached: true}, nil
	}
	c.mu.Lock()
	target := c.target
	c.mu.Unlock()
	a.queued, a.sent = turn.Waited, time.Now()
	turn.Note(a)
	status, err := c.retry(ctx, target, body, func(err error) { a.last = err; turn.Note(a) })
	switch {
	case errors.Is(context.Cause(ctx), inflight.ErrClosed):
		return a, ErrClosed
	case err != nil && ctx.Err() != nil && a.heldUp():
		return a, ErrBusy
	case err != nil:
		return a, err
	}
	a.status = bounded(status)
	c.mu.Lock()
	defer c.mu.Unlock()
	ttl := c.backend.DenyTTL
	if a.status.Allowed {
		ttl = c.backend.AllowTTL
	}
	if ttl > 0 && c.target.sameBackend(target) {
		c.cache.Add(key, a.status, ttl)
	}
	return a, nil
}

// retry asks until there is an answer, or another attempt is of no use. note gets the error before each further one.
func (c *Client) retry(ctx context.Context, to *target, body []byte, note func(error)) (
	none v1alpha1.ImageReviewStatus, _ error,
) {
	backoff := wait.Backoff{Duration: c.backend.RetryBackoff, Factor: 1.5, Jitter: 0.2, Steps: maxAttempts}
	for n := 1; ; n++ {
		status, err := to.send(ctx, body)
		if err == nil {
			return status, nil
		}
		if n > 1 {
			err = fmt.Errorf("attempt %d: %w", n, err)
		}
		why, ok := errors.AsType[*outbound.RequestError](err)
		if !ok || !why.Again || n == maxAttempts {
			return none, err
		}
		pause := max(backoff.Step(), why.After)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
			return none, err
		}
		note(err)
		select {
		case <-time.After(pause): //nolint:forbidigo // the garbage collector takes its timer
		case <-ctx.Done():
			return none, err
		}
	}
}

const attemptTimeout = 30 * time.Second // bounds an attempt, from the dial to the end of the answer

const (
	apiVersion = "imagepolicy.k8s.io/v1alpha1"
	kind       = "ImageReview"
)

func (t *target) send(ctx context.Context, body []byte) (none v1alpha1.ImageReviewStatus, _ error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	data, err := outbound.Post(ctx, t.transport, t.url, body, t.authorize)
	if err != nil {
		return none, err
	}
	return decode(data)
}

// Names of fields have one spelling, as for kube-apiserver: otherwise a document could have two answers.
func decode(data []byte) (v1alpha1.ImageReviewStatus, error) {
	var answer struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Status     json.RawMessage `json:"status"`
	}
	var status v1alpha1.ImageReviewStatus
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &answer); err != nil {
		return status, outbound.Failed("the answer is not an ImageReview: %w", err)
	}
	if answer.Kind != "" && answer.Kind != kind || answer.APIVersion != "" && answer.APIVersion != apiVersion {
		return status, outbound.Failed("the answer is %.100q of %.100q; must be %s of %s",
			answer.Kind, answer.APIVersion, kind, apiVersion)
	}
	if answer.Status != nil {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(answer.Status, &status); err != nil {
			return v1alpha1.ImageReviewStatus{}, outbound.Failed("the answer has an invalid status: %w", err)
		}
	}
	return status, nil
}
