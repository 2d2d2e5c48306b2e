package nodeinstall_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"
)

// Another attempt ends one whose switch has not worked, or comes when its timer does. What its pod has placed stays, or
// is placed again.
func TestAttemptAfterADeadOne(t *testing.T) {
	for _, stage := range []string{"Journal", "Compare"} {
		for _, was := range []string{"", "v1"} {
			for _, next := range []string{"v1", "v2", "v3", "off"} {
				for _, timer := range []bool{false, true} {
					if testkit.Raced && rand.IntN(4) > 0 {
						continue
					}
					onHost(t, func(h *host) {
						if was != "" {
							h.install(request(was))
						}
						h.place("v2")
						h.killedIn(stage, request("v2"))
						time.Sleep(time.Hour)
						p := newPod(h, next)
						want := next
						if next == "off" {
							p.request, want = nodeinstall.Request{Action: nodeinstall.Remove}, ""
						}
						p.request.Attempt = "again"
						p.placed = func() {
							if timer {
								_, _ = h.timeIsOver() // its error is that the other was taken back
							}
							h.timer = nil
						}
						if s, err := p.run(); err != nil || !s.Good() {
							t.Errorf("%q after %q and %s, with the timer %v: %+v, %v", next, was, stage, timer, s, err)
						}
						h.wantWell(want, nodeinstall.Enforce)
					})
				}
			}
		}
	}
}

// An attempt whose end cannot be written is started three times, and no more.
func TestEndThatNobodySees(t *testing.T) {
	onHost(t, func(h *host) {
		p := newPod(h, "dead")
		h.hook = func(what string) error {
			if strings.HasSuffix(what, "/status.json") {
				return syscall.EIO
			}
			return nil
		}
		if s, err := p.run(); err == nil || s.Outcome != nodeinstall.Failed || p.starts != 3 {
			t.Errorf("after %d starts: %+v, %v", p.starts, s, err)
		}
	})
}

// A pod waits for who has the lock of the node, before it starts the change again.
func TestPodWaitsForTheLock(t *testing.T) {
	onHost(t, func(h *host) {
		p := newPod(h, "v1")
		p.placed = func() {
			f := testkit.Value(os.OpenFile(h.path(folder+"/lock"), os.O_RDWR, 0))(t)
			testkit.Must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
			time.AfterFunc(time.Minute, func() { _ = f.Close() })
		}
		if s, err := p.run(); err != nil || !s.Good() || p.starts != 2 {
			t.Errorf("after %d starts: %+v, %v; want it installed", p.starts, s, err)
		}
	})
}

// A pod that is started again while its change is in progress does not say that nothing was changed.
func TestPodOfAChangeInProgress(t *testing.T) {
	for stage, want := range map[string]string{
		"Compare":   "an unconfirmed change is taken back by the node itself",
		"Probation": "the change is confirmed, and the node finishes it by itself",
	} {
		onHost(t, func(h *host) {
			p := newPod(h, "v1")
			h.place("v1")
			h.itself = true
			h.killedIn(stage, p.request)
			h.itself = false
			h.hook = func(what string) error {
				if strings.HasPrefix(what, "write "+folder+"/request-") {
					return syscall.ENOSPC
				}
				return nil
			}
			if s, err := p.run(); err == nil || s.Outcome != nodeinstall.Failed || !strings.Contains(s.Message, want) {
				t.Errorf("after a kill in %s: %+v, %v; want %q", stage, s, err, want)
			}
			h.hook = nil
			if s, err := p.run(); err != nil || !s.Good() {
				t.Errorf("after a kill in %s, with space: %+v, %v; want it installed", stage, s, err)
			}
		})
	}
}

// While a pod places programs, no change begins: the pod replaces some, and collects others if it fails.
func TestNoChangeBeginsWhileAPodPlaces(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		for _, key := range []string{"", "another"} {
			onHost(t, func(h *host) {
				h.place("v1")
				p := newPod(h, version)
				p.request.Attempt, p.request.Unsigned, p.request.PublicKey = "again", key == "", key
				tried := false
				h.hook = func(what string) error {
					if what == "write "+folder+"/versions/.new-"+version+"/pullgated" {
						tried, h.hook = true, nil
						if _, err := h.apply(request("v1")); !errors.Is(err, nodeinstall.ErrBusy) {
							t.Errorf("Apply = %v; want ErrBusy", err)
						}
					}
					return nil
				}
				if s, err := p.run(); !tried || (err == nil) != (key == "") {
					t.Errorf("the pod of %s with key %q: %+v, %v", version, key, s, err)
				}
			})
		}
	}
}

// A confirmed change whose process is killed after its time is finished: by the timer, which has waited for it, or by
// another attempt.
func TestConfirmedAndKilled(t *testing.T) {
	onHost(t, func(h *host) {
		h.install(request("v1"))
		h.place("v2")
		ended := make(chan struct{})
		h.hook = func(what string) error {
			if what == "stage Probation" {
				h.hook = nil
				go func() {
					defer close(ended)
					if s, err := h.timeIsOver(); err != nil || s.Outcome != nodeinstall.Installed {
						t.Errorf("the timer = %+v, %v", s, err)
					}
				}()
				time.Sleep(time.Minute)
				panic(errKilled)
			}
			return nil
		}
		h.ends(func() { _, _ = h.apply(request("v2")) })
		<-ended
		h.wantWell("v2", nodeinstall.Enforce)
	})
	onHost(t, func(h *host) { // there was no timer
		h.install(request("v0"))
		h.install(request("v1"))
		h.place("v2")
		h.killedIn("Probation", request("v2"))
		h.timer = nil
		time.Sleep(time.Hour)
		s, err := h.apply(nodeinstall.Request{Attempt: "back", Action: nodeinstall.Rollback, Probation: "5s"})
		if err != nil || s.Version != "v1" || s.Former != "v2" {
			t.Errorf("a rollback = %+v, %v; want that from v2 to v1", s, err)
		}
	})
}

// The end of a change that cannot be written is tried again.
func TestEndThatFails(t *testing.T) {
	for _, was := range []string{"", "v1"} {
		for _, action := range []nodeinstall.Action{nodeinstall.Install, nodeinstall.Remove} {
			if was == "" && action == nodeinstall.Remove {
				continue
			}
			onHost(t, func(h *host) {
				before := h.snapshot()
				if was != "" {
					r := request(was)
					r.Mode = nodeinstall.Shadow
					h.install(r)
				}
				if action == nodeinstall.Install {
					before = h.snapshot()
				}
				fails := func(what string) error {
					if what == "remove "+folder+"/state.json" || what == "rename state-before.json" {
						return syscall.EIO
					}
					return nil
				}
				r := nodeinstall.Request{Attempt: "off", Action: action, Purge: true}
				if action == nodeinstall.Install {
					r = request("dead")
					h.place("dead")
				}
				h.hook = fails
				s, err := h.apply(r)
				if err == nil || s.Outcome != nodeinstall.Failed || !strings.Contains(s.Message, "input/output error") {
					t.Errorf("%s: %+v, %v; want it failed", action, s, err)
				}
				if s, err := h.timeIsOver(); err == nil || s.Outcome != nodeinstall.Failed {
					t.Errorf("%s, the timer: %+v, %v; want it failed", action, s, err)
				}
				h.hook = nil
				if s, err := h.timeIsOver(); err != nil {
					t.Errorf("%s, the timer once it can be written: %+v, %v", action, s, err)
				}
				if action == nodeinstall.Remove {
					was = ""
				}
				h.wantWell(was, nodeinstall.Shadow)
				if diff := cmp.Diff(before, h.snapshot()); diff != "" {
					t.Errorf("%s: -before +after:\n%s", action, diff)
				}
			})
		}
	}
}

// If the way back at a boot is killed, a timer goes on.
func TestBootIsKilled(t *testing.T) {
	first, step := sample(t)
	for _, was := range []string{"", "v1"} {
		for nth := first + 1; ; nth += step {
			killed := false
			onHost(t, func(h *host) {
				if was != "" {
					r := request(was)
					r.Mode = nodeinstall.Shadow
					h.install(r)
				}
				before := h.snapshot()
				h.place("v2")
				h.killedIn("AwaitingConfirmation", request("v2"))
				h.bootKilled = nth
				h.boot()
				if killed = h.bootKilled > 0; killed && h.timer != nil {
					if s, err := h.timeIsOver(); err != nil {
						t.Errorf("killed before change %d: %+v, %v", nth, s, err)
					}
				}
				h.wantWell(was, nodeinstall.Shadow)
				if diff := cmp.Diff(before, h.snapshot()); diff != "" {
					t.Errorf("killed before change %d (-before +after):\n%s", nth, diff)
				}
			})
			if !killed {
				break
			}
		}
	}
}

// A unit of others that has the name of ours stays, and so does a folder that was made since a unit was left.
func TestBootUnitOfOthers(t *testing.T) {
	for _, was := range []string{"", "v1"} {
		onHost(t, func(h *host) {
			if was != "" {
				h.install(request(was))
			}
			h.put(etcUnits+"/"+bootUnit, "of others\n")
			h.place("v2")
			s, err := h.apply(request("v2"))
			if err == nil || s.Outcome != nodeinstall.NotStarted || h.read(etcUnits+"/"+bootUnit) != "of others\n" ||
				!strings.Contains(s.Message, "pullgatectl did not write it") || h.timer != nil {
				t.Errorf("%+v, %v: %q", s, err, h.read(etcUnits+"/"+bootUnit))
			}
		})
	}
	onHost(t, func(h *host) {
		h.install(request("v1"))
		h.hook = func(what string) error {
			if what == "remove "+etcUnits+"/"+bootUnit {
				panic(errKilled)
			}
			return nil
		}
		h.ends(func() { _, _ = h.apply(nodeinstall.Request{Attempt: "off", Action: nodeinstall.Remove}) })
		h.hook = nil
		h.boot()
		h.mkdir("/etc/pullgate")
		h.place("dead")
		if s, err := h.apply(request("dead")); s.Outcome != nodeinstall.TakenBack || !h.exists("/etc/pullgate") {
			t.Errorf("%+v, %v; /etc/pullgate is there: %v", s, err, h.exists("/etc/pullgate"))
		}
	})
}

// What a version says that does not start is in the message, or what systemd says of it; not what the former one said.
func TestLogOfAVersionThatDoesNotStart(t *testing.T) {
	for name, want := range map[string]string{
		"said":     "; its log: 2; 3; 4; 5; out of luck; everything",
		"not text": "; its log: 2; 3; 4; 5; out of luck; everything",
		"systemd":  "; its log: Failed to run 'start' task: No space left on device (free space or inodes there, then",
		"nothing":  "(auto-restart); everything",
	} {
		onHost(t, func(h *host) {
			h.install(request("v1"))
			former := h.up[service].invocation
			line := func(priority, message, of string) {
				h.log += fmt.Sprintf(`{"PRIORITY": "%s", "MESSAGE": %s, %s}`+"\n", priority, message, of)
			}
			its := func(start int) string {
				return fmt.Sprintf(`"_SYSTEMD_UNIT": "%s", "_SYSTEMD_INVOCATION_ID": "%d"`, service, start)
			}
			systemd := func(start int) string {
				return fmt.Sprintf(`"_SYSTEMD_UNIT": "init.scope", "INVOCATION_ID": "%d"`, start)
			}
			line("6", `"Allowed"`, its(former))
			line("4", `"Failed with result of the former"`, systemd(former))
			line("6", `"Starting"`, systemd(former+1))
			if name != "nothing" {
				line("4", `"Failed to run 'start' task: No space left on device"`, systemd(former+1))
			}
			if name == "said" || name == "not text" {
				for n := range 6 {
					line("6", fmt.Sprintf(`"%d"`, n), its(former+1))
				}
				line("3", `"out of luck"`, its(former+2))
			}
			if name == "not text" {
				line("6", `[1, 2]`, its(former+2))
			}
			h.place("dead")
			s, err := h.apply(request("dead"))
			if err == nil || !strings.Contains(s.Message, want) || strings.Contains(s.Message, "Allowed") ||
				strings.Contains(s.Message, "former") {
				t.Errorf("%s: %+v, %v; want %q", name, s, err, want)
			}
		})
	}
}
