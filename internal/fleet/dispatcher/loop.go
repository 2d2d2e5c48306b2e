package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

const (
	between   = 300 * time.Millisecond // the shortest time between two decisions
	atLeast   = time.Minute            // the longest: conditions of nodes age
	afterFail = 5 * time.Second        // after a write that failed
)

// A loop decides and writes, in the replica that leads.
type loop struct {
	o Options
	c *client
	m *metrics

	nodes, pods, rollouts cache.Store
	changed               chan struct{}
	// written has the versions that the caches must have reached before the next decision, by store and key.
	written map[cache.Store]map[string]string
	refused map[string]refusal      // as of a world
	failed  map[types.UID]time.Time // the same
	failing map[string]bool         // kinds of writes
}

func newLoop(o Options, c *client, m *metrics) *loop {
	return &loop{
		o: o, c: c, m: m, changed: make(chan struct{}, 1), refused: map[string]refusal{}, failed: map[types.UID]time.Time{},
		failing: map[string]bool{},
	}
}

// run returns when ctx has ended, and nothing is written any more.
func (l *loop) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	controllers := l.watch()
	for _, c := range controllers {
		running.Go(func() { c.RunWithContext(ctx) })
	}
	l.written = map[cache.Store]map[string]string{l.nodes: {}, l.rollouts: {}}
	timer := time.NewTimer(between)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.changed:
			select {
			case <-ctx.Done():
				return
			case <-time.NewTimer(between).C: // more will change
			}
		}
		next := between
		synced := !slices.ContainsFunc(controllers, func(c cache.Controller) bool { return !c.HasSynced() })
		if synced && l.caughtUp() {
			next = l.pass(ctx)
		}
		timer.Reset(next)
	}
}

// watch makes the caches. The first lists are read from the API server, not from a cache of it that may be older than
// what a former leader wrote.
func (l *loop) watch() []cache.Controller {
	informer := func(
		lw *cache.ListWatch, client any, kind runtime.Object, t cache.TransformFunc,
	) (cache.Store, cache.Controller) {
		return cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, client), ObjectType: kind, Transform: t,
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { l.wake() },
				DeleteFunc: func(any) { l.wake() },
				UpdateFunc: func(was, is any) {
					if a, ok := was.(*node); ok {
						if b, ok := is.(*node); ok && a.same(b) {
							return
						}
					}
					l.wake()
				},
			},
		})
	}
	mine := labels.SelectorFromSet(labels.Set{podLabel: podApp}).String()
	nodes, pods, rollouts := l.c.core.Nodes(), l.c.core.Pods(l.o.Namespace), l.c.rollouts
	all := make([]cache.Controller, 3)
	l.nodes, all[0] = informer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := nodes.List(ctx, fresh(o))
			if err != nil {
				return nil, err
			}
			page := &nodeList{ListMeta: list.ListMeta}
			for i := range list.Items {
				page.Items = append(page.Items, strip(&list.Items[i]))
			}
			return page, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, l.c.core, &corev1.Node{}, stripped)
	l.pods, all[1] = informer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = mine
			return pods.List(ctx, fresh(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = mine
			return pods.Watch(ctx, o)
		},
	}, l.c.core, &corev1.Pod{}, nil)
	l.rollouts, all[2] = informer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return rollouts.List(ctx, fresh(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return rollouts.Watch(ctx, o)
		},
	}, l.c.rollouts, &unstructured.Unstructured{}, nil)
	return all
}

// fresh asks for a list that is not older than the request, in pages that need little memory.
func fresh(o metav1.ListOptions) metav1.ListOptions {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	o.Limit = 100
	return o
}

func (l *loop) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// caughtUp reports whether the caches have everything that was written. Otherwise one node could be begun twice, or two
// in place of one.
func (l *loop) caughtUp() bool {
	for store, versions := range l.written {
		for key, version := range versions {
			is, exists, _ := store.GetByKey(key)
			if exists {
				if o, ok := is.(metav1.Object); ok {
					if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version); err == nil && order < 0 {
						return false
					}
				}
			}
			delete(versions, key)
		}
	}
	return true
}

// pass decides once and writes, and returns when to decide again if nothing changes.
func (l *loop) pass(ctx context.Context) time.Duration {
	w := l.world(ctx)
	l.m.show(w.rollouts)
	actions, wake := w.decide()
	failed := false
	for _, a := range actions {
		if ctx.Err() != nil {
			return between
		}
		failed = !l.perform(ctx, a) || failed
	}
	next := atLeast
	if !wake.IsZero() {
		next = min(next, max(time.Until(wake), between))
	}
	if failed {
		next = min(next, afterFail)
	} else if len(actions) > 0 {
		next = between
	}
	return next
}

func (l *loop) world(ctx context.Context) *world {
	w := &world{
		now: time.Now(), pods: map[string][]*corev1.Pod{}, leases: map[string]time.Time{}, namespace: l.o.Namespace,
		refused: l.refused, failed: l.failed,
	}
	for _, name := range l.o.PullSecrets {
		w.pullSecrets = append(w.pullSecrets, corev1.LocalObjectReference{Name: name})
	}
	for _, o := range l.nodes.List() {
		if n, ok := o.(*node); ok {
			w.nodes = append(w.nodes, n)
		}
	}
	uids := map[types.UID]bool{}
	for _, o := range l.pods.List() {
		if p, ok := o.(*corev1.Pod); ok {
			w.pods[p.Spec.NodeName] = append(w.pods[p.Spec.NodeName], p)
			uids[p.UID] = true
			delete(l.refused, p.Name) // a creation that was not answered in time
		}
	}
	maps.DeleteFunc(l.failed, func(uid types.UID, _ time.Time) bool { return !uids[uid] })
	maps.DeleteFunc(l.refused, func(pod string, r refusal) bool {
		o, _, _ := l.nodes.GetByKey(r.node)
		n, ok := o.(*node)
		return !ok || n.last() == nil || podName(n.attempt, n) != pod
	})
	for _, o := range l.rollouts.List() {
		if u, ok := o.(*unstructured.Unstructured); ok {
			w.rollouts = append(w.rollouts, l.decodeRollout(u))
		}
	}
	w.sort()
	for _, name := range w.needLease() {
		w.leases[name] = l.c.renewed(ctx, name)
	}
	return w
}

func (l *loop) decodeRollout(u *unstructured.Unstructured) *rollout {
	r := &api.Rollout{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, r)
	if err != nil { // its nodes stay as they are
		r = &api.Rollout{ObjectMeta: metav1.ObjectMeta{
			Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), Generation: u.GetGeneration(),
			CreationTimestamp: u.GetCreationTimestamp(), DeletionTimestamp: u.GetDeletionTimestamp(),
			Finalizers: u.GetFinalizers(),
		}}
	}
	x := newRollout(r, l.o.Image, l.o.Version)
	if err != nil {
		x.invalid = fmt.Errorf("the object cannot be read: %w", err)
	}
	return x
}

// perform writes, and reports whether that has succeeded or is obsolete.
func (l *loop) perform(ctx context.Context, a action) bool {
	version, err := l.c.write(ctx, a)
	kind := a.what()
	if c, ok := a.(createPod); ok {
		delete(l.refused, c.pod.Name)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			l.refused[c.pod.Name] = refusal{c.pod.Spec.NodeName, safetext.Line(err.Error(), maxSaid)}
		}
	}
	switch {
	case err == nil:
		if l.failing[kind] {
			delete(l.failing, kind)
			l.o.Log.Info("Writing succeeds again", "write", kind)
		}
		l.note(a, version)
		return true
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		l.o.Log.V(2).Info("The object has changed, deciding again", "write", kind, "err", err)
		return true
	case ctx.Err() != nil:
		return false
	}
	l.m.failed.WithLabelValues(kind).Inc()
	if !l.failing[kind] {
		l.failing[kind] = true
		l.o.Log.Error(errors.New(safetext.Line(err.Error(), maxSaid)), "Failed to write, will retry", "write", kind)
	}
	return false
}

// note logs and counts what was written, and remembers its version.
func (l *loop) note(a action, version string) {
	switch a := a.(type) {
	case changeNode:
		l.written[l.nodes][a.node.Name] = version
		t := a.attempt
		if t == nil || a.node.attempt != nil && *a.node.attempt == *t {
			break
		}
		log := l.o.Log.WithValues("node", a.node.Name, "rollout", a.claim, "attempt", attemptID(t), "action", t.Action)
		if t.Restarts > 0 && t.Outcome == "" {
			log.Info("A node was restarted, another pod will report what it has done")
			break
		}
		if t.Outcome == "" {
			log.Info("Changing a node", "version", t.Version, "mode", t.Mode, "wave", t.Wave)
			break
		}
		l.m.outcomes.WithLabelValues(string(t.Outcome)).Inc()
		log.Info("An attempt has ended", "outcome", t.Outcome, "stage", t.Stage)
	case notInstalled:
		l.written[l.nodes][a.node.Name] = version
	case confirmPod:
		l.o.Log.Info("Confirmed a node", "node", a.pod.Spec.NodeName, "attempt", a.attempt)
	case setStatus:
		l.written[l.rollouts][a.rollout.Name] = version
		if a.status.Phase != a.rollout.Status.Phase {
			l.o.Log.Info("A rollout has another phase", "rollout", a.rollout.Name, "phase", a.status.Phase,
				"message", a.status.Message)
		}
	case setFinalizer:
		l.written[l.rollouts][a.rollout.Name] = version
	case createPod, deletePod:
	}
}

// same reports whether two states of a Node lead to the same decisions. What is awaited of a running attempt may be any
// change.
func (n *node) same(other *node) bool {
	return !other.running() && n.UID == other.UID && n.machineID == other.machineID && n.linux == other.linux &&
		n.ready == other.ready && (n.DeletionTimestamp == nil) == (other.DeletionTimestamp == nil) &&
		n.labels == other.labels && (n.taints == nil) == (other.taints == nil) &&
		sameRecord(n.installed, other.installed) && sameRecord(n.attempt, other.attempt) && sameCondition(n, other)
}

func sameRecord[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func sameCondition(a, b *node) bool {
	if a.condition == nil || b.condition == nil {
		return a.condition == b.condition
	}
	x, y := *a.condition, *b.condition
	x.LastHeartbeatTime, y.LastHeartbeatTime = metav1.Time{}, metav1.Time{}
	return x == y
}
