package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// The most severe reason is that of the condition, and the message has every one, version and hashes.
func TestConditionOf(t *testing.T) {
	parsed := func(settings string) config.Config {
		return testkit.Value(config.Parse([]byte("apiVersion: config.pullgate.dev/v1alpha1\n" +
			"kind: PullgateConfiguration\n" + settings)))(t)
	}
	enforces := &inForce{config: parsed("imagePullCredentialsVerificationPolicy: AlwaysVerify")}
	shadow := &inForce{config: parsed("noPullImageSecretRecheck: true")}
	never := &inForce{config: parsed("imagePullCredentialsVerificationPolicy: NeverVerify")}
	refused := &inForce{config: enforces.config, reload: &adminv1.Reload{Error: "line 3"}}
	for _, tc := range []struct {
		state  nodeState
		reason string
		says   []string
	}{
		{nodeState{inForce: enforces}, "Enforcing", []string{"enforcing with policy AlwaysVerify"}},
		{
			nodeState{inForce: enforces, policies: &adminv1.ListPoliciesResponse{Hash: "abc"}},
			"Enforcing",
			[]string{", policies abc: ", "enforcing with policy"},
		},
		{nodeState{inForce: shadow}, "Shadow", []string{": shadow mode: "}},
		{nodeState{inForce: never}, "Shadow", []string{": not enforcing: policy NeverVerify"}},
		{nodeState{inForce: enforces, left: true}, "Bypassed", []string{": no kubelet"}},
		{nodeState{inForce: enforces, bypassed: true}, "Bypassed", []string{": the runtime has containers"}},
		{nodeState{inForce: enforces, distrusted: true}, "Degraded", []string{": the store"}},
		{nodeState{inForce: enforces, notReady: "the runtime is not reached"}, "Degraded", []string{": the runtime is not"}},
		{nodeState{inForce: refused}, "Degraded", []string{": the configuration file is invalid"}},
		{
			nodeState{inForce: enforces, policies: &adminv1.ListPoliciesResponse{ReloadError: "line 3"}},
			"Degraded",
			[]string{": the policy files are invalid"},
		},
		{
			nodeState{inForce: shadow, distrusted: true, left: true, bypassed: true},
			"Bypassed",
			[]string{": the runtime has containers", "; no kubelet", "; shadow mode", "; the store"},
		},
		{nodeState{inForce: shadow, distrusted: true}, "Shadow", []string{": shadow mode", "; the store"}},
	} {
		c := condition{version: "v1.2.3"}
		got := c.of(tc.state)
		hash := sha256.Sum256(testkit.Value(tc.state.inForce.config.YAML())(t))
		begin := fmt.Sprintf("pullgate v1.2.3, configuration sha256:%x", hash)
		if got.Reason != tc.reason || got.True != (tc.reason == "Enforcing") || !strings.HasPrefix(got.Message, begin) {
			t.Errorf("%+v; want %s, and a message that begins %q", got, tc.reason, begin)
		}
		for _, says := range tc.says {
			if !strings.Contains(got.Message, says) || strings.Contains(got.Message, "line 3") {
				t.Errorf("message %q; want %q in it, and no text of an error", got.Message, says)
			}
		}
		if again := c.of(tc.state); again != got {
			t.Errorf("%+v and then %+v", got, again)
		}
	}
	c := condition{}
	if one, other := c.of(nodeState{inForce: enforces}), c.of(nodeState{inForce: shadow}); one.Message[:90] ==
		other.Message[:90] {
		t.Errorf("one hash for two configurations: %s", one.Message)
	}
}

type fakeUsage struct {
	absent   time.Time
	bypassed bool
	err      error
	lists    int
}

func (f *fakeUsage) KubeletAbsent() time.Time { return f.absent }

func (f *fakeUsage) HasBypassed(context.Context) (bool, error) {
	f.lists++
	return f.bypassed, f.err
}

// A kubelet that restarts makes the state unknown at most; a container that was created past pullgated decides at once.
func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c condition
		f := &fakeUsage{}
		want := func(when string, left, known, bypassed bool, lists int) {
			t.Helper()
			before := f.lists
			gotLeft, gotKnown := c.usage(t.Context(), f)
			if gotLeft != left || gotKnown != known || c.bypassed != bypassed || f.lists-before != lists {
				t.Errorf("%s: left %v, known %v, bypassed %v, %d lists; want %v, %v, %v, %d", when, gotLeft, gotKnown, c.bypassed,
					f.lists-before, left, known, bypassed, lists)
			}
		}
		want("a kubelet uses pullgated", false, true, false, 1)
		time.Sleep(5 * time.Second)
		want("soon after", false, true, false, 0)
		f.absent = time.Now()
		want("the kubelet restarts", false, false, false, 1)
		time.Sleep(5 * time.Second)
		f.bypassed = true
		want("and creates a container", false, true, true, 1)
		f.bypassed, f.err = false, errors.New("the runtime is down")
		want("and the runtime is down", false, true, true, 1)
		f.err = nil
		want("and the container is removed", false, false, false, 1)
		time.Sleep(4*time.Minute + 50*time.Second)
		want("4:55 later", false, false, false, 1)
		time.Sleep(10 * time.Second)
		want("5:05 later", true, true, false, 0)
		time.Sleep(time.Minute)
		f.bypassed = true
		want("a minute later", true, true, true, 1)
		f.absent = time.Time{}
		want("it is back, and the container still there", false, true, true, 0)
		f.bypassed = false
		time.Sleep(time.Minute)
		want("and removed", false, true, false, 1)

		f.err = errors.New("the runtime lists nothing")
		for i := range 6 {
			if got := c.listedFor(podsource.Condition{True: true}); got != (i < 5) {
				t.Errorf("%d minutes after the last list, the node enforces: %v", i, got)
			}
			time.Sleep(time.Minute)
			want("no list", false, true, false, 1)
			want("the same, at once", false, true, false, 0)
		}
		if !c.listedFor(podsource.Condition{}) || (&condition{}).listedFor(podsource.Condition{True: true}) {
			t.Error("a condition that is False needs no list, and True needs one")
		}
	})
}

// Who reads nodes may be a tenant: only constants, the version and hashes are in the message.
func TestConditionHasNothingOfATenant(t *testing.T) {
	c := testkit.Value(config.Parse([]byte("apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n" +
		"exempt: {namespaces: [canary-ns]}\npodSource: {kubeconfig: /canary-file}\n")))(t)
	now := &inForce{config: c, reload: &adminv1.Reload{Error: "canary-error"}}
	got := (&condition{}).of(nodeState{
		inForce: now, bypassed: true, left: true, distrusted: true,
		policies: &adminv1.ListPoliciesResponse{ReloadError: "canary-policy", Folder: "/canary"},
	})
	if text := fmt.Sprint(got); strings.Contains(text, "canary") {
		t.Error(text)
	}
	if got == (podsource.Condition{}) {
		t.Error("no condition")
	}
}
