package nodeinstall_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/operator/release"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A pod with its image, and with a systemd that starts its command when it is asked to.
type pod struct {
	*host
	request  nodeinstall.Request
	image    string // has the programs of this version
	verified []string
	starts   int
	kills    int // how many of the starts are killed
	confirms bool
	halts    bool          // it is killed when it has placed what the host needs
	placed   func()        // called once then
	last     chan struct{} // closed when the command has ended
}

func newPod(h *host, version string) *pod {
	p := &pod{host: h, request: request(version), image: version, confirms: true}
	h.itself = false
	for _, name := range nodeinstall.Programs() {
		h.put("/image/"+name, name+" "+version)
	}
	return p
}

func (p *pod) annotate(more string) {
	p.Helper()
	text := fmt.Sprintf("%s=%q\n%s", api.RequestAnnotation, testkit.Value(json.Marshal(p.request))(p), more)
	p.put("/podinfo", "kubernetes.io/config.source=\"api\"\n"+text)
}

func (p *pod) run() (nodeinstall.Status, error) {
	p.Helper()
	p.annotate("")
	i := p.installer()
	i.Progress = nil
	return nodeinstall.Pod{
		Installer: i, Annotations: p.path("/podinfo"), Programs: p.path("/image"), Version: p.image,
		Verify: func(path string, key []byte) error {
			if string(key) != "the key" {
				return release.ErrSignature
			}
			p.verified = append(p.verified, strings.TrimPrefix(path, p.root))
			return nil
		},
		Start: p.start, Runs: func(context.Context, string) (bool, error) {
			select {
			case <-p.last:
				return false, nil
			default:
				return p.last != nil, nil
			}
		},
	}.Run(p.Context())
}

func (p *pod) start(_ context.Context, unit, _ string, command ...string) error {
	if p.halts {
		panic(errKilled)
	}
	if p.placed != nil {
		p.placed()
		p.placed = nil
	}
	p.starts++
	if unit != "pullgate-install.service" || command[1] != "node" || command[2] != "apply" || command[5] != "--request" {
		p.Errorf("starts %s: %v", unit, command)
	}
	if !p.exists(command[0]) {
		return fmt.Errorf("exec %s: %w", command[0], os.ErrNotExist)
	}
	r, err := nodeinstall.LoadRequest(p.path(command[6]))
	if errors.Is(err, os.ErrNotExist) { // the end of a change has removed it
		return nil
	}
	if err != nil {
		p.Fatalf("the request on the host: %v", err)
	}
	p.reached = func() {
		if p.confirms {
			p.annotate(fmt.Sprintf("%s=%q\n", api.ConfirmAnnotation, r.Attempt))
		}
	}
	done := make(chan struct{})
	p.last = done
	go func() {
		defer close(done)
		if p.starts <= p.kills {
			p.killed(20, func() { _, _ = p.apply(r) })
			return
		}
		_, _ = p.apply(r) // the status has it
	}()
	return nil
}

func TestPod(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*pod)
		outcome nodeinstall.Outcome
		stage   string
		want    string
	}{
		{"installed", func(*pod) {}, "Installed", "Finish", "version v1 is installed, mode Enforce"},
		{"signed", func(p *pod) {
			p.request.Unsigned, p.request.PublicKey = false, "the key"
		}, "Installed", "Finish", ""},
		{"killed twice", func(p *pod) { p.kills = 2 }, "Installed", "Finish", ""},
		{"killed always", func(p *pod) { p.kills = 99 }, "Failed", "", "it ended three times without a result"},
		{
			"never confirmed", func(p *pod) { p.confirms = false }, "TakenBack", "AwaitingConfirmation",
			"the time for the confirmation is over",
		},
		{"another key", func(p *pod) {
			p.request.Unsigned, p.request.PublicKey = false, "another"
		}, "NotStarted", "Place", "invalid signature"},
		{"another image", func(p *pod) { p.image = "v0" }, "NotStarted", "Place", "this image has v0"},
		{
			"an image without a program", func(p *pod) { testkit.Must(p, os.Remove(p.path("/image/pullgated"))) }, "NotStarted",
			"Place", "no such file",
		},
		{"a request that cannot work", func(p *pod) { p.request.Mode = "Off" }, "NotStarted", "Request", "Shadow or Enforce"},
		{"another machine", func(p *pod) { p.request.MachineID = "other" }, "NotStarted", "Check", "this machine has the ID"},
		{
			"nothing to remove", func(p *pod) { p.request = nodeinstall.Request{Attempt: "a", Action: nodeinstall.Remove} },
			"Removed", "Remove", "nothing was installed",
		},
		{
			"no former version", func(p *pod) { p.request = nodeinstall.Request{Attempt: "a", Action: nodeinstall.Rollback} },
			"NotStarted", "Place", "no former version",
		},
		{"a package", func(p *pod) {
			p.put("/usr/lib/systemd/system/"+service, "[Service]\nExecStart=/usr/bin/pullgated\n")
			p.reload()
		}, "NotStarted", "Check", "is installed already, by a package or by hand (/usr/lib/systemd"},
		{
			"a unit of others that is not loaded", func(p *pod) { p.put(etcUnits+"/"+service, "") }, "NotStarted", "Check",
			"exists already, and pullgatectl did not write it",
		},
		{
			"a kubelet that is not healthy", func(p *pod) {
				testkit.Must(p, os.Remove(p.path("/usr/lib/systemd/system/k3s.service")))
				p.reload()
				p.up["kubelet.service"].state = "failed"
			}, "NotStarted", "Check",
			"kubelet.service is failed",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			onHost(t, func(h *host) {
				p := newPod(h, "v1")
				tc.change(p)
				p.annotate("") // it is part of the snapshot
				before := h.snapshot()
				s, err := p.run()
				if s.Outcome != tc.outcome || s.Stage != tc.stage && tc.stage != "" || !strings.Contains(s.Message, tc.want) ||
					(err == nil) != s.Good() {
					t.Errorf("Run = %+v, %v; want %s in stage %s with %q", s, err, tc.outcome, tc.stage, tc.want)
				}
				if s.Outcome == "NotStarted" || s.Outcome == "TakenBack" {
					if diff := cmp.Diff(before, h.snapshot()); diff != "" {
						t.Errorf("-before +after:\n%s", diff)
					}
				}
				if tc.name == "signed" && (len(p.verified) != 2 || !strings.HasPrefix(p.verified[0], folder)) {
					t.Errorf("verified are %q; want both copies on the host", p.verified)
				}
				if tc.name == "killed always" {
					return
				}
				again, err := p.run()
				if again.Outcome != s.Outcome || (err == nil) != again.Good() {
					t.Errorf("a second pod for the attempt = %+v, %v; want %+v", again, err, s)
				}
			})
		})
	}
}

// Without another function the bundles beside the programs are verified.
func TestPodWantsBundles(t *testing.T) {
	onHost(t, func(h *host) {
		p := newPod(h, "v1")
		p.request.Unsigned, p.request.PublicKey = false, "the key"
		p.annotate("")
		before := h.snapshot()
		s, err := nodeinstall.Pod{
			Installer: h.installer(), Annotations: h.path("/podinfo"), Programs: h.path("/image"), Version: "v1",
		}.Run(h.Context())
		if !errors.Is(err, release.ErrNotSigned) || s.Outcome != nodeinstall.NotStarted || h.snapshot() != before {
			t.Errorf("Run = %+v, %v; want that it is not signed, and nothing placed", s, err)
		}
	})
}

// Once programs were verified by a key, another key needs a decision.
func TestKeyOfTheInstalledVersionBinds(t *testing.T) {
	onHost(t, func(h *host) {
		p := newPod(h, "v1")
		p.request.Unsigned, p.request.PublicKey = false, "the key"
		if s, err := p.run(); err != nil {
			t.Fatalf("Run = %+v, %v", s, err)
		}
		for _, tc := range []struct {
			key     string
			replace bool
			want    string
		}{
			{"", false, "was verified with another key"},
			{"another", false, "was verified with another key"},
			{"another", true, "invalid signature"}, // of this image
			{"", true, ""},
			{"the key", false, ""}, // the installed one has none
		} {
			p := newPod(h, "v2")
			p.request.Unsigned, p.request.PublicKey, p.request.ReplaceKey = tc.key == "", tc.key, tc.replace
			p.request.Attempt = fmt.Sprintf("%s-%v-%d", tc.key, tc.replace, len(tc.want))
			p.request.Attempt = strings.ReplaceAll("a"+p.request.Attempt, " ", "")
			s, err := p.run()
			if (err == nil) != (tc.want == "") || !strings.Contains(s.Message, tc.want) {
				t.Errorf("key %q, replaceKey %v: %+v, %v; want %q", tc.key, tc.replace, s, err, tc.want)
			}
		}
	})
}

// Another build under the version that is installed would replace programs that are in use.
func TestAnotherBuildOfTheInstalledVersion(t *testing.T) {
	onHost(t, func(h *host) {
		h.install(request("v1"))
		p := newPod(h, "v1")
		p.request.Attempt = "again"
		if s, err := p.run(); err != nil || p.starts != 1 {
			t.Errorf("the same programs: %+v, %v; want them accepted", s, err)
		}
		p.request.Attempt = "other"
		h.put("/image/pullgated", "another build")
		if s, err := p.run(); err == nil || !strings.Contains(s.Message, "is not the one of this image") ||
			h.read(folder+"/versions/v1/pullgated") != "pullgated v1" {
			t.Errorf("other programs: %+v, %v; want them refused", s, err)
		}
	})
}

// The disk is full at a write of the pod, or of the host, and then for ever or not.
func TestFullDiskInThePod(t *testing.T) {
	for nth := range 12 {
		onHost(t, func(h *host) {
			p := newPod(h, "v1")
			p.annotate("")
			before, n, full, stays := h.snapshot(), 0, "", nth%2 == 0
			h.hook = func(what string) error {
				if n++; strings.HasPrefix(what, "write ") && n > nth/2 && (full == "" || stays) {
					if full == "" {
						full = what
					}
					return syscall.ENOSPC
				}
				return nil
			}
			s, err := p.run()
			h.hook = nil
			if err == nil || s.Good() || !strings.Contains(s.Message, "no space left on device (free space or inodes") {
				t.Errorf("full at %q, stays so: %v: %+v, %v", full, stays, s, err)
			}
			if diff := cmp.Diff(before, h.snapshot()); diff != "" {
				t.Errorf("full at %q, stays so: %v: -before +after:\n%s", full, stays, diff)
			}
		})
	}
}

// The pod is killed before any change that it makes itself. Another pod of the attempt installs, and one that removes
// leaves nothing.
func TestPodIsKilledAnywhere(t *testing.T) {
	for nth, at := 0, "first"; at != ""; nth++ {
		for _, action := range []nodeinstall.Action{nodeinstall.Install, nodeinstall.Remove} {
			onHost(t, func(h *host) {
				p := newPod(h, "v1")
				p.annotate("")
				before := h.snapshot()
				p.halts = true
				at = h.killed(nth, func() { _, _ = p.run() })
				p.halts = false
				if action == nodeinstall.Remove {
					p.request = nodeinstall.Request{Attempt: "off", Action: action}
				}
				s, err := p.run()
				if err != nil || !s.Good() {
					t.Errorf("killed before %q, then %s: %+v, %v", at, action, s, err)
				}
				if action == nodeinstall.Install {
					h.wantWell("v1", nodeinstall.Enforce)
					return
				}
				p.request = request("v1")
				p.annotate("")
				if diff := cmp.Diff(before, h.snapshot()); diff != "" {
					t.Errorf("killed before %q, then %s: -before +after:\n%s", at, action, diff)
				}
			})
		}
		want := []string{"write ", "write ", "rename ", "write ", ""}
		if nth >= len(want) || !strings.HasPrefix(at, want[nth]) {
			t.Errorf("change %d is %q; want the copies, the rename, and the request", nth, at)
		}
	}
}

func TestLastWords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
	long := strings.Repeat("ä\n\x1b[31m", 5000)
	s := nodeinstall.Status{Attempt: "a", Stage: "Start", Outcome: "TakenBack", Message: long}
	testkit.Must(t, nodeinstall.LastWords(file, s))
	content := testkit.Value(os.ReadFile(file))(t)
	var got nodeinstall.Status
	if err := json.Unmarshal(content, &got); err != nil || len(content) > 4096 || got.Outcome != s.Outcome ||
		strings.ContainsAny(got.Message, "\x1b\n") {
		t.Errorf("%d bytes, %v: %s", len(content), err, content)
	}
	if err := nodeinstall.LastWords(filepath.Join(t.TempDir(), "absent"), s); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("LastWords = %v; want that the file is absent", err)
	}
}

func TestParseRequest(t *testing.T) {
	const good = `{"attempt": "a-1", "action": "Install", "version": "v1.2.3", "mode": "Shadow", "unsigned": true`
	for _, tc := range []struct{ text, want string }{
		{good + "}", ""},
		{`{"attempt": "a", "action": "Remove"}`, ""},
		{good + `, "confirmWithin": "2m", "probation": "60s", "settle": "20s"}`, ""},
		{good + `, "configuration": "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration"}`, ""},
		{good, "unexpected EOF"},
		{good + "} {}", "text after its end"},
		{good + `, "other": 1}`, `unknown field "other"`},
		{good + `, "confirmWithin": "5s"}`, "confirmWithin 5s: from 30s to 1h0m0s"},
		{good + `, "confirmWithin": "soon"}`, "not a duration"},
		{good + `, "probation": "-1s"}`, "probation -1s"},
		{good + `, "publicKey": "x"}`, "exclude each other"},
		{good + `, "configuration": "a: ["}`, "configuration: config: invalid"},
		{good + `, "configuration": "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n` +
			`noPullImageSecretRecheck: false\n"}`, "mode decides that"},
		{
			good + `, "configuration": "{apiVersion: config.pullgate.dev/v1alpha1, kind: PullgateConfiguration}"}`,
			"mode decides that",
		},
		{strings.Replace(good, "v1.2.3", "../../etc", 1) + "}", "version"},
		{strings.Replace(good, "a-1", "../x", 1) + "}", "attempt"},
		{strings.Replace(good, "a-1", "", 1) + "}", "attempt"},
		{strings.Replace(good, "Shadow", "Off", 1) + "}", "Shadow or Enforce"},
		{strings.Replace(good, "Install", "Do", 1) + "}", "Install, Rollback or Remove"},
		{strings.Replace(good, `, "unsigned": true`, "", 1) + "}", "publicKey is missing"},
		{`{"a": "` + strings.Repeat("x", 1<<20) + `"}`, "too large"},
		{"", "EOF"},
	} {
		_, err := nodeinstall.ParseRequest([]byte(tc.text))
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("ParseRequest(%.200s) = %v; want %q", tc.text, err, tc.want)
		}
	}
}

// A request that others can write is not applied.
func TestLoadRequestOfOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "request")
	testkit.Must(t, os.WriteFile(file, []byte(`{"attempt": "a", "action": "Remove"}`), 0o600))
	if _, err := nodeinstall.LoadRequest(file); err != nil {
		t.Errorf("LoadRequest = %v", err)
	}
	testkit.Must(t, os.Chmod(file, 0o666))
	if _, err := nodeinstall.LoadRequest(file); err == nil {
		t.Error("LoadRequest accepts a file that everybody can write")
	}
}

// That a version is on the node already says nothing about the key of the request.
func TestVersionOnTheNodeIsVerifiedByTheKeyOfTheRequest(t *testing.T) {
	for key, want := range map[string]string{"the key": "", "another": "invalid signature"} {
		onHost(t, func(h *host) {
			h.install(request("v1")) // unsigned
			p := newPod(h, "v1")
			p.request.Attempt, p.request.Unsigned, p.request.PublicKey = "again", false, key
			s, err := p.run()
			if (err == nil) != (want == "") || !strings.Contains(s.Message, want) {
				t.Errorf("key %q: %+v, %v; want %q", key, s, err, want)
			}
		})
	}
}

// killedIn applies a request, and ends it when a stage begins.
func (h *host) killedIn(stage string, r nodeinstall.Request) {
	h.Helper()
	defer func() {
		h.hook = nil
		if recover() == nil {
			h.Errorf("it does not come to stage %s", stage)
		}
	}()
	h.hook = func(what string) error {
		if what == "stage "+stage {
			panic(errKilled)
		}
		return nil
	}
	_, _ = h.apply(r)
}

// The switch of a change that is not taken back yet needs the programs of its version.
func TestAnotherBuildOfAVersionThatIsTakenBack(t *testing.T) {
	onHost(t, func(h *host) {
		h.place("v1")
		h.killedIn("Compare", request("v1"))
		time.Sleep(time.Hour) // the switch has not worked
		p := newPod(h, "v1")
		p.request.Attempt = "again"
		h.put("/image/pullgated", "another build")
		if s, err := p.run(); err == nil || !strings.Contains(s.Message, "is not the one of this image") ||
			h.read(folder+"/versions/v1/pullgated") != "pullgated v1" {
			t.Errorf("other programs: %+v, %v; want them refused", s, err)
		}
	})
}

// Who can write the folder could replace a program after it was verified, and the unit has the folder's name.
func TestFolderOfOthers(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(h *host, i *nodeinstall.Installer)
		want string
	}{
		{"the folder", func(h *host, _ *nodeinstall.Installer) {
			testkit.Must(h, os.Chmod(h.path(folder), 0o777))
		}, folder + ": users other than root can write it"},
		{"the versions", func(h *host, _ *nodeinstall.Installer) {
			testkit.Must(h, os.Chmod(h.path(folder+"/versions"), 0o777))
		}, folder + "/versions: users other than root can write it"},
		{"a specifier", func(_ *host, i *nodeinstall.Installer) { i.Folder = "/opt/%n" }, `folder "/opt/%n"`},
		{"a space", func(_ *host, i *nodeinstall.Installer) { i.Folder = "/opt/a b" }, `folder "/opt/a b"`},
	} {
		onHost(t, func(h *host) {
			h.place("v1")
			p := newPod(h, "v1")
			p.request.Attempt = "pod"
			p.annotate("")
			i := h.installer()
			tc.do(h, &i)
			s, err := i.Apply(h.Context(), request("v1"))
			if err == nil || s.Outcome != nodeinstall.NotStarted || !strings.Contains(s.Message, tc.want) {
				t.Errorf("%s: Apply = %+v, %v; want %q", tc.name, s, err, tc.want)
			}
			h.place("v1") // it was collected
			tc.do(h, &i)
			s, err = nodeinstall.Pod{
				Installer: i, Annotations: h.path("/podinfo"), Programs: h.path("/image"), Version: "v1", Start: p.start,
			}.Run(h.Context())
			if err == nil || s.Stage != "Place" || !strings.Contains(s.Message, tc.want) {
				t.Errorf("%s: Run = %+v, %v; want %q", tc.name, s, err, tc.want)
			}
		})
	}
}

// A timer that a former change could not stop runs a program that is gone, and does not count as the switch.
func TestTimerOfAFormerChange(t *testing.T) {
	onHost(t, func(h *host) {
		h.place("v1")
		h.timer = []string{folder + "/versions/gone/pullgatectl"}
		armed := ""
		h.hook = func(what string) error {
			if what == "stage Configure" {
				armed = h.timer[0]
			}
			return nil
		}
		h.install(request("v1"))
		testkit.Equal(t, "the program of the switch", armed, folder+"/versions/v1/pullgatectl")
	})
}

// The service of the timer may wait to be tried again when another change begins.
func TestServiceOfAFormerChange(t *testing.T) {
	onHost(t, func(h *host) {
		h.up[deadline] = &unit{state: "activating"}
		h.install(request("v1"))
	})
}

// A confirmation that came while the change was being taken back already does not stop the timer.
func TestConfirmationOfAChangeThatIsTakenBack(t *testing.T) {
	onHost(t, func(h *host) {
		h.place("v1")
		h.killedIn("Compare", request("v1"))
		state := h.read(folder + "/state.json")
		h.put(folder+"/state.json", strings.Replace(state, `"change": {`, `"change": {"back": true,`, 1))
		testkit.Must(t, h.installer().Confirm("attempt-v1"))
		f := testkit.Value(os.OpenFile(h.path(folder+"/lock"), os.O_RDWR, 0))(t)
		testkit.Must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
		if s, err := h.installer().Revert(h.Context(), nodeinstall.ByTimer); !errors.Is(err, nodeinstall.ErrBusy) {
			t.Errorf("Revert = %+v, %v; want ErrBusy, so that systemd tries again", s, err)
		}
		testkit.Must(t, f.Close())
	})
}
