package tracker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// A Runtime is a container runtime.
type Runtime interface {
	// Images returns all images of the runtime, or an error. It never returns a part of them.
	Images(ctx context.Context) ([]Image, error)
	// Image returns the image with a name or an ID, the zero value for an absent image. It is used when Images fails,
	// because the list may be too large to send.
	Image(ctx context.Context, name string) (Image, error)
}

// An Image is one image of the runtime. The zero value is an absent image.
type Image struct {
	ID    string         // the runtime's; for containerd the config digest
	Names []imageref.Ref // all tags and digests, as the runtime writes them
}

// NewImage returns an image with an ID and names.
func NewImage(id string, names ...string) Image {
	i := Image{ID: id}
	for _, n := range names {
		i.Names = append(i.Names, imageref.New(n))
	}
	return i
}

// A Pod is a pod that uses, or wants to use, an image. The zero value is a pod that is not identified: it gets no
// grants, is not exempt, and may use only what every pod may use.
type Pod struct {
	UID, Namespace string
	Name           string // for logs; it does not affect a verdict
	// Static says that the kubelet read the pod from a file or a URL. It may be set for a pod that is not identified.
	Static bool
}

// Rules are the settings that can change while the tracker runs. The zero value has the default policy.
type Rules struct {
	Policy           policy.Policy
	ExemptStaticPods bool          // lets every static pod use every image
	ExemptNamespaces []string      // their pods may use every image
	Validity         time.Duration // of a proof after a registry confirmed it; 0 means forever
	Spread           bool          // ends each proof up to a fifth of Validity earlier, at a time of its own
	Grace            time.Duration // how much longer a proof counts while the registry cannot be asked
	// NodeNamespaces are the namespaces whose pods may use credentials of the node, and what these have opened; nil means
	// all. Where it is not known how a record was opened, credentials of the node may have.
	NodeNamespaces []string
}

// Options are the fixed settings of a [Tracker].
type Options struct {
	Rules Rules
	// VerifyUntracked prevents untracked images from being marked preloaded, except those that are present at the very
	// first start of the store.
	VerifyUntracked bool
	// Watched reports whether all pulls of the node go through the tracker now. Its number changes whenever they may have
	// bypassed it since. Except at the very first start of the store, an image that a pull may have brought meanwhile is
	// never marked preloaded. nil: they always do.
	Watched func() (since uint64, ok bool)
	// NodeOffers reports, from memory, whether the node itself offers the credential to every pod for a repository. A pull
	// with such a credential opens the image. nil is allowed.
	NodeOffers func(repository string, id credential.ID) bool
	// NodeHolds reports whether the node has the credential, or had it lately: a pull with it may be one with a credential
	// that the kubelet has added. nil is allowed.
	NodeHolds func(ctx context.Context, id credential.ID) bool
	// AccountsOf returns, from memory, the service accounts to which credential providers have bound the credential for a
	// repository. A pull with such a credential proves access for one of them, see [Tracker.Bound]. nil is allowed.
	AccountsOf func(repository string, id credential.ID) []Secret
	// RuntimeCredentialsPerNamespace says that the runtime may pull with credentials that it holds for the pod's namespace
	// if the call has none. Such a pull then proves access for the pods of that namespace, and does not open the image.
	RuntimeCredentialsPerNamespace bool
	Log                            klog.Logger         // state changes and upkeep failures
	OnSync                         func(time.Duration) // by [Open]: gets the duration of each write; nil is allowed
	// OnPanic is called by [Open]'s tracker for a panic during a call of the store, with its value and the stack. Every
	// later call fails, so the program should end. nil is allowed.
	OnPanic func(value any, stack []byte)
}

// A Tracker tracks which credentials pulled which image. Its methods may be called concurrently.
type Tracker struct {
	store       *records.Store
	key         credential.Key
	runtime     Runtime
	options     Options // except for the rules
	log         klog.Logger
	rules       atomic.Pointer[Rules]
	access      atomic.Pointer[Access]       // nil if there is none
	withdrawn   func(repository string) bool // see SetAccess; guarded by turn, nil if all that has ended is on disk
	revocations atomic.Uint64                // see Revocations
	accounts    atomic.Bool                  // see HasAccounts

	turn sync.Mutex // see the package comment

	mu      sync.RWMutex                      // guards the following fields
	grants  map[string]map[records.Pair]grant // by UID
	noted   map[string]map[records.Pair]bool  // by UID: only the policy allowed the pod, which leaves no grant
	running map[uint64]*Pull                  // by intent
	ended   ends                              // of pulls, by intent
	holding int                               // holds on scans that are in effect, see holdScans
	holds   uint64                            // holds on scans so far
	latest  time.Time                         // see noteTime
	gap     gap

	usesMu sync.Mutex                   // guards uses. mu precedes it
	uses   map[records.Pair]records.Use // not yet flushed

	lists     *lists
	creating  map[*Create]struct{} // those in progress
	ordinary  map[string]bool      // images that are not checkpoints, by ordinaryKey
	unwritten []*Create            // with ends that are not on disk

	endedCreations ends // by ID
}

// New returns a tracker on a store that is open already; programs call [Open]. Pulls that an earlier process left in
// progress are unresolved: the runtime may complete them at any time.
func New(store *records.Store, key credential.Key, rt Runtime, o Options) *Tracker {
	t := &Tracker{
		store: store, key: key, runtime: rt, options: o, log: o.Log,
		grants:   map[string]map[records.Pair]grant{},
		noted:    map[string]map[records.Pair]bool{},
		running:  map[uint64]*Pull{},
		ended:    ends{},
		uses:     map[records.Pair]records.Use{},
		lists:    newLists(rt),
		creating: map[*Create]struct{}{},
		ordinary: map[string]bool{},

		endedCreations: ends{},
	}
	t.SetRules(o.Rules)
	if o.Rules.Validity > 0 {
		t.clamp()
	}
	left, err := store.Intents()
	for _, in := range left {
		t.ended[in.ID] = time.Now() // time of this process, independent of the clock when the pull ended
	}
	left = slices.DeleteFunc(left, func(in records.Intent) bool { return !in.Ended.IsZero() })
	if err := errors.Join(err, store.EndAll(left, time.Now()), t.endCreations()); err != nil {
		t.log.Error(err, "Failed to read some pull intents of an earlier run: their images need proof")
	}
	if err := t.findAccounts(); err != nil {
		t.log.Error(err, "Failed to read the proofs of service accounts: the pods of one need a pull until one is reported")
	}
	return t
}

// SetRules replaces the rules for every judgement that begins after SetRules returns. Grants stay; those that may come
// from credentials of the node count only for pods of NodeNamespaces.
func (t *Tracker) SetRules(r Rules) {
	r.ExemptNamespaces, r.NodeNamespaces = slices.Clone(r.ExemptNamespaces), slices.Clone(r.NodeNamespaces)
	t.store.Reserve(r.NodeNamespaces != nil)
	t.rules.Store(&r)
	t.revocations.Add(1) // what was judged before is judged again
}

func (r *Rules) exemption(p Pod) policy.Exemption {
	switch {
	case p.Static && r.ExemptStaticPods:
		return policy.StaticPod
	case p.Namespace != "" && slices.Contains(r.ExemptNamespaces, p.Namespace):
		return policy.ExemptedNamespace
	default:
		return policy.NotExempt
	}
}

// Carries reports whether the image has the name. If the runtime resolves a name only as an image ID, or as a prefix of
// one, the image does not have that name.
func (i Image) Carries(n imageref.Name) bool {
	return n != imageref.Name{} && slices.ContainsFunc(i.Names, func(known imageref.Ref) bool { return known.Name() == n })
}

// Repositories returns the repositories of the image's names, sorted, without duplicates.
func (i Image) Repositories() []string {
	var all []string
	for _, n := range i.Names {
		if n.Parsed() {
			all = append(all, n.Repository())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func pairsOf(images []Image) []records.Pair {
	var pairs []records.Pair
	for _, i := range images {
		for _, r := range i.Repositories() {
			pairs = append(pairs, records.Pair{ImageID: i.ID, Repository: r})
		}
	}
	return pairs
}

func (t *Tracker) logPairs(message string, pairs []records.Pair, more ...any) {
	for _, p := range pairs {
		t.log.WithCallDepth(1).Info(message, append([]any{"imageID", p.ImageID, "repository", p.Repository}, more...)...)
	}
}
