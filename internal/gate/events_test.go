package gate_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// told are the Events of a gate.
type told struct {
	mu     sync.Mutex
	events []string
	at     []time.Time
}

func (e *told) tell(p tracker.Pod, image, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, fmt.Sprintf("%s %s %s: %s", p.Namespace, image, reason, message))
	e.at = append(e.at, time.Now())
}

func (e *told) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	events := e.events
	e.events, e.at = nil, nil
	return events
}

const (
	others   = "repo.test/team/secret:1" // of another tenant, on the node
	unproved = "repo.test/team/hidden:1" // on the node, and no tenant has proved access to it
	nobody   = "repo.test/team/nobody:1" // not on the node
)

func newProxyWithEvents(t *testing.T, o tracker.Options, c gate.Config) (*proxy, *fakeSource, *told) {
	t.Helper()
	f, c := sourced(c)
	e := &told{}
	c.Event = e.tell
	p := newProxy(t, o, c)
	f.key = p.key
	alice := p.Pod("alice")
	f.addPod(alice, "good", "IfNotPresent")
	p.serves(unproved, "good", img(id2, unproved))
	p.MustPull(alice, unproved, "good")
	p.done(p.tracker.Revoke(t.Context(), tracker.Revocation{
		Revocation: records.Revocation{Repository: "repo.test/team/hidden"},
	}))
	p.serves(others, "good", img(id1, others))
	p.MustPull(alice, others, "good")
	e.take()
	return p, f, e
}

func TestEventsOfNever(t *testing.T) {
	o := tracker.Options{Rules: tracker.Rules{ExemptNamespaces: []string{"exempt"}}}
	p, f, e := newProxyWithEvents(t, o, exact())
	p.access(accessFile("Fence", "{namespaces: [alice, bob]}"))
	fenced := func(name string) string {
		return "pullgate: repository repo.test/team/" + name + " is reserved for other namespaces on this node; " +
			"ask its operator"
	}
	for _, tc := range []struct {
		namespace, policy, image, want string
	}{
		{"bob", "Never", others, "PullCredentialsRequired: image " + others + ": " + sees},
		{"bob", "Never", unproved, "PullCredentialsRequired: image " + unproved + ": " + sees},
		{"bob", "Never", nobody, "PullCredentialsRequired: image " + nobody + ": " + sees},
		{"carol", "Never", others, "ImageFenced: " + fenced("secret")},
		{"carol", "Never", nobody, "ImageFenced: " + fenced("nobody")},
		{"bob", "IfNotPresent", others, ""},
		{"bob", "Always", nobody, ""},
		{"exempt", "Never", nobody, ""},
	} {
		x := p.Pod(tc.namespace)
		f.addPod(x, "", tc.policy)
		p.wantPrecheck(x, tc.image, "", "%+v", tc)
		want := []string(nil)
		if tc.want != "" {
			want = []string{tc.namespace + " " + tc.image + " " + tc.want}
		}
		if got := e.take(); !slices.Equal(got, want) {
			t.Errorf("%s, %s, %s: %q; want %q", tc.namespace, tc.policy, tc.image, got, want)
		}
	}
	alice := p.Pod("alice")
	f.addPod(alice, "good", "Never")
	p.wantPrecheck(alice, others, id1, "pre-check with a proof")
	unknown := p.Pod("bob") // the source does not have it
	p.wantPrecheck(unknown, nobody, "", "pre-check of an unknown pod")
	if got := e.take(); len(got) > 0 {
		t.Errorf("%q; want none", got)
	}
}

func TestNoEventsWithoutVerification(t *testing.T) {
	mode := testkit.Value(policy.New(string(policy.ModeNeverVerify), nil))(t)
	never := tracker.Options{Rules: tracker.Rules{Policy: mode}}
	shadow := exact()
	shadow.Shadow = true
	for name, tc := range map[string]struct {
		o tracker.Options
		c gate.Config
	}{"NeverVerify": {never, exact()}, "shadow mode": {tracker.Options{}, shadow}} {
		p, f, e := newProxyWithEvents(t, tc.o, tc.c)
		x := p.Pod("bob")
		f.addPod(x, "", "Never")
		p.wantPrecheck(x, nobody, "", "%s: pre-check of an absent image", name)
		p.wantPrecheck(x, others, id1, "%s: pre-check of a present image", name)
		if got := e.take(); len(got) > 0 {
			t.Errorf("%s: %q; want none", name, got)
		}
		if name != "NeverVerify" {
			continue
		}
		p.access(accessFile("Fence", "{namespaces: [alice]}")) // which denies all the same
		y := p.Pod("bob")
		f.addPod(y, "", "Never")
		p.wantPrecheck(y, others, "", "%s: pre-check of a fenced image", name)
		if got := e.take(); len(got) != 1 || !strings.Contains(got[0], "ImageFenced") {
			t.Errorf("%s: %q; want that the image is fenced", name, got)
		}
	}
}
