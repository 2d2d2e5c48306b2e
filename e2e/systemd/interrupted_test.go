package systemd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/node"
)

// A transition is a change of a node from a version to another; "" is none.
type transition struct {
	name    string
	action  nodeinstall.Action
	was, to string
}

// An interruption is a kill and what comes next, or a file system that becomes full.
type interruption struct {
	point string // before which it is killed: a stage, or a number of changes of a removal; "" is no kill
	next  string // boot, apply, timer or hand
	full  bool   // from the kill until the end of the change no page and no inode is free
	// Without a kill the pod carries the change out with so much space.
	pages, inodes int
}

func (i interruption) String() string {
	switch {
	case i.point == "":
		return fmt.Sprintf("%d pages and %d inodes", i.pages, i.inodes)
	case i.full:
		return i.point + " then " + i.next + " on a full disk"
	}
	return i.point + " then " + i.next
}

const plenty = 1 << 20 // pages or inodes

// sampled is how many of a series can be in a sample: all changes of a removal, and about all writes.
const sampled = 26

var nexts = []string{"boot", "apply", "timer", "hand"}

// interruptions returns a kill before each stage of a transition. Who comes next differs from stage to stage, but that
// each is followed by a power cut.
func (tr transition) interruptions() (all []interruption) {
	if tr.action == nodeinstall.Remove { // which has no stages
		return nil
	}
	for n, stage := range nodeinstall.Stages() {
		all = append(all, interruption{point: stage.Name, next: "boot"},
			interruption{point: stage.Name, next: nexts[1+n%3]},
			interruption{point: stage.Name, next: nexts[n%4], full: true})
	}
	// The disk is full when a confirmed change goes on.
	return append(all, interruption{point: "Finish", next: "apply", full: true})
}

// A series has an interruption for each number, until the change is no longer interrupted.
type series func(n int) interruption

// series returns the changes of a removal, and the writes of an installation whose programs have so many pages: each
// finds the disk full in turn.
func (tr transition) series(programs int) []series {
	switch tr.action {
	case nodeinstall.Remove:
		return []series{func(n int) interruption {
			return interruption{point: strconv.Itoa(n + 1), next: nexts[n%4], full: n/4%2 == 0}
		}}
	case nodeinstall.Install: // which is what a pod does
		return []series{
			func(n int) interruption {
				return interruption{pages: min(programs/2*n, programs+max(0, n-2)), inodes: plenty}
			},
			func(n int) interruption { return interruption{pages: plenty, inodes: n} },
		}
	case nodeinstall.Rollback: // it writes less, in the same way
	}
	return nil
}

// A change that is killed before each stage, and then ended by a power cut or by others, also on a full disk; and one
// that a pod makes on a disk with little space. Afterwards the node is as before, byte for byte, or has the new
// version, and the calls of the kubelet are answered.
//
// PULLGATE_INTERRUPTIONS=all runs all of them. Without it each power cut of a first installation is run, and a sample
// of the others, which PULLGATE_INTERRUPTIONS=SEED repeats.
func TestNodeInstallInterrupted(t *testing.T) {
	t.Parallel()
	first := transition{"first", nodeinstall.Install, "", newer}
	upgrade := transition{"upgrade", nodeinstall.Install, older, newer}
	rollback := transition{"rollback", nodeinstall.Rollback, newer, older}
	removal := transition{"removal", nodeinstall.Remove, newer, ""}
	machines := map[string][]transition{"first": {first}, "others": {upgrade, rollback, removal}}
	seed, all := rand.Uint64(), false
	if text := os.Getenv("PULLGATE_INTERRUPTIONS"); text == "all" {
		machines = map[string][]transition{
			"first": {first}, "upgrade": {upgrade}, "rollback": {rollback}, "removal": {removal},
		}
		all = true
	} else if text != "" {
		seed = testkit.Value(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("PULLGATE_INTERRUPTIONS=%d", seed)
	for name, transitions := range machines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fleetNode(t)
			s.do("systemctl", "add-wants", "multi-user.target", "kubelet.service")
			for _, tr := range transitions {
				chosen, more := tr.interruptions(), tr.series(s.pagesOf(newer))
				if !all {
					random := rand.New(rand.NewPCG(seed, 1))
					for _, nth := range more {
						for n := range sampled {
							chosen = append(chosen, nth(n))
						}
					}
					random.Shuffle(len(chosen), func(a, b int) { chosen[a], chosen[b] = chosen[b], chosen[a] })
					left := 3
					chosen = slices.DeleteFunc(chosen, func(i interruption) bool {
						if tr.name == "first" && i.next == "boot" && !i.full {
							return false
						}
						left--
						return left < 0
					})
				}
				attempts := 0
				do := func(i interruption) (interrupted bool) {
					attempts++
					s.step(tr.name+", "+i.String(), func() {
						interrupted = s.interrupted(tr, i, fmt.Sprintf("%s-%d", tr.name, attempts))
					})
					return interrupted
				}
				for _, i := range chosen {
					do(i)
				}
				for _, nth := range more {
					for n := 0; all && do(nth(n)); n++ { // it ends with the time of the test
					}
				}
			}
		})
	}
}

// pagesOf returns how many pages the programs of a version take.
func (s *site) pagesOf(version string) (pages int) {
	s.Helper()
	for _, name := range nodeinstall.Programs() {
		info := testkit.Value(os.Stat(s.machine.Path("/srv/" + version + "/usr/bin/" + name)))(s)
		pages += int(info.Size()+4095) / 4096
	}
	return pages
}

// interrupted interrupts a transition, and checks the node. It reports whether there was anything to interrupt.
func (s *site) interrupted(tr transition, i interruption, attempt string) (interrupted bool) {
	s.Helper()
	s.prepare(tr, "before-"+attempt)
	before := s.snapshot()
	r := s.enforcing(attempt, tr.to)
	r.Action = tr.action
	want, ends := "", true
	do := func() { want, ends, interrupted = s.killed(tr, i, r) }
	if i.point == "" {
		do = func() { want, interrupted = s.cramped(tr, i, r) }
	}
	if tr.was == "" || tr.to == "" || i.next == "boot" {
		do()
	} else {
		s.underCallsOf(1, do)
	}
	if state := s.state(); state.Change != nil {
		s.Errorf("the change has not ended: %+v", state.Change)
	}
	s.works(want)
	if want != tr.was {
		return interrupted
	}
	compare := func(but func(snapshot string) string) {
		s.Helper()
		was, is := but(before), but(s.snapshot())
		if want == "" && is != was || difference(withoutRecords(was), withoutRecords(is)) != "" {
			s.Errorf("changed is\n%s", difference(was, is))
		}
	}
	if !ends { // the next attempt removes what the pod has placed
		unused := regexp.MustCompile(`(?m)^([0-9a-f]{64}  )?` + fleetFolder[1:] + `/versions( |/v` + tr.to + `\b).*\n`)
		compare(func(snapshot string) string { return unused.ReplaceAllString(snapshot, "") })
		s.do("/srv/"+newer+"/usr/bin/pullgatectl", "node", "revert", "--timer")
	}
	compare(func(snapshot string) string { return snapshot })
	return interrupted
}

// killed kills a change, and lets another end it. It returns the version that has to be installed, and whether anybody
// ends the change: a power cut before the switch is armed leaves programs that nothing uses. A removal may have ended.
func (s *site) killed(tr transition, i interruption, r nodeinstall.Request) (want string, ends, killed bool) {
	s.Helper()
	if tr.action == nodeinstall.Install {
		s.place(tr.to)
	}
	confirmed := i.point == "Probation" || i.point == "Finish"
	if confirmed {
		s.crashed(r, "AwaitingConfirmation")
		s.do("/srv/"+newer+"/usr/bin/pullgatectl", "node", "confirm")
	}
	if tr.action != nodeinstall.Remove {
		s.crashed(r, i.point)
	} else if !s.crashes(r, "change#"+i.point) {
		return tr.to, true, false
	}
	if confirmed && i.full { // it cannot be finished, and says so
		s.machine.MayFail = "pullgate-revert.service"
	}
	ends = i.next != "boot" || s.exists("/etc/systemd/system/multi-user.target.wants/pullgate-revert.service")
	begun := s.state().Change != nil || s.installed() == "" // a removal that goes on
	if i.full {
		s.must(s.machine.Fill(s.Context(), 0, 0))
	}
	again := s.goOn(i, r)
	want = tr.was
	switch {
	case again && i.full && !confirmed: // below
	case again, tr.action == nodeinstall.Remove && begun, confirmed && i.next != "hand":
		want = tr.to
	}
	if i.full {
		if !again {
			s.dials(want)
		}
		s.must(s.machine.Empty(s.Context()))
		if s.state().Change != nil && s.shows("pullgate-deadline.timer", "ActiveState") == "active" {
			s.goOn(interruption{next: "timer"}, r) // it would try again in a minute
			s.machine.MayFail = ""
		}
		if again && !confirmed {
			want = s.installed()
		}
	}
	return want, ends, true
}

// dials checks that the kubelet uses a version, or none.
func (s *site) dials(version string) {
	s.Helper()
	endpoint := through
	if version == "" {
		endpoint = direct
	}
	s.wantDials("kubelet.service", endpoint)
}

// cramped lets the pod make a change with little space, and returns the version that has to be installed, and whether
// more space would let another write fail. node enable wants 64 MiB, and what comes after it finds them.
func (s *site) cramped(tr transition, i interruption, r nodeinstall.Request) (want string, interrupted bool) {
	s.Helper()
	s.must(s.machine.Fill(s.Context(), i.pages, i.inodes))
	last, _ := s.installPod(r, newer, func() {}) // its error is that of its last words
	s.must(s.machine.Empty(s.Context()))
	switch {
	case last.Good():
		return tr.to, false
	case strings.Contains(last.Message, "0 MiB free, and 64 are required (free space there"):
		return tr.was, false
	}
	s.wantFull(last)
	if s.state().Change != nil { // it is confirmed, and is finished once there is space, which is tried each minute
		s.goOn(interruption{next: "timer"}, r)
		return tr.to, true
	}
	return tr.was, true
}

func (s *site) wantFull(st nodeinstall.Status) {
	s.Helper()
	// systemd has only the number of its failure if it cannot make a folder.
	want := regexp.MustCompile("(?i)no space left on device.*free space or inodes there|2(38/STATE|40/LOGS)_DIRECTORY")
	if !want.MatchString(st.Message) {
		s.Errorf("on a full disk: %+v; want it to say what, where and what to do", st)
	}
}

// withoutRecords leaves records and logs out of a snapshot, which go on.
func withoutRecords(snapshot string) string {
	return regexp.MustCompile(`(?m)^([0-9a-f]{64}  )?var/(lib|log)/pullgate.*\n`).ReplaceAllString(snapshot, "")
}

func (s *site) enforcing(attempt, version string) nodeinstall.Request {
	r := fleetRequest(attempt, version)
	r.Mode = nodeinstall.Enforce
	// The image is there already when it is installed again.
	r.Configuration += "imagePullCredentialsVerificationPolicy: AlwaysVerify\n"
	return r
}

// prepare installs what a transition begins with, and with it alice's proof of access.
func (s *site) prepare(tr transition, attempt string) {
	s.Helper()
	state, now := s.state(), s.installed()
	switch {
	case tr.was == now:
		return
	case tr.was == "":
		s.applies(nodeinstall.Request{Attempt: attempt, Action: nodeinstall.Remove, Purge: true, Settle: "2s"})
		s.do("rm", "-rf", "/var/lib/pullgate", "/var/log/pullgate") // of a removal
		return
	case now != "" && state.Installed.Former != nil && state.Installed.Former.Version == "v"+tr.was:
		r := s.enforcing(attempt, tr.was)
		r.Action = nodeinstall.Rollback
		s.applies(r)
	default:
		if now == "" && tr.action == nodeinstall.Rollback {
			s.place(tr.to)
			s.applies(s.enforcing(attempt+"-former", tr.to))
		}
		s.place(tr.was)
		s.applies(s.enforcing(attempt, tr.was))
	}
	if got := s.installed(); got != tr.was {
		s.Fatalf("version %q is installed; want %q", got, tr.was)
	}
	s.dial()
	if o := s.pod("team-a", node.IfNotPresent, node.Alice()); o.State != node.Running {
		s.Fatalf("alice's pod: %v; want it to run", o)
	}
}

// dial connects to the socket that this boot has.
func (s *site) dial() {
	s.Helper()
	name := filepath.Join(s.node.Dir, "machine", "cri.sock")
	s.must(os.Remove(name))
	s.must(os.Symlink(s.machine.Path("/run/pullgate/cri.sock"), name))
	s.connect()
}

// works checks that a version, or none, is what the kubelet uses, and that it judges.
func (s *site) works(version string) {
	s.Helper()
	s.dials(version)
	if version == "" {
		s.wantState(unit, "inactive")
		s.wantState(socket, "inactive")
		return
	}
	s.wantState(unit, "active")
	s.wantVersion(unit, version)
	s.wantState("pullgate-deadline.timer", "inactive")
	s.dial()
	if o := s.pod("team-a", node.IfNotPresent, node.Alice()); o.State != node.Running {
		s.Errorf("alice's pod: %v; want it to run", o)
	}
	s.judges()
}

// goOn ends a change that was killed. It reports whether it was applied again.
func (s *site) goOn(i interruption, r nodeinstall.Request) bool {
	s.Helper()
	switch {
	case i.next == "boot":
		s.must(s.machine.PowerCut(s.Context()))
	case i.next == "timer" && s.shows("pullgate-deadline.timer", "ActiveState") == "active":
		s.do("systemctl", "restart", "pullgate-deadline.service")
		s.until("its unit to end, or to wait until it is tried again", func() bool {
			return s.shows("pullgate-deadline.service", "ActiveState") != "active"
		})
	case i.next == "hand":
		out, err := s.machine.Run(s.Context(), "/srv/"+newer+"/usr/bin/pullgatectl", "node", "revert")
		switch {
		case err == nil || strings.Contains(out, "no change of this node is in progress"):
		case i.full: // systemd may be unable to start the former version, and it is tried again in a minute
			s.wantFull(nodeinstall.Status{Message: strings.Join(strings.Fields(out), " ")})
		default:
			s.Errorf("revert = %v", err)
		}
	default: // also where no timer is armed
		if st := s.applies(r); i.full && !st.Good() {
			s.wantFull(st)
		}
		return true
	}
	return false
}

// applies carries a request out, and confirms it once it can be.
func (s *site) applies(r nodeinstall.Request) (st nodeinstall.Status) {
	s.Helper()
	file := "/run/request-" + r.Attempt + ".json" // where there is space
	if !s.exists(file) {
		s.write(file, string(testkit.Value(json.Marshal(r))(s)))
	}
	cmd := s.machine.Command(s.Context(), "/srv/"+newer+"/usr/bin/pullgatectl", "node", "apply", "--request", file, "-o",
		"json")
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	s.must(cmd.Start())
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its status says how it ended
		close(done)
	}()
	confirmed := false
	s.until("it to be applied", func() bool {
		select {
		case <-done:
			return true
		default:
		}
		if now, err := os.ReadFile(s.machine.Path(fleetFolder + "/status.json")); err == nil && !confirmed &&
			json.Unmarshal(now, &st) == nil && st.Attempt == r.Attempt && st.Stage == "AwaitingConfirmation" {
			_, err := s.machine.Run(s.Context(), "/srv/"+newer+"/usr/bin/pullgatectl", "node", "confirm")
			confirmed = err == nil
		}
		return false
	})
	if err := json.Unmarshal(out.Bytes(), &st); err != nil {
		s.Fatalf("apply printed %q, %s: %v", out.String(), diag.String(), err)
	}
	s.Logf("%+v", st)
	return st
}

func (s *site) place(version string) {
	s.Helper()
	s.do("/bin/sh", "-c", fmt.Sprintf("rm -rf %[1]s && mkdir -p %[1]s && cp /srv/%[2]s/usr/bin/pullgate[dc]* %[1]s",
		fleetFolder+"/versions/v"+version, version))
}

func (s *site) state() (state nodeinstall.State) {
	s.Helper()
	content, err := os.ReadFile(s.machine.Path(fleetFolder + "/state.json"))
	if errors.Is(err, os.ErrNotExist) {
		return state
	}
	s.must(err)
	s.must(json.Unmarshal(content, &state))
	return state
}

// installed returns the number of the installed version; "" is none.
func (s *site) installed() string {
	s.Helper()
	if state := s.state(); state.Installed != nil {
		return strings.TrimPrefix(state.Installed.Version, "v")
	}
	return ""
}
