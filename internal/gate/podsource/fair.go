package podsource

import (
	"container/list"
	"slices"
	"time"
)

const (
	// pace and burst limit the reads of one namespace. One with 500 pods, each with its own Secret, stays below.
	pace  = 50 * time.Millisecond
	burst = 500
	idle  = time.Hour // how long a reader waits if the queue is empty
)

// An urgency orders reads. All Secrets that a caller waits for are read before any other.
type urgency uint8

const (
	wanted  urgency = iota // a pod names it
	awaited                // and a caller waits for it
	urgencies
)

// A namespace has the place of the Secrets of one namespace in the queue, and their share of the memory.
type namespace struct {
	lists [urgencies]list.List     // of *secret, first in, first out
	turn  [urgencies]*list.Element // in fairQueue.turns; nil if the list is empty
	paid  time.Time                // the reads so far use the time until then, one pace each

	secrets int // that at least one pod names
	missing int // of these, those that do not exist
	size    int // bytes of their content
}

func (n *namespace) delay(now time.Time) time.Duration {
	return n.paid.Add(-(burst - 1) * pace).Sub(now)
}

// A fairQueue contains the Secrets that have to be read. Namespaces take turns, so that a namespace with many Secrets
// delays the others by one read each time. The zero value is empty. A fairQueue has no lock. Its invariants are:
//
//   - A Secret is in at most one list of its namespace; secret.queued is its element there.
//   - A namespace is in turns, once for each urgency, exactly if its list of that urgency is not empty.
//   - retries is ordered by time. It may hold a Secret that has been read or forgotten since.
type fairQueue struct {
	turns   [urgencies]list.List // of *namespace; the one that has waited for its turn longest is the first
	retries []retry
}

type retry struct {
	at time.Time
	e  *secret
}

// push adds a Secret to the queue of its namespace. If the Secret is already queued, push can only make it more urgent.
func (q *fairQueue) push(e *secret, u urgency) {
	if e.queued != nil {
		if e.urgency >= u {
			return
		}
		q.remove(e)
	}
	n := e.in
	e.urgency, e.queued = u, n.lists[u].PushBack(e)
	if n.turn[u] == nil {
		n.turn[u] = q.turns[u].PushBack(n)
	}
}

func (q *fairQueue) remove(e *secret) {
	if e.queued == nil {
		return
	}
	n, u := e.in, e.urgency
	n.lists[u].Remove(e.queued)
	e.queued = nil
	if n.lists[u].Len() == 0 {
		q.turns[u].Remove(n.turn[u])
		n.turn[u] = nil
	}
}

// pop removes and returns the next Secret to read; nil if there is none, and when there may be one without a push.
func (q *fairQueue) pop(now time.Time) (*secret, time.Duration) {
	wait := q.retry(now)
	for u := range urgencies {
		u = urgencies - 1 - u
		for turn := q.turns[u].Front(); turn != nil; turn = turn.Next() {
			n := turn.Value.(*namespace) //nolint:forcetypeassert,errcheck // turns holds nothing else
			if d := n.delay(now); d > 0 {
				wait = min(wait, d)
				continue
			}
			q.turns[u].MoveToBack(turn)
			e := n.lists[u].Front().Value.(*secret) //nolint:forcetypeassert,errcheck // lists hold nothing else
			q.remove(e)
			if n.paid.Before(now) {
				n.paid = now
			}
			n.paid = n.paid.Add(pace)
			return e, 0
		}
	}
	return nil, wait
}

func (q *fairQueue) retryAt(e *secret, at time.Time) {
	i, _ := slices.BinarySearchFunc(q.retries, at, func(r retry, at time.Time) int { return r.at.Compare(at) })
	q.retries = slices.Insert(q.retries, i, retry{at, e})
}

// retry queues the Secrets that are due, and returns how long it is until the next one is due.
func (q *fairQueue) retry(now time.Time) time.Duration {
	due := 0
	for _, r := range q.retries {
		if r.at.After(now) {
			break
		}
		due++
		if !r.e.forgotten && !r.e.known && r.e.read.IsZero() && !r.e.running {
			q.push(r.e, wanted)
		}
	}
	q.retries = slices.Delete(q.retries, 0, due)
	if len(q.retries) == 0 {
		return idle
	}
	return q.retries[0].at.Sub(now)
}
