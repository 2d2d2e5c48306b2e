package kube

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/records"
)

const (
	// fresh is how old what is known of a Secret may be when it is asked for.
	fresh = 10 * time.Second
	// freshMissing is the same of one that did not exist; it may be created any moment.
	freshMissing = 2 * time.Second
	// maxWait bounds how long one question waits for the API server. The kubelet waits for us.
	maxWait = 2 * time.Second
	// getTimeout bounds one GET.
	getTimeout = 10 * time.Second
	// minRetry and maxRetry bound the pause before a Secret that was never read is got again without
	// being asked for.
	minRetry, maxRetry = 200 * time.Millisecond, 30 * time.Second
	// getters is how many Secrets are got at once. Each holds a response of some megabytes for a moment.
	getters = 2
	// maxHeld bounds the memory that all Secrets take together, in bytes. Those that were not asked
	// for longest are forgotten, and got again when they are.
	maxHeld = 8 << 20
)

// A key names a Secret.
type key struct{ namespace, name string }

// answer is what is known of one Secret. The zero value is nothing.
type answer struct {
	ref    records.SecretRef
	sealed credential.Sealed
	// whole says that nothing is missing.
	whole bool
}

// secret is what is kept of one Secret that some pod names.
type secret struct {
	answer
	known bool      // answer is what the API server said
	read  time.Time // when answer was asked for; zero if never, or if it is to be asked for anew
	used  time.Time
	// failed is when the last attempt failed; zero if it did not.
	failed   time.Time
	failures int
	retryAt  time.Time // when one that was never read is got again
	missing  bool
	told     string // the resource version that was called malformed

	queued, running, again bool
	attempt                chan struct{} // closed at the end of the next attempt
}

// getter gets one Secret from the API server.
type getter func(ctx context.Context, namespace, name string) (*corev1.Secret, error)

// secrets are the pull secrets that the pods of the node name. Its methods may be called concurrently.
type secrets struct {
	seal  credential.Key
	count func(Reason)

	// mu guards the fields that follow. It is never held across a request.
	mu    sync.Mutex
	work  sync.Cond // signals that queue grew, or that a getter has to end
	byKey map[key]*secret
	queue []key
	held  int // bytes
}

func newSecrets(seal credential.Key, count func(Reason)) *secrets {
	s := &secrets{seal: seal, count: count, byKey: map[key]*secret{}}
	s.work.L = &s.mu
	return s
}

// want makes sure that the Secrets are known, and anew if they are, since a pod that names them arrived.
func (s *secrets) want(keys []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		e := s.byKey[k]
		if e == nil {
			e = &secret{attempt: make(chan struct{}), used: time.Now()}
			s.byKey[k] = e
		}
		e.read = time.Time{}
		s.enqueueLocked(k, e, false)
	}
}

// forget drops Secrets that no pod names any more.
func (s *secrets) forget(keys []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if e := s.byKey[k]; e != nil {
			s.dropLocked(e)
			close(e.attempt)
			e.attempt = make(chan struct{})
			delete(s.byKey, k)
		}
	}
}

// get returns what is known of the Secrets, in their order.
func (s *secrets) get(ctx context.Context, keys []key) []answer {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for _, k := range keys {
		s.look(k) // all that have to be got are under way before one is waited for
	}
	answers := make([]answer, len(keys))
	for i, k := range keys {
		for {
			a, attempt := s.look(k)
			answers[i] = a
			if attempt == nil {
				break
			}
			select {
			case <-attempt:
				continue
			case <-ctx.Done():
			}
			break
		}
	}
	return answers
}

// look returns what is known of a Secret, and the end of the attempt that is worth waiting for; nil if
// none is.
func (s *secrets) look(k key) (answer, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byKey[k]
	if e == nil {
		return answer{}, nil // its pod is gone
	}
	now := time.Now()
	e.used = now
	limit := fresh
	if e.missing {
		limit = freshMissing
	}
	switch {
	case !e.read.IsZero() && now.Sub(e.read) < limit:
		return e.answer, nil
	case e.known && !e.failed.IsZero() && now.Sub(e.failed) < fresh:
		return e.answer, nil // the API server is away: what is known stays known
	case !e.known && now.Before(e.retryAt):
		if e.retryAt.Sub(now) > maxWait {
			return e.answer, nil
		}
		return e.answer, e.attempt
	}
	s.enqueueLocked(k, e, true)
	return e.answer, e.attempt
}

func (s *secrets) enqueueLocked(k key, e *secret, first bool) {
	switch {
	case e.running:
		// What is being got answers those who ask; only a pod that arrived wants a newer one.
		e.again = e.again || !first
	case !e.queued:
		e.queued = true
		if first {
			s.queue = slices.Insert(s.queue, 0, k)
		} else {
			s.queue = append(s.queue, k)
		}
		s.work.Signal()
	}
}

// run gets Secrets until the context ends.
func (s *secrets) run(ctx context.Context, get getter) {
	log := klog.FromContext(ctx)
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.work.Broadcast()
	})()
	for {
		k, e := s.next(ctx)
		if e == nil {
			return
		}
		began := time.Now()
		got, err := s.fetch(ctx, get, k)
		if ctx.Err() != nil {
			return
		}
		s.done(log, k, e, began, got, err)
	}
}

// next waits for a Secret that is to be got; nil if the context ends.
func (s *secrets) next(ctx context.Context) (key, *secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		if len(s.queue) == 0 {
			s.work.Wait()
			continue
		}
		k := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		if e := s.byKey[k]; e != nil && e.queued {
			e.queued, e.running = false, true
			return k, e
		}
	}
	return key{}, nil
}

// got is what came of a GET.
type got struct {
	answer
	version   string
	malformed error
}

// fetch gets a Secret and keeps nothing of its content.
func (s *secrets) fetch(ctx context.Context, get getter, k key) (got, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	secret, err := get(ctx, k.namespace, k.name)
	if err != nil {
		return got{}, err
	}
	config, err := configOf(secret)
	return got{
		answer: answer{
			ref:    records.SecretRef{UID: string(secret.UID), Namespace: k.namespace, Name: k.name},
			sealed: config.Seal(s.seal),
			whole:  err == nil,
		},
		version:   secret.ResourceVersion,
		malformed: err,
	}, nil
}

// configOf reads a pull secret as kubelets do: one of another type, or without the key of its type,
// holds nothing.
func configOf(s *corev1.Secret) (credential.Config, error) {
	if payload := s.Data[corev1.DockerConfigJsonKey]; s.Type == corev1.SecretTypeDockerConfigJson && len(payload) > 0 {
		return credential.ParseDockerConfigJSON(payload)
	}
	if payload := s.Data[corev1.DockerConfigKey]; s.Type == corev1.SecretTypeDockercfg && len(payload) > 0 {
		return credential.ParseDockercfg(payload)
	}
	return credential.Config{}, nil
}

// done notes what came of an attempt, wakes those who wait for it, and says what is worth it.
func (s *secrets) done(log logr.Logger, k key, e *secret, began time.Time, g got, err error) {
	news := s.settle(k, e, began, g, err)
	secret := klog.KRef(k.namespace, k.name)
	switch {
	case apierrors.IsNotFound(err):
		s.count(Missing)
		if news {
			log.Info("Pull secret missing", "secret", secret)
		}
	case err != nil:
		s.count(reasonOf(err))
		// The error may quote what was answered.
		log.V(2).Info("Pull secret not read", "secret", secret, "reason", reasonOf(err))
	case g.malformed != nil:
		s.count(Malformed)
		if news {
			log.Info("Pull secret skipped, its content cannot be read", "secret", secret, "err", g.malformed)
		}
	}
}

// settle notes what came of an attempt and reports whether it is news.
func (s *secrets) settle(k key, e *secret, began time.Time, g got, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[k] != e {
		return false // its pods are gone, and those that name it now wait for an answer of their own
	}
	e.running = false
	close(e.attempt)
	e.attempt = make(chan struct{})
	switch {
	case err == nil:
		news = e.told != g.version
		if g.malformed != nil {
			e.told = g.version
		}
		s.keepLocked(e, g.answer)
		e.read, e.failed, e.failures, e.missing = began, time.Time{}, 0, false
	case apierrors.IsNotFound(err):
		news = !e.missing
		s.dropLocked(e)
		e.read, e.failed, e.failures, e.missing = began, time.Time{}, 0, true
	default:
		e.failed = time.Now()
		e.failures++
		if !e.known { // nobody may ask again in the time that the API server is there
			pause := min(minRetry<<min(e.failures-1, 16), maxRetry)
			e.retryAt = e.failed.Add(pause)
			time.AfterFunc(pause, func() { s.retry(k, e) })
		}
	}
	if e.again {
		e.again = false
		e.read = time.Time{}
		s.enqueueLocked(k, e, false)
	}
	return news
}

// retry gets a Secret again if it is the same one and still not known.
func (s *secrets) retry(k key, e *secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[k] == e && e.read.IsZero() && !e.known {
		s.enqueueLocked(k, e, false)
	}
}

// keepLocked notes what a Secret holds, and makes room for it.
func (s *secrets) keepLocked(e *secret, a answer) {
	s.dropLocked(e)
	e.answer, e.known = a, true
	s.held += a.sealed.Size()
	for s.held > maxHeld {
		var oldest *secret
		for _, other := range s.byKey {
			if other != e && other.known && (oldest == nil || other.used.Before(oldest.used)) {
				oldest = other
			}
		}
		if oldest == nil {
			return // one Secret is never above the limit
		}
		s.dropLocked(oldest)
		oldest.read = time.Time{}
	}
}

// dropLocked makes nothing known of a Secret.
func (s *secrets) dropLocked(e *secret) {
	if e.known {
		s.held -= e.sealed.Size()
	}
	e.answer, e.known = answer{}, false
}
