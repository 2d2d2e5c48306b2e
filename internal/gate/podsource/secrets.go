package podsource

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	readAge = 10 * time.Second // the maximum age of the stored content of a Secret when it is needed
	// maxAgeMissing is the same for a Secret that did not exist, which may be created at any moment. It doubles each time,
	// up to 2^missingDoublings times that.
	maxAgeMissing    = 2 * time.Second
	missingDoublings = 4
	// missingPace is what each missing Secret of a namespace adds to that for all of them, up to maxMissing: it is the
	// least interval of unsuccessful GETs.
	missingPace = 100 * time.Millisecond
	maxMissing  = 5 * time.Minute
	maxWait     = 2 * time.Second  // bounds how long one call waits for the API server. The kubelet waits for pullgated
	getTimeout  = 10 * time.Second // bounds one GET
	// minRetry and maxRetry bound the pause before a Secret that was never read is requested again without a call.
	minRetry, maxRetry = 200 * time.Millisecond, 30 * time.Second
	readers            = 2 // how many Secrets are read at the same time. Each response takes some megabytes for a moment
	// maxSize bounds the content of all Secrets, in bytes. Above it, the namespace that uses most, and more than its
	// share, loses its least recently used Secret, which is read again when it is needed.
	maxSize = 8 << 20
)

// A key names a pod, a Secret, or a service account, of which only the UID is read.
type key struct {
	namespace, name string
	account         bool
}

// answer is the known content of one Secret, or the reference to a service account. The zero value means none.
type answer struct {
	ref    records.SecretRef
	sealed credential.Sealed
	whole  bool // nothing is missing
}

// secret is the stored state of one Secret, or service account, that some pod names.
type secret struct {
	key
	answer
	in        *namespace
	forgotten bool // no pod names it any more

	known         bool      // answer is from the API server
	read          time.Time // when answer was requested; zero if never, or if it has to be requested again
	used          time.Time
	failed        time.Time // when the last attempt failed; zero if it succeeded
	failures      int
	retryAt       time.Time // when a Secret that was never read is requested again
	misses        int       // how often in a row it did not exist
	loggedVersion string    // the resource version that was logged as malformed

	queued         *list.Element // in the list of its namespace; nil if it is in none
	urgency        urgency
	running, again bool
	attempt        chan struct{} // closed at the end of the next attempt
}

func (e *secret) maxAge() time.Duration {
	if e.misses == 0 {
		return readAge
	}
	alone := maxAgeMissing << min(e.misses-1, missingDoublings)
	return min(max(alone, time.Duration(e.in.missing)*missingPace), maxMissing)
}

func (e *secret) missed(times int) {
	if e.misses > 0 {
		e.in.missing--
	}
	if e.misses = times; times > 0 {
		e.in.missing++
	}
}

type getter interface {
	secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
}

// secrets are the pull secrets that the pods of the node name. Its methods may be called concurrently.
type secrets struct {
	seal     credential.Key
	count    func(Reason)
	accounts func() bool // whether service accounts are needed
	most     int         // maxSize, or less in a test
	denied   atomic.Bool // that service accounts may not be read was logged

	work chan struct{} // has a token if a reader has to check queue

	// mu guards the fields below. It is never held during a request.
	mu     sync.Mutex
	byKey  map[key]*secret
	byName map[string]*namespace // those that have Secrets
	queue  fairQueue
	size   int // bytes of their content
}

func newSecrets(seal credential.Key, count func(Reason), accounts func() bool) *secrets {
	return &secrets{
		seal: seal, count: count, accounts: accounts, most: maxSize, work: make(chan struct{}, 1),
		byKey: map[key]*secret{}, byName: map[string]*namespace{},
	}
}

// need queues Secrets to be read, even if they are known, because a pod that names them arrived.
func (s *secrets) need(keys []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		e := s.byKey[k]
		if e == nil {
			n := s.byName[k.namespace]
			if n == nil {
				n = &namespace{}
				s.byName[k.namespace] = n
			}
			n.secrets++
			e = &secret{key: k, in: n, attempt: make(chan struct{}), used: time.Now()}
			s.byKey[k] = e
		}
		e.missed(min(e.misses, 1)) // it may exist now
		e.read = time.Time{}
		if !k.account || s.accounts() {
			s.enqueueLocked(e, wanted)
		}
	}
}

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

func (s *secrets) get(ctx context.Context, keys []key) []answer {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for _, k := range keys {
		s.lookup(k) // so that all are queued before the first wait
	}
	answers := make([]answer, len(keys))
	for i, k := range keys {
		for {
			a, attempt := s.lookup(k)
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

// lookup returns the known content of a Secret, and a channel that ends with the attempt to read it; nil: do not wait.
func (s *secrets) lookup(k key) (answer, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byKey[k]
	if e == nil {
		return answer{}, nil // its pod is gone
	}
	now := time.Now()
	e.used = now
	known := e.answer
	if e.account && e.read.IsZero() {
		known = answer{} // since it was read, a pod arrived, which may be of another account with this name
	}
	switch {
	case !e.read.IsZero() && now.Sub(e.read) < e.maxAge():
		return known, nil
	case e.known && !e.failed.IsZero() && now.Sub(e.failed) < readAge:
		return known, nil // the API server is unreachable: use the known content
	case !e.known && now.Before(e.retryAt):
		if e.account || e.retryAt.Sub(now) > maxWait {
			return known, nil
		}
		return known, e.attempt
	}
	s.enqueueLocked(e, awaited)
	return known, e.attempt
}

func (s *secrets) enqueueLocked(e *secret, u urgency) {
	if e.running {
		// The answer to the current request is recent enough, except for a pod that has just arrived.
		e.again = e.again || u == wanted
		return
	}
	s.queue.push(e, u)
	s.wake()
}

func (s *secrets) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

func (s *secrets) run(ctx context.Context, get getter) {
	log := klog.FromContext(ctx)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.mu.Lock()
		e, wait := s.queue.pop(time.Now())
		if e != nil {
			e.running = true
		}
		s.mu.Unlock()
		if e == nil {
			timer.Reset(wait)
			select {
			case <-s.work:
			case <-timer.C:
			case <-ctx.Done():
			}
			continue
		}
		s.wake() // there may be more for another reader
		began := time.Now()
		got, err := s.fetch(ctx, get, e.key)
		if ctx.Err() != nil {
			return
		}
		s.done(log, e, began, got, err)
	}
}

type got struct {
	answer
	version   string
	malformed error
}

func (s *secrets) fetch(ctx context.Context, get getter, k key) (g got, err error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	if k.account {
		account, err := get.serviceAccount(ctx, k.namespace, k.name)
		if err != nil {
			return g, err
		}
		g.ref, g.whole = records.OfAccount(k.namespace, k.name, string(account.UID))
		return g, nil
	}
	secret, err := get.secret(ctx, k.namespace, k.name)
	if err != nil {
		return g, err
	}
	g.sealed, err = credential.ParsePullSecret(string(secret.Type), secret.Data, s.seal)
	if !errors.Is(err, credential.ErrNoPullSecret) { // which has no credentials, for kubelets too
		g.malformed = err
	}
	g.ref = records.SecretRef{UID: string(secret.UID), Namespace: k.namespace, Name: k.name}
	g.whole, g.version = g.malformed == nil, secret.ResourceVersion
	return g, nil
}

// done notes the result of an attempt, wakes the callers that wait for it, and logs and counts a failure.
func (s *secrets) done(log logr.Logger, e *secret, began time.Time, g got, err error) {
	news := s.settle(e, began, g, err)
	secret := klog.KRef(e.namespace, e.name)
	switch {
	case e.account:
		if err != nil {
			s.count(reasonOf(err))
			if reasonOf(err) == Forbidden && s.denied.CompareAndSwap(false, true) {
				log.Info("Service accounts may not be read, so that credentials given out for one count as the pod's own: "+
					"allow get of serviceaccounts", "serviceAccount", secret)
			}
			log.V(2).Info("Service account not read", "serviceAccount", secret, "reason", reasonOf(err))
		}
	case apierrors.IsNotFound(err):
		s.count(Missing)
		if news {
			log.Info("Pull secret missing", "secret", secret)
		}
	case err != nil:
		s.count(reasonOf(err))
		// The error may quote the answer.
		log.V(2).Info("Pull secret not read", "secret", secret, "reason", reasonOf(err))
	case g.malformed != nil:
		s.count(Malformed)
		if news {
			log.Info("Skipping a pull secret: failed to read its content", "secret", secret, "err", g.malformed)
		}
	}
}

// settle notes the result of an attempt and reports whether the caller should log it.
func (s *secrets) settle(e *secret, began time.Time, g got, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.forgotten {
		return false // its pods are gone; pods that name it now wait for another attempt
	}
	e.running = false
	close(e.attempt)
	e.attempt = make(chan struct{})
	switch {
	case err == nil:
		news = e.loggedVersion != g.version
		if g.malformed != nil {
			e.loggedVersion = g.version
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
		if !e.known { // there may be no call for it while the API server is reachable
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

// keepLocked stores the content of a Secret and makes room for it. If there is no room, the Secret is not known.
func (s *secrets) keepLocked(e *secret, a answer) {
	s.dropLocked(e)
	e.answer, e.known = a, true
	s.size += a.sealed.Size()
	e.in.size += a.sealed.Size()
	for s.size > s.most {
		other := s.evictableLocked(e)
		if other == nil {
			s.dropLocked(e)
			return
		}
		s.dropLocked(other)
		other.read = time.Time{}
	}
}

// evictableLocked returns the least recently used Secret of the namespace that uses most, and more than its share.
func (s *secrets) evictableLocked(e *secret) *secret {
	holders := 0
	for _, n := range s.byName {
		if n.size > 0 {
			holders++
		}
	}
	var oldest *secret
	for _, other := range s.byKey {
		switch {
		case other == e || other.account || !other.known || other.in.size <= s.most/holders:
		case oldest == nil, other.in.size > oldest.in.size, other.in == oldest.in && other.used.Before(oldest.used):
			oldest = other
		}
	}
	return oldest
}

func (s *secrets) dropLocked(e *secret) {
	if e.known {
		s.size -= e.sealed.Size()
		e.in.size -= e.sealed.Size()
	}
	e.answer, e.known = answer{}, false
}
