// Package podsource implements the pod source: the pods of one node according to the API server, and the credentials in
// their pull secrets. It needs only the permissions of the kubelet's own identity: it watches the pods of the node, and
// gets single Secrets that they name, when a pod arrives, and again when the content is needed and ten seconds old.
// That is safe: the pod had these credentials, and a pull always uses those of the kubelet.
//
// The source keeps the IDs and patterns of credentials; of a pod the images, pull policies, names of Secrets, and a
// hash of its annotations. All of it is bounded, whatever a tenant writes. Missing knowledge is never reported as
// absence: see [ErrNotKnown]. While the API server does not answer, the source keeps what it has.
package podsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Options are the settings of a [Source].
type Options struct {
	Kubeconfig string         // the path of a kubeconfig, normally the kubelet's own
	NodeName   string         // the name of the node; "" means the name in the identity of the kubeconfig
	Key        credential.Key // the key for the IDs of credentials
	Failed     func(Reason)   // called for each failure; nil is allowed. It may be called concurrently and must not block
	// Sent is called for each Event with what became of it; nil is allowed. It must not block.
	Sent func(outcome string)
	// Condition returns the state of the node, for its condition. known is false while it may only be transient, and then
	// nothing is written. nil: the node has no condition. ConditionWritten is called for each write with what became of
	// it; it must be set with Condition, and must not block.
	Condition        func(ctx context.Context) (state Condition, known bool)
	ConditionWritten func(outcome string)
	// Report returns the content of the NodeReport. known is false while there is none to write. nil: the node has no
	// report. It is called every few seconds, never concurrently.
	Report func() (content api.Report, known bool)

	// Accounts returns whether service accounts of pods are needed. It may be called concurrently and must not block; nil
	// means no.
	Accounts func() bool

	dial dialFunc // the network of a test; nil means the network of the machine
}

// A Source is a pod source. Its methods may be called concurrently, before, during and after Run.
type Source struct {
	options Options
	began   time.Time // former processes have ended before
	node    atomic.Pointer[string]
	secrets *secrets
	events  *events
	fields  atomic.Pointer[[]string] // of views, sorted; see KeepFields
	ended   atomic.Bool              // Run has returned: there are no more changes

	// mu guards the fields below. It is never held during a call to secrets.
	mu      sync.RWMutex
	byKey   map[key]*Pod // by namespace and name
	byUID   map[string]*Pod
	named   map[key]int        // how many pods name a Secret or a service account
	objects int                // bytes of all pods that are kept whole
	relist  context.CancelFunc // has the pods listed again; nil before the first list
	arrived chan struct{}      // closed and replaced when a pod is added or changed
	up      bool               // the pods have been listed and are being watched
	logged  bool               // it was logged that they are not
	watch   int                // the number of the latest watch
}

// New returns a source without pods; Run fills it. The error wraps ErrKubeconfig if the kubeconfig is malformed, and
// ErrNodeName if its client certificate is not a kubelet's and NodeName is not set. The source is returned in any case:
// Run waits until the kubeconfig is written again, and for one, or a file that it names, that is absent.
func New(o Options) (*Source, error) {
	if o.Failed == nil {
		o.Failed = func(Reason) {}
	}
	if o.Sent == nil {
		o.Sent = func(string) {}
	}
	if o.Accounts == nil {
		o.Accounts = func() bool { return false }
	}
	s := &Source{
		options: o, began: time.Now(), secrets: newSecrets(o.Key, o.Failed, o.Accounts), events: newEvents(o.Sent),
		byKey: map[key]*Pod{}, byUID: map[string]*Pod{}, named: map[key]int{}, arrived: make(chan struct{}),
	}
	if o.NodeName != "" {
		s.node.Store(&o.NodeName)
	}
	_, err := s.load()
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	return s, err
}

// load reads the kubeconfig, and sets the node's name from the client certificate if it is not known.
func (s *Source) load() (*rest.Config, error) {
	config, err := load(s.options.Kubeconfig)
	if err != nil || s.NodeName() != "" {
		return config, err
	}
	node, ok, err := nodeOfCertificate(config)
	if err == nil && ok {
		s.node.Store(&node)
	}
	return config, err
}

// maxAwait bounds the wait for a pod that the watch has not reported yet.
const maxAwait = time.Second

// NodeName returns the name of the node, "" until it is known.
func (s *Source) NodeName() string {
	if n := s.node.Load(); n != nil {
		return *n
	}
	return ""
}

// Run keeps the source up to date until the context ends, then returns nil, or until it fails to determine the node's
// name (ErrNodeName). It counts every other failure, logs it once and tries again. It may be called once. What remains
// when it returns are client-go's watches of certificate files, which end with the garbage collector.
func (s *Source) Run(ctx context.Context) error {
	defer s.ended.Store(true)
	c, err := s.connect(ctx)
	if c != nil {
		defer c.close()
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	log := klog.FromContext(ctx)
	log.Info("Starting the pod source", "node", s.NodeName())
	var g sync.WaitGroup
	for range readers {
		g.Go(func() { s.secrets.run(ctx, c) })
	}
	g.Go(func() { s.events.run(ctx, s.NodeName(), s.has, c.createEvent) })
	g.Go(func() { s.keepCondition(ctx, c) })
	g.Go(func() { s.keepReport(ctx, c) })
	g.Go(func() { s.follow(ctx, c.core, log) })
	g.Wait()
	return nil
}

// connect retries open until the error is ErrNodeName or the context's. The client must be closed even then.
func (s *Source) connect(ctx context.Context) (*client, error) {
	log := klog.FromContext(ctx)
	var c *client
	again := pause().DelayWithReset(clock.RealClock{}, healthy)
	err := again.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if c != nil {
			c.close()
		}
		var err error
		if c, err = s.open(ctx); err == nil || errors.Is(err, ErrNodeName) {
			return true, err
		}
		s.noteError(ctx, log, err)
		return false, nil
	})
	return c, err
}

// open makes one attempt to connect. The client must be closed even if there is an error.
func (s *Source) open(ctx context.Context) (*client, error) {
	config, err := s.load()
	if err != nil {
		return nil, err
	}
	c, err := newClient(config, s.options.dial)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKubeconfig, err)
	}
	if s.NodeName() == "" {
		node, err := c.nodeOfReview(ctx)
		if err != nil {
			return c, err
		}
		s.node.Store(&node)
	}
	return c, nil
}

// Synced reports whether the pods have been listed and are being watched. Without, the known ones stay known.
func (s *Source) Synced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.up
}

// ByUID returns the pod with a UID. It does not find a pod that the watch has not reported yet.
func (s *Source) ByUID(uid string) (*Pod, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.byUID[uid]
	return p, ok
}

// Find returns the pod with a UID or, if it is "", with a namespace and name.
func (s *Source) Find(uid, namespace, name string) []tracker.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.byUID[uid]
	if uid == "" {
		p = s.byKey[key{namespace: namespace, name: name}]
	}
	if p == nil {
		return nil
	}
	return []tracker.Pod{p.Pod}
}

// A Listed pod is one of all known pods.
type Listed struct {
	tracker.Pod
	Ended bool // whether all its containers have ended and will not be restarted
	Uses  []Use
}

// Pods returns all known pods, in no order. The caller must not modify their uses.
func (s *Source) Pods() (all []Listed) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.byUID {
		all = append(all, Listed{p.Pod, p.ended, p.uses})
	}
	return all
}

// Uses returns each use of an image by a pod, if the pod is known.
func (s *Source) Uses(uid string, image imageref.Ref) (uses []Use, known bool) {
	p, known := s.ByUID(uid)
	return p.Uses(image), known
}

// PullPolicies returns the imagePullPolicy of each use of an image by a pod, if the pod is known.
func (s *Source) PullPolicies(uid string, image imageref.Ref) (policies []string, known bool) {
	uses, known := s.Uses(uid, image)
	for _, u := range uses {
		policies = append(policies, u.PullPolicy)
	}
	return policies, known
}

// ServiceAccount returns the name of the service account of a pod in a namespace, "" if it is not known. It awaits the
// pod.
func (s *Source) ServiceAccount(ctx context.Context, uid, namespace string) string {
	if p, known := s.Await(ctx, uid); known && p.Namespace == namespace {
		return p.account
	}
	return ""
}

// Secrets returns the known credentials of a pod, as [Pod.Credentials] does, and whether those of its pull secrets are
// complete. It awaits the pod.
func (s *Source) Secrets(ctx context.Context, uid string, image imageref.Ref) (found []tracker.Secret, complete bool) {
	p, _ := s.Await(ctx, uid)
	found, err := p.Credentials(ctx, image)
	return found, err == nil
}

// Await returns the pod with a UID. It waits at most a second for it: a kubelet may receive a pod earlier.
func (s *Source) Await(ctx context.Context, uid string) (*Pod, bool) {
	if s.ended.Load() {
		return s.ByUID(uid)
	}
	ctx, cancel := context.WithTimeout(ctx, maxAwait)
	defer cancel()
	for {
		s.mu.RLock()
		p, arrived := s.byUID[uid], s.arrived
		s.mu.RUnlock()
		if p != nil {
			return p, true
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// Candidates returns the UIDs, sorted, of the pods that may have sent a pre-check with an unknown config.seen: they use
// the image, and have the annotations, except those that the kubelet itself writes. A pod that changed, or was first
// listed, less than a minute ago is among them: the kubelet may still have its previous state. ok is false while the
// source is not synced.
//
// Equal annotations do not prove identity: a tenant can give its pod those of another one. So an image must be allowed
// to each of these pods with a sandbox, and the exact pod be judged again when its container is created.
func (s *Source) Candidates(annotations map[string]string, image imageref.Ref) (uids []string, ok bool) {
	if !image.Parsed() || !s.Synced() {
		return nil, false
	}
	want, now := hash(annotations), time.Now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for uid, p := range s.byUID {
		if now.Sub(p.changed) < kubeletLag || p.annotations == want && len(p.Uses(image)) > 0 {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids, true
}

// Errors of this package.
var (
	// ErrNotKnown says that the credentials of a pod may be incomplete: a Secret is missing, malformed or unreadable.
	ErrNotKnown   = errors.New("podsource: not all credentials of the pod are known")
	ErrNodeName   = errors.New("podsource: node name not known") // not given, nor determined by the kubeconfig
	ErrKubeconfig = errors.New("podsource: kubeconfig cannot be used")
)
