package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Reasons of the node's condition, the most severe one first. pullgated does not write NotInstalled, which is above
// them: who takes it off a node does.
const (
	reasonBypassed  = "Bypassed"
	reasonShadow    = "Shadow"
	reasonDegraded  = "Degraded"
	reasonEnforcing = "Enforcing" // the condition is True
)

const (
	// containersEvery is how often the containers of the runtime are listed while a kubelet is seen to use pullgated.
	containersEvery = time.Minute
	// containersKnown is how old the last list may be for the condition to be True.
	containersKnown = 5 * time.Minute
)

// condition judges the state of the node. Its methods are not called concurrently.
type condition struct {
	version  string
	tried    time.Time // when the runtime was last asked for the containers
	listed   time.Time // when it last answered that
	bypassed bool      // one of them was created past pullgated
}

// nodeState is what status, doctor and /readyz know of the node.
type nodeState struct {
	bypassed   bool // a container was created past pullgated
	left       bool // no kubelet uses pullgated
	inForce    *inForce
	distrusted bool
	notReady   string // "" if the daemon is ready
	policies   *adminv1.ListPoliciesResponse
}

// judge returns the state of the node. It is not known while pullgated stops.
func (c *condition) judge(ctx context.Context, p parts) (podsource.Condition, bool) {
	left, known := c.usage(ctx, p.gate)
	if !known || p.stopping.Load() {
		return podsource.Condition{}, false
	}
	s := nodeState{
		bypassed: c.bypassed, left: left, inForce: p.inForce.Load(), distrusted: p.store.Distrusted() != nil,
		policies: p.policies.list(),
	}
	if text, ready := p.ready(); !ready {
		s.notReady = text
	}
	judged := c.of(s)
	return judged, c.listedFor(judged)
}

// listedFor reports whether the containers were listed lately, which a condition that is True needs.
func (c *condition) listedFor(judged podsource.Condition) bool {
	return !judged.True || !c.listed.IsZero() && time.Since(c.listed) < containersKnown
}

// usage reports whether the kubelet has left pullgated, and keeps whether a container was created past it. known is
// false while no kubelet has been seen for so short a time that it may just restart, unless there is such a container.
func (c *condition) usage(ctx context.Context, g interface {
	KubeletAbsent() time.Time
	HasBypassed(ctx context.Context) (bool, error)
},
) (left, known bool) {
	absent := g.KubeletAbsent()
	left = !absent.IsZero() && time.Since(absent) > doctor.KubeletStarts
	known = absent.IsZero() || left
	if !known || time.Since(c.tried) >= containersEvery {
		c.tried = time.Now()
		if found, err := g.HasBypassed(ctx); err == nil { // else the last result stays
			c.bypassed, c.listed = found, time.Now()
		}
	}
	return left, known || c.bypassed
}

// hashOf returns the hash of a configuration as the status shows it.
func hashOf(c config.Config) string {
	text, _ := c.YAML() // a configuration that was parsed can be rendered
	return fmt.Sprintf("sha256:%x", sha256.Sum256(text))
}

// of returns the condition with the most severe reason, and a message with all of them.
func (c *condition) of(s nodeState) podsource.Condition {
	reason, enforcement := "", s.inForce.config.Enforcement()
	var all []string
	found := func(is bool, as, text string) {
		if !is {
			return
		}
		if all = append(all, text); reason == "" {
			reason = as
		}
	}
	found(s.bypassed, reasonBypassed, "the runtime has containers that the kubelet created without pullgated")
	found(s.left, reasonBypassed, "no kubelet is seen to use pullgated")
	found(!s.inForce.config.Enforces(), reasonShadow, enforcement)
	found(s.distrusted, reasonDegraded, "the store of pull records is distrusted")
	found(s.notReady != "", reasonDegraded, s.notReady)
	found(s.inForce.reload.GetError() != "", reasonDegraded,
		"the configuration file is invalid, the previous one is in force")
	found(s.policies.GetReloadError() != "", reasonDegraded,
		"the policy files are invalid, the last valid ones are in force")
	enforces := reason == ""
	found(enforces, reasonEnforcing, enforcement)
	what := fmt.Sprintf("pullgate %s, configuration %s", c.version, hashOf(s.inForce.config))
	if hash := s.policies.GetHash(); hash != "" {
		what += ", policies " + hash
	}
	return podsource.Condition{True: enforces, Reason: reason, Message: what + ": " + strings.Join(all, "; ")}
}
