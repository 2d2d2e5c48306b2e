package nodeinstall_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"
)

// onHost runs a test with a host, in a bubble of synctest.
func onHost(t *testing.T, do func(h *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { do(newHost(t)) })
}

// A transition is a change from what is prepared.
type transition struct {
	name    string
	host    func(*host) // makes it special; nil is the usual one
	prepare func(*host)
	request nodeinstall.Request
	was     string // the version before; "" is none
	to      string // the version after
}

func transitions() []transition {
	first := func(h *host) {
		r := request("v1")
		r.Mode = nodeinstall.Shadow
		h.install(r)
	}
	second := func(h *host) { first(h); h.install(request("v2")) }
	return []transition{
		{"first installation", nil, func(h *host) { h.place("v1") }, request("v1"), "", "v1"},
		{"beside a configuration", func(h *host) {
			h.put(confFile, "# of others\n")
		}, func(h *host) { h.place("v1") }, request("v1"), "", "v1"},
		{"without a folder for links", withoutLinks, func(h *host) { h.place("v1") }, request("v1"), "", "v1"},
		{"upgrade", nil, func(h *host) { first(h); h.place("v2") }, request("v2"), "v1", "v2"},
		{"rollback", nil, second, nodeinstall.Request{Attempt: "back", Action: nodeinstall.Rollback}, "v2", "v1"},
		{"removal", nil, second, nodeinstall.Request{Attempt: "off", Action: nodeinstall.Remove}, "v2", ""},
		{"purge", special, second, nodeinstall.Request{Attempt: "off", Action: nodeinstall.Remove, Purge: true}, "v2", ""},
	}
}

func withoutLinks(h *host) {
	testkit.Must(h, os.RemoveAll(h.path(filepath.Dir(bootLink))))
}

func special(h *host) {
	withoutLinks(h)
	h.put(confFile, "# of others\n")
}

// begin prepares a host, and returns what it was before.
func (tc transition) begin(h *host) (nothing string) {
	h.Helper()
	if tc.host != nil {
		tc.host(h)
	}
	nothing = h.snapshot()
	tc.prepare(h)
	return nothing
}

func mode(version string) nodeinstall.Mode {
	if version == "v1" {
		return nodeinstall.Shadow
	}
	return nodeinstall.Enforce
}

func TestTransitions(t *testing.T) {
	for _, tc := range transitions() {
		t.Run(tc.name, func(t *testing.T) {
			onHost(t, func(h *host) {
				tc.begin(h)
				invocation := 0
				if u := h.up[socket]; u != nil {
					invocation = u.invocation
				}
				restarts := h.restarts
				s, err := h.apply(tc.request)
				if err != nil || !s.Good() || s.Version != tc.to {
					h.Fatalf("Apply = %+v, %v; want version %q", s, err, tc.to)
				}
				m := mode(tc.to)
				if tc.request.Mode != "" {
					m = tc.request.Mode
				}
				h.wantWell(tc.to, m)
				if tc.was != "" && tc.to != "" && (h.up[socket].invocation != invocation || h.restarts != restarts) {
					h.Errorf("the socket or the kubelet was restarted")
				}
				before := h.snapshot()
				again, err := h.apply(tc.request)
				again.Updated = s.Updated
				if err != nil || again != s || h.snapshot() != before {
					h.Errorf("the same attempt again = %+v, %v; want %+v", again, err, s)
				}
				h.boot()
				h.wantWell(tc.to, m)
			})
		})
	}
}

// After a removal every file is as before the first installation, but for records and logs.
func TestRemovalLeavesNothing(t *testing.T) {
	for _, tc := range transitions() {
		if tc.to != "" || tc.name == "removal" {
			continue
		}
		onHost(t, func(h *host) {
			before := tc.begin(h)
			if s, err := h.apply(tc.request); err != nil || s.Outcome != nodeinstall.Removed {
				h.Fatalf("Apply = %+v, %v", s, err)
			}
			if diff := cmp.Diff(before, h.snapshot()); diff != "" {
				h.Errorf("left is\n%s", diff)
			}
		})
	}
}

var errKilled = errors.New("killed")

// killed runs do, and ends it before the nth change of the node.
func (h *host) killed(nth int, do func()) (at string) {
	h.Helper()
	n := 0
	h.hook = func(what string) error {
		if n++; n > nth {
			at = what
			panic(errKilled)
		}
		return nil
	}
	h.ends(do)
	h.hook = nil
	return at
}

// ends runs what may be killed.
func (h *host) ends(do func()) {
	h.Helper()
	defer func() {
		if r := recover(); r != nil && r != any(errKilled) {
			panic(r)
		}
	}()
	do()
}

var all = flag.Bool("all", false, "kill before every change, and fill the disk at every write, instead of at some")

// sample returns the first change to fail, and how many to go on by.
func sample(t *testing.T) (first, step int) {
	t.Helper()
	if *all {
		return 0, 1
	}
	every := 15
	if testing.Short() || testkit.Raced { // there is one goroutine
		every = 60
	}
	first = rand.IntN(every)
	t.Logf("change %d, and every %dth after it; all with -all", first, every)
	return first, every
}

// A kill before any change of the node, and then the switch, another call, or a reboot: the node is as before, or has
// the new version. The changes are found by running it, so that every stage is in the table.
func TestKilledAnywhere(t *testing.T) {
	for _, tc := range transitions() {
		for _, next := range []string{"apply", "timer", "hand", "boot"} {
			t.Run(tc.name+"/"+next, func(t *testing.T) {
				t.Parallel()
				stages, done := map[string]bool{}, ""
				onHost(t, func(h *host) {
					tc.begin(h)
					_, _ = h.apply(tc.request)
					done = h.snapshot()
				})
				for nth, step := sample(t); ; nth += step {
					at := ""
					onHost(t, func(h *host) {
						at = h.killedThen(tc, next, nth, done)
					})
					if name, ok := strings.CutPrefix(at, "stage "); ok {
						stages[name] = true
					}
					if at == "" {
						break
					}
				}
				for _, s := range nodeinstall.Stages() {
					if *all && tc.request.Action != nodeinstall.Remove && !stages[s.Name] {
						t.Errorf("never killed before stage %s", s.Name)
					}
				}
			})
		}
	}
}

// killedThen kills a change before its nth change of the node, and compares the node with what it was before, or with
// one on which nobody was killed.
func (h *host) killedThen(tc transition, next string, nth int, done string) (at string) {
	h.Helper()
	nothing := tc.begin(h)
	before := h.snapshot()
	if tc.was == "" { // programs that were placed, and are not used
		before = nothing
	} else if tc.request.Action == nodeinstall.Install {
		before = withoutVersion(before, tc.to, tc.request.Action)
	}
	at = h.killed(nth, func() { _, _ = h.apply(tc.request) })
	ends := true // somebody ends the change
	var err error
	var s nodeinstall.Status
	switch {
	case at == "":
		return ""
	case next == "boot":
		ends = h.exists(bootLink)
		h.boot()
	case next == "timer" && h.timer == nil:
		ends = false
	case next == "timer":
		s, err = h.timeIsOver()
	case next == "hand":
		s, err = h.installer().Revert(h.Context(), nodeinstall.ByHand)
		if err != nil && strings.Contains(err.Error(), "no change of this node") {
			err = nil
		}
	default:
		s, err = h.apply(tc.request)
		if s.Outcome == nodeinstall.TakenBack {
			err = nil
		}
	}
	if err != nil {
		h.Errorf("killed before %q, then %s: %+v, %v", at, next, s, err)
	}
	isStage := func(stage nodeinstall.Stage) bool { return strings.Contains(s.Message, "stage "+stage.Name+": ") }
	if s.Outcome == nodeinstall.TakenBack && !slices.ContainsFunc(nodeinstall.Stages(), isStage) {
		h.Errorf("killed before %q, then %s: message %q", at, next, s.Message)
	}
	state := testkit.Value(h.installer().State())(h)
	version := ""
	if state.Installed != nil {
		version = state.Installed.Version
	}
	if state.Change != nil || version != tc.was && version != tc.to {
		h.Errorf("killed before %q, then %s: state %+v", at, next, state)
	}
	if next == "apply" && tc.request.Action != nodeinstall.Remove && version != tc.to {
		h.Errorf("killed before %q, then %s: %q is installed; want %s", at, next, version, tc.to)
	}
	m := mode(version)
	if tc.request.Mode != "" && version == tc.to {
		m = tc.request.Mode
	}
	h.wantWell(version, m)
	want := before
	if version == tc.to {
		want = done
	}
	compare := func(but func(snapshot string) string) {
		if diff := cmp.Diff(but(want), but(h.snapshot())); diff != "" {
			h.Errorf("killed before %q, then %s (-want +got):\n%s", at, next, diff)
		}
	}
	if !ends {
		compare(func(snapshot string) string { return withoutUnused(snapshot, tc.request) })
		_, err := h.installer().Revert(h.Context(), nodeinstall.ByTimer) // as the next attempt does
		testkit.Must(h, err)
	}
	compare(func(snapshot string) string { return snapshot })
	if h.Failed() {
		h.Fatalf("killed before change %d, %q, then %s", nth, at, next)
	}
	return at
}

// timeIsOver runs the timer, which does nothing without its program.
func (h *host) timeIsOver() (nodeinstall.Status, error) {
	h.Helper()
	if h.timer == nil {
		h.Fatal("no timer runs")
	}
	program := h.timer[0]
	h.timer = nil
	if !h.exists(program) {
		return nodeinstall.Status{}, nil
	}
	return h.installer().Revert(h.Context(), nodeinstall.ByTimer)
}

// withoutVersion leaves the programs that the pod has placed out of a snapshot.
func withoutVersion(snapshot, version string, a nodeinstall.Action) string {
	if a != nodeinstall.Install {
		return snapshot
	}
	return without(snapshot, folder+"/versions/"+version)
}

// withoutUnused leaves out of a snapshot what a power cut may leave while the switch is armed, and when it has gone:
// nothing reads it.
func withoutUnused(snapshot string, r nodeinstall.Request) string {
	programs := folder + "/versions/" + r.Version
	if r.Action == nodeinstall.Remove {
		programs = folder + "/versions"
	}
	return without(snapshot, programs, folder+"/versions drwx", folder+"/state-before.json", folder+"/confirm-",
		etcUnits+"/"+bootUnit, filepath.Dir(bootLink)+" drwx")
}

// without leaves files with one of the prefixes out of a snapshot.
func without(snapshot string, prefixes ...string) string {
	var b strings.Builder
	skip := false
	for line := range strings.Lines(snapshot) {
		if strings.HasPrefix(line, "/") {
			skip = slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) })
		}
		if !skip {
			b.WriteString(line)
		}
	}
	return b.String()
}

// The disk is full from any write on: the node is as before.
func TestFullDisk(t *testing.T) {
	for _, tc := range transitions() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for nth, step := sample(t); ; nth += step {
				full := false
				onHost(t, func(h *host) { full = h.fullFrom(tc, nth) })
				if !full {
					break
				}
			}
		})
	}
}

func (h *host) fullFrom(tc transition, nth int) (full bool) {
	h.Helper()
	nothing := tc.begin(h)
	before := h.snapshot()
	n, at := 0, ""
	h.hook = func(what string) error {
		if !strings.HasPrefix(what, "write ") && !strings.HasPrefix(what, "keep ") {
			return nil
		}
		if n++; n > nth {
			if at == "" {
				at = what
			}
			return fmt.Errorf("%s: %w", what, syscall.ENOSPC)
		}
		return nil
	}
	s, err := h.apply(tc.request)
	h.hook = nil
	if s.Outcome == nodeinstall.Failed && s.Stage == "Finish" { // it is confirmed, and is finished once there is space
		s, err = h.timeIsOver()
	}
	version := ""
	state := testkit.Value(h.installer().State())(h)
	if state.Installed != nil {
		version = state.Installed.Version
	}
	if state.Change != nil {
		h.Fatalf("full from %q on: %+v, %v; the change has not ended", at, s, err)
	}
	m := mode(version)
	if tc.request.Mode != "" && version == tc.to {
		m = tc.request.Mode
	}
	h.wantWell(version, m)
	if !s.Good() {
		want, got := before, h.snapshot()
		if tc.was == "" {
			want = nothing
		} else {
			want, got = withoutVersion(want, tc.to, tc.request.Action), withoutVersion(got, tc.to, tc.request.Action)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			h.Fatalf("full from %q on (-before +after):\n%s", at, diff)
		}
		if !strings.Contains(s.Message, "no space left on device") {
			h.Errorf("full from %q on: message %q", at, s.Message)
		}
	}
	if h.Failed() {
		h.Fatalf("full from write %d, %q: %+v", nth, at, s)
	}
	return at != ""
}

// A confirmed change that cannot be finished on a full disk is finished once there is space.
func TestConfirmedOnAFullDisk(t *testing.T) {
	for name, end := range map[string]func(h *host) (nodeinstall.Status, error){
		"timer": func(h *host) (nodeinstall.Status, error) {
			return h.installer().Revert(h.Context(), nodeinstall.ByTimer)
		},
		"boot": func(h *host) (nodeinstall.Status, error) {
			return h.installer().Revert(h.Context(), nodeinstall.ByBoot)
		},
		"apply": func(h *host) (nodeinstall.Status, error) { return h.apply(request("v2")) },
	} {
		for _, was := range []string{"", "v1"} {
			onHost(t, func(h *host) {
				if was != "" {
					h.install(request(was))
				}
				h.place("v2")
				h.killedIn("Finish", request("v2"))
				h.timer = nil
				h.hook = func(what string) error {
					if strings.HasPrefix(what, "write ") {
						return fmt.Errorf("%s: %w", what, syscall.ENOSPC)
					}
					return nil
				}
				if s, err := end(h); err == nil || s.Outcome != nodeinstall.Failed ||
					!strings.Contains(s.Message, "no space left on device (free space or inodes there") {
					h.Errorf("%s on a full disk, after %q: %+v, %v", name, was, s, err)
				}
				h.hook = nil
				if s, err := h.timeIsOver(); err != nil || s.Outcome != nodeinstall.Installed {
					h.Errorf("%s with space, after %q: %+v, %v", name, was, s, err)
				}
				h.wantWell("v2", nodeinstall.Enforce)
			})
		}
	}
}

// However much the host says, the message has what was taken back and what to do.
func TestLongTexts(t *testing.T) {
	for stage, want := range map[string]string{
		"Check":   " (see the manual); nothing was changed",
		"Compare": " (see the manual); everything was taken back: nothing is installed, as before; journalctl -u",
	} {
		onHost(t, func(h *host) {
			h.place("v1")
			h.hook = func(what string) error {
				if what == "stage "+stage {
					return program.Hintf("see the manual", "%s", strings.Repeat("\x1b[31mred\n", 1000))
				}
				return nil
			}
			s, err := h.apply(request("v1"))
			if err == nil || !strings.HasPrefix(s.Message, "node node-1: stage "+stage+": ") ||
				!strings.Contains(s.Message, want) || strings.ContainsAny(s.Message, "\x1b\n") ||
				len(s.Message) < 1<<10 || len(s.Message) > 1<<11 {
				t.Errorf("%+v, %v; want %q in it", s, err, want)
			}
		})
	}
}

// Versions that do not work, and nodes on which none does.
func TestTakenBack(t *testing.T) {
	for _, tc := range []struct {
		version string
		change  func(*host, *nodeinstall.Request)
		stage   string
		want    string
	}{
		{"dead", nil, "Start", "ends again and again"},
		{"silent", nil, "Start", "does not answer within 30s"},
		{"wrong", nil, "Compare", "Version through pullgated answers otherwise than the runtime"},
		{"crashes", nil, "AwaitingConfirmation", "pullgated was started again"},
		{
			"crashes", func(h *host, r *nodeinstall.Request) { h.itself = true; r.Probation = "5m" }, "Probation",
			"pullgated was started again",
		},
		{"refuses", nil, "CheckConfiguration", "refuses the configuration: pullgated: exit status 2"},
		{"good", func(h *host, _ *nodeinstall.Request) { h.kubeletFails = true }, "Enable", "systemd started it again"},
		{"good", nil, "AwaitingConfirmation", "the time for the confirmation is over"},
		{"good", func(_ *host, r *nodeinstall.Request) {
			r.Configuration = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n" +
				"runtimeEndpoint: unix:///run/x.sock\n"
		}, "Enable", "pullgated's runtimeEndpoint is unix:///run/x.sock"},
	} {
		for _, was := range []string{"", "v1"} {
			if was != "" && tc.stage == "Enable" {
				continue // the kubelet is not touched
			}
			t.Run(tc.version+"/"+tc.stage+"/"+was, func(t *testing.T) {
				t.Parallel()
				onHost(t, func(h *host) {
					if was != "" {
						r := request(was)
						r.Mode = nodeinstall.Shadow
						h.install(r)
					}
					before, began := h.snapshot(), time.Now()
					h.place(tc.version)
					h.itself = false
					r := request(tc.version)
					if tc.change != nil {
						tc.change(h, &r)
					}
					s, err := h.apply(r)
					if err == nil || s.Outcome != nodeinstall.TakenBack || s.Stage != tc.stage ||
						!strings.Contains(s.Message, tc.want) ||
						strings.Contains(s.Message, "\x1b") ||
						!strings.HasPrefix(s.Message, "node node-1: stage ") ||
						!strings.Contains(s.Message, "journalctl -u pullgate-install") {
						h.Errorf("Apply = %+v, %v; want it taken back in stage %s with %q", s, err, tc.stage, tc.want)
					}
					next := "start another attempt once the cause is removed"
					if h.itself { // somebody typed a command
						next = "run the command again once the cause is removed"
					}
					testkit.Equal(h, "hint", program.HintOf(err), next)
					h.kubeletFails = false
					h.wantWell(was, nodeinstall.Shadow)
					if diff := cmp.Diff(before, h.snapshot()); diff != "" {
						h.Errorf("-before +after:\n%s", diff)
					}
					if took := time.Since(began); took > 3*time.Minute {
						h.Errorf("it took %s", took)
					}
					again, err := h.apply(r)
					if err == nil || again.Message != s.Message {
						h.Errorf("the same attempt again = %+v, %v; want the same end", again, err)
					}
				})
			})
		}
	}
}
