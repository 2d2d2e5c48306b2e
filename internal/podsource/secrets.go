package podsource

import (
	"container/list"
	"context"
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
	// freshMissing is the same of one that did not exist, at the first time; it may be created any
	// moment. It doubles with each time that the Secret still does not exist, up to 2^missingDoublings
	// times that.
	freshMissing     = 2 * time.Second
	missingDoublings = 4
	// missingPace is what each missing Secret of a namespace adds to that for all of them, so that
	// the API server gets at most one GET in it that finds nothing; up to maxMissing.
	missingPace = 100 * time.Millisecond
	maxMissing  = 5 * time.Minute
	// maxWait bounds how long one question waits for the API server. The kubelet waits for us.
	maxWait = 2 * time.Second
	// getTimeout bounds one GET.
	getTimeout = 10 * time.Second
	// minRetry and maxRetry bound the pause before a Secret that was never read is got again without
	// being asked for.
	minRetry, maxRetry = 200 * time.Millisecond, 30 * time.Second
	// getters is how many Secrets are got at once. Each holds a response of some megabytes for a moment.
	getters = 2
	// maxHeld bounds the memory that all Secrets take together, in bytes. Above it the namespace that
	// holds most loses the Secret that was not asked for longest, which is got again when it is. So a
	// namespace that holds no more than its share loses none.
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
	key
	answer
	in        *namespace
	forgotten bool // no pod names it any more

	known bool      // answer is what the API server said
	read  time.Time // when answer was asked for; zero if never, or if it is to be asked for anew
	used  time.Time
	// failed is when the last attempt failed; zero if it did not.
	failed   time.Time
	failures int
	retryAt  time.Time // when one that was never read is got again
	misses   int       // how often in a row it did not exist
	told     string    // the resource version that was called malformed

	queued         *list.Element // in the list of its namespace; nil if it is in none
	urgency        urgency
	running, again bool
	attempt        chan struct{} // closed at the end of the next attempt
}

// freshFor returns how old what is known of the Secret may be when it is asked for.
func (e *secret) freshFor() time.Duration {
	if e.misses == 0 {
		return fresh
	}
	alone := freshMissing << min(e.misses-1, missingDoublings)
	return min(max(alone, time.Duration(e.in.missing)*missingPace), maxMissing)
}

// missed notes how often in a row the Secret did not exist.
func (e *secret) missed(times int) {
	if e.misses > 0 {
		e.in.missing--
	}
	if e.misses = times; times > 0 {
		e.in.missing++
	}
}

// getter gets one Secret from the API server.
type getter func(ctx context.Context, namespace, name string) (*corev1.Secret, error)

// secrets are the pull secrets that the pods of the node name. Its methods may be called concurrently.
type secrets struct {
	seal  credential.Key
	count func(Reason)
	most  int // maxHeld, or less in a test

	work chan struct{} // holds a token if a getter has to look at queue

	// mu guards the fields that follow. It is never held across a request.
	mu     sync.Mutex
	byKey  map[key]*secret
	byName map[string]*namespace // those that have Secrets
	queue  fairQueue
	held   int // bytes
}

func newSecrets(seal credential.Key, count func(Reason)) *secrets {
	return &secrets{
		seal: seal, count: count, most: maxHeld, work: make(chan struct{}, 1),
		byKey: map[key]*secret{}, byName: map[string]*namespace{},
	}
}

// want makes sure that the Secrets are known, and anew if they are, since a pod that names them arrived.
func (s *secrets) want(keys []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		e := s.byKey[k]
		if e == nil {
			e = s.addLocked(k)
		}
		e.missed(min(e.misses, 1)) // it may well exist now
		e.read = time.Time{}
		s.enqueueLocked(e, wanted)
	}
}

func (s *secrets) addLocked(k key) *secret {
	n := s.byName[k.namespace]
	if n == nil {
		n = &namespace{}
		s.byName[k.namespace] = n
	}
	n.secrets++
	e := &secret{key: k, in: n, attempt: make(chan struct{}), used: time.Now()}
	s.byKey[k] = e
	return e
}

// forget drops Secrets that no pod names any more.
func (s *secrets) forget(keys []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		e := s.byKey[k]
		if e == nil {
			continue
		}
		s.dropLocked(e)
		e.missed(0)
		s.queue.remove(e)
		e.forgotten = true
		close(e.attempt)
		delete(s.byKey, k)
		if e.in.secrets--; e.in.secrets == 0 {
			delete(s.byName, k.namespace)
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
	switch {
	case !e.read.IsZero() && now.Sub(e.read) < e.freshFor():
		return e.answer, nil
	case e.known && !e.failed.IsZero() && now.Sub(e.failed) < fresh:
		return e.answer, nil // the API server is away: what is known stays known
	case !e.known && now.Before(e.retryAt):
		if e.retryAt.Sub(now) > maxWait {
			return e.answer, nil
		}
		return e.answer, e.attempt
	}
	s.enqueueLocked(e, awaited)
	return e.answer, e.attempt
}

func (s *secrets) enqueueLocked(e *secret, u urgency) {
	if e.running {
		// What is being got answers those who ask; only a pod that arrived wants a newer one.
		e.again = e.again || u == wanted
		return
	}
	s.queue.push(e, u)
	s.wake()
}

// wake makes one getter look at the queue.
func (s *secrets) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// run gets Secrets until the context ends.
func (s *secrets) run(ctx context.Context, get getter) {
	log := klog.FromContext(ctx)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for ctx.Err() == nil {
		e, wait := s.next()
		if e == nil {
			timer.Reset(wait)
			select {
			case <-s.work:
			case <-timer.C:
			case <-ctx.Done():
			}
			continue
		}
		s.wake() // there may be one for another getter
		began := time.Now()
		got, err := s.fetch(ctx, get, e.key)
		if ctx.Err() != nil {
			return
		}
		s.done(log, e, began, got, err)
	}
}

// next returns the Secret that is to be got now; nil if there is none, with how long it takes until
// there may be one.
func (s *secrets) next() (*secret, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, wait := s.queue.pop(time.Now())
	if e != nil {
		e.running = true
	}
	return e, wait
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
func (s *secrets) done(log logr.Logger, e *secret, began time.Time, g got, err error) {
	news := s.settle(e, began, g, err)
	secret := klog.KRef(e.namespace, e.name)
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
func (s *secrets) settle(e *secret, began time.Time, g got, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.forgotten {
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
		e.missed(0)
		e.read, e.failed, e.failures = began, time.Time{}, 0
	case apierrors.IsNotFound(err):
		news = e.misses == 0
		s.dropLocked(e)
		e.missed(e.misses + 1)
		e.read, e.failed, e.failures = began, time.Time{}, 0
	default:
		e.failed = time.Now()
		e.failures++
		if !e.known { // nobody may ask again in the time that the API server is there
			e.retryAt = e.failed.Add(min(minRetry<<min(e.failures-1, 16), maxRetry))
			s.queue.retryAt(e, e.retryAt)
			s.wake()
		}
	}
	if e.again {
		e.again = false
		e.read = time.Time{}
		s.enqueueLocked(e, wanted)
	}
	return news
}

// keepLocked notes what a Secret holds, and makes room for it. Without room nothing is known of it.
func (s *secrets) keepLocked(e *secret, a answer) {
	s.dropLocked(e)
	e.answer, e.known = a, true
	s.held += a.sealed.Size()
	e.in.held += a.sealed.Size()
	for s.held > s.most {
		other := s.evictableLocked(e)
		if other == nil {
			s.dropLocked(e)
			return
		}
		s.dropLocked(other)
		other.read = time.Time{}
	}
}

// evictableLocked returns the Secret that makes room for another one: of the namespace that holds most,
// the one that was not asked for longest. A namespace that holds no more than an equal share of the
// memory loses none: then it returns nil.
func (s *secrets) evictableLocked(e *secret) *secret {
	holders := 0
	for _, n := range s.byName {
		if n.held > 0 {
			holders++
		}
	}
	var oldest *secret
	for _, other := range s.byKey {
		switch {
		case other == e || !other.known || other.in.held <= s.most/holders:
		case oldest == nil, other.in.held > oldest.in.held, other.in == oldest.in && other.used.Before(oldest.used):
			oldest = other
		}
	}
	return oldest
}

// dropLocked makes nothing known of a Secret.
func (s *secrets) dropLocked(e *secret) {
	if e.known {
		s.held -= e.sealed.Size()
		e.in.held -= e.sealed.Size()
	}
	e.answer, e.known = answer{}, false
}
