package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// For every answer of the registry: a pod that has proved access starts, no other does, and the metrics distinguish
// denied from unavailable.
func TestRegistryThatFails(t *testing.T) { onEach(t, registryThatFails) }

func registryThatFails(t runtimeTest) {
	type fault struct {
		name    string
		on, off func(*node.Registry) error
		outcome string
		intents float64 // that a failed pull leaves behind: none after a definite refusal
	}
	answer := func(status int) fault {
		return fault{
			name: fmt.Sprint(status),
			on:   func(r *node.Registry) error { r.Answer(status); return nil },
			off:  func(r *node.Registry) error { r.Answer(0); return nil },
		}
	}
	var faults []fault
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		f := answer(status)
		f.outcome = "denied"
		faults = append(faults, f)
	}
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		f := answer(status)
		f.outcome, f.intents = "unavailable", 1
		faults = append(faults, f)
	}
	faults = append(faults, fault{name: "down", on: (*node.Registry).Down, off: (*node.Registry).Up, outcome: "unavailable"})
	for _, f := range faults {
		t.run(f.name, func(t runtimeTest) {
			s := begin(t)
			app := s.private("fails/app-"+f.name+":1", node.Image{})
			s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
			s.must(f.on(s.node.Private))
			defer func() { s.must(f.off(s.node.Private)) }()
			s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
			s.run(pod("team-d", app, node.IfNotPresent, node.Dora()), app, node.PullFailed, -1)
			s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
			s.wantMetric(1, "image_pull_secret_recheck_miss_count", `outcome="`+f.outcome+`"`)
			s.wantMetric(f.intents, "pullgate_pull_intents")
		})
	}
}

func TestSlowRegistryDelaysOnlyPodsWithoutAProof(t *testing.T) {
	onEach(t, slowRegistryDelaysOnlyWhoHasToProve)
}

func slowRegistryDelaysOnlyWhoHasToProve(t runtimeTest) {
	s := begin(t)
	app := s.private("slow/app:1", node.Image{})
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	answer := make(chan struct{})
	s.node.Private.Fault(func(_ http.ResponseWriter, req *http.Request) bool {
		select {
		case <-answer:
		case <-req.Context().Done():
		}
		return false
	})
	defer s.node.Private.Fault(nil)
	// although the registry answers nothing
	s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
	close(answer)
	s.run(pod("team-d", app, node.IfNotPresent, node.Dora()), app, node.Running, 2)
}

// Always asks the registry every time and sees a tag that moved; IfNotPresent keeps what it has.
func TestMovedTag(t *testing.T) { onEach(t, movedTag) }

func movedTag(t runtimeTest) {
	s := begin(t)
	app := s.private("moved/app:1", node.Image{Content: "before"})
	keeps := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.keep(keeps, app, node.Running, -1)
	moved := s.private("moved/app:1", node.Image{Content: "after"})
	if o := s.keep(keeps, app, node.Running, 0); o.ImageID != app.ID {
		t.Errorf("IfNotPresent runs %s; want %s, the image it has", o.ImageID, app.ID)
	}
	s.run(pod("team-b", app, node.Always), app, node.PullFailed, -1)
	if o := s.run(pod("team-a", app, node.Always, node.Alice()), app, node.Running, -1); o.ImageID != moved.ID {
		t.Errorf("Always runs %s; want %s, where the tag is now", o.ImageID, moved.ID)
	}
	s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, -1)
	s.must(s.k.Remove(t.Context(), keeps))
}

// A kubelet up to 1.31 sends a pre-check for Always too: every new pod costs a manifest request, and the
// image on the node is used while the registry is unavailable.
func TestOldKubelet(t *testing.T) { onEach(t, oldKubelet) }

func oldKubelet(t runtimeTest) {
	s := begin(t, "kubeletSkipsAlwaysPrecheck: false")
	app := s.private("old/app:1", node.Image{})
	old := func(namespace, policy string, secrets ...node.Login) *node.Pod {
		p := pod(namespace, app, policy, secrets...)
		p.PrecheckAlways = true
		return p
	}
	s.run(old("team-a", node.IfNotPresent, node.Alice()), app, node.Running, -1)
	s.run(old("team-c", node.IfNotPresent, node.Alice()), app, node.Running, 2)
	s.run(old("team-c", node.Always, node.Alice()), app, node.Running, 2)
	s.run(old("team-b", node.IfNotPresent), app, node.PullFailed, 1)
	moved := s.private("old/app:1", node.Image{Content: "after"})
	if o := s.run(old("team-a", node.Always, node.Alice()), app, node.Running, -1); o.ImageID != moved.ID {
		t.Errorf("Always runs %s; want %s, where the tag is now", o.ImageID, moved.ID)
	}
	s.must(s.node.Private.Down())
	s.run(old("team-c", node.IfNotPresent, node.Alice()), app, node.Running, 0)
	s.run(old("team-a", node.Always, node.Alice()), app, node.Running, 0)
	s.run(old("team-b", node.IfNotPresent), app, node.PullFailed, 0)
	s.run(old("team-d", node.IfNotPresent, node.Dora()), app, node.PullFailed, 0)
	s.must(s.gate.Restart(t.Context(), "kubeletSkipsAlwaysPrecheck: false", "registryOutageFallback: false"))
	s.run(old("team-c", node.IfNotPresent, node.Alice()), app, node.PullFailed, 0)
	s.must(s.node.Private.Up())
}

// auto distinguishes old kubelets from new ones by the user agent of the call.
func TestOldKubeletIsRecognizedByItsUserAgent(t *testing.T) {
	onEach(t, oldKubeletByUserAgent)
}

func oldKubeletByUserAgent(t runtimeTest) {
	s := begin(t)
	app := s.private("agent/app:1", node.Image{})
	modern := s.k
	old, err := node.NewOldKubelet(t.Context(), s.gate.Endpoint())
	s.must(err)
	t.Cleanup(old.Close)
	starts := func(k *node.Kubelet, policy string, requests int, secrets ...node.Login) node.Outcome {
		t.Helper()
		s.k = k
		p := pod("team-c", app, policy, secrets...)
		p.PrecheckAlways = k == old
		return s.run(p, app, node.Running, requests)
	}
	starts(modern, node.IfNotPresent, -1, node.Alice())
	starts(modern, node.IfNotPresent, 0, node.Alice())
	starts(old, node.IfNotPresent, 2, node.Alice()) // might as well be Always, so the registry is asked
	moved := s.private("agent/app:1", node.Image{Content: "after"})
	if o := starts(old, node.Always, -1, node.Alice()); o.ImageID != moved.ID {
		t.Errorf("Always runs %s; want %s, where the tag is now", o.ImageID, moved.ID)
	}
	starts(modern, node.IfNotPresent, 0, node.Alice())
	s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
}

// The store is on a file system that fills up: no new pull, but pods with a proof still start. The free pages
// of the file can still be written, so it takes a few pulls until one fails.
func TestFullDisk(t *testing.T) { onEach(t, fullDisk) }

func fullDisk(t runtimeTest) {
	s := begin(t)
	app := s.private("full/app:1", node.Image{})
	holder := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.keep(holder, app, node.Running, -1)

	s.must(s.gate.Stop())
	fill := s.onTmpfs()
	s.must(s.gate.Start(t.Context()))
	fill()
	refused := false
	for i := 0; i < 20 && !refused; i++ {
		next := s.private(fmt.Sprintf("full/next%d:1", i), node.Image{})
		p := pod("team-a", next, node.IfNotPresent, node.Alice())
		o := s.k.Run(t.Context(), p)
		switch o.State {
		case node.Running: // its intent was written; whether its record was or not, no other pod starts
			s.run(pod("team-b", next, node.Never), next, node.NeverPulled, 0)
		case node.RegistryNotThere:
			refused = true
			if !strings.Contains(o.Text, "store of pull records") {
				t.Errorf("text = %q; want it to name the store", o.Text)
			}
		default:
			t.Errorf("pull on a full disk: %v; want Running or RegistryUnavailable", o)
		}
		s.must(s.k.Remove(t.Context(), p))
	}
	if !refused {
		t.Error("no pull was refused although the disk is full")
	}
	s.keep(holder, app, node.Running, 0)
	holder.Policy = node.Always // a pod with a grant starts, though the registry cannot be asked
	s.keep(holder, app, node.Running, -1)
	s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
	s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
	s.must(s.k.Remove(t.Context(), holder))
}
