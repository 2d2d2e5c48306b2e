package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// verifying are the settings of these tests.
func verifying() []string {
	return []string{"kubeletSkipsAlwaysPrecheck: true", "untrackedImages: Verify"}
}

// stoppedAfterAPull returns a daemon that was stopped after a pod had pulled app, a kubelet before it, and the pod.
func stoppedAfterAPull(t *testing.T) (p *process, k *criproxytest.Kubelet, alice *criproxytest.Pod) {
	t.Helper()
	r := criproxytest.NewRuntime(t)
	p = prepare(t, r.Endpoint(), verifying()...)
	p.start()
	k = p.kubelet()
	serves(r, app, "good", id1)
	alice = k.Pod("alice")
	k.MustPull(alice, app, "good")
	p.stop()
	return p, k, alice
}

// A pod that has pulled, and whose container is not started yet, continues after an orderly restart. After a crash it
// proves access again, and the file of an earlier stop is not used twice.
func TestGrantsSurviveOnlyAnOrderlyStop(t *testing.T) {
	p, k, alice := stoppedAfterAPull(t)
	sees := func(when, want string) {
		t.Helper()
		if got := k.Precheck(alice, app); got != want {
			t.Errorf("pre-check %s = %q; want %q", when, got, want)
		}
	}
	handed, err := os.ReadFile(p.path("state/grants.json"))
	testkit.Must(t, err)
	if info, err := os.Stat(p.path("state/grants.json")); err != nil || info.Mode() != 0o600 {
		t.Errorf("grants.json: %v, %v; want it for root alone", info.Mode(), err)
	}
	p.start()
	sees("after a restart", id1)
	if _, err := os.Stat(p.path("state/grants.json")); !os.IsNotExist(err) {
		t.Errorf("grants.json after the start: %v; want it gone", err)
	}
	p.kill()
	p.start()
	sees("after a crash", "")

	// The file of a stop that was before the last write to the store.
	k.MustPull(k.Pod("bob"), app, "good")
	p.stop()
	testkit.Must(t, os.WriteFile(p.path("state/grants.json"), handed, 0o600))
	p.start()
	sees("with stale grants", "")
}

// A kubelet waits for 5 s for the next process. Connections that send nothing, to whatever socket, leave time for that,
// and the grants are handed over.
func TestSilentConnectionsDoNotDelayAStop(t *testing.T) {
	p, k, alice := stoppedAfterAPull(t)
	p.start()
	for address, network := range map[string]string{
		p.path("run/cri.sock"): "unix", p.path("run/admin.sock"): "unix", p.metrics: "tcp",
	} {
		conn := testkit.Value((&net.Dialer{}).DialContext(t.Context(), network, address))(t)
		defer func() { _ = conn.Close() }()
		if network == "tcp" { // this server waits for its client
			continue
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // it was accepted
			t.Fatal(err)
		}
	}
	began := time.Now()
	p.stop()
	if took := time.Since(began); took > 4800*time.Millisecond {
		t.Errorf("the stop took %v; want two seconds, and some for a busy machine", took)
	}
	p.start()
	prechecked(t, k, "pre-check after that", alice, app, id1)
}

// A failed start, whatever is invalid in the configuration, leaves the grants for the next start.
func TestGrantsSurviveAFailedStart(t *testing.T) {
	p, k, alice := stoppedAfterAPull(t)
	l, err := net.Listen("unix", p.path("taken.sock"))
	testkit.Must(t, err)
	defer func() { _ = l.Close() }()
	for name, wrong := range map[string]string{
		"decisionLog": "decisionLog: {path: " + p.path("absent/decisions.log") + "}",
		"taken.sock":  "admin: {listen: \"unix://" + p.path("taken.sock") + "\"}",
	} {
		p.configure(append(verifying(), wrong)...)
		p.refused(name)
	}
	p.configure(verifying()...)
	p.start()
	prechecked(t, k, "pre-check after a failed start and a good one", alice, app, id1)
}

// After a store was lost, its revocations are unknown, and a new store counts its writes from the beginning.
func TestGrantsDoNotSurviveALostStore(t *testing.T) {
	p, k, alice := stoppedAfterAPull(t)
	fresh, _, err := records.Open(p.path("fresh.db"), records.Options{KeyExists: true})
	testkit.Must(t, err)
	number, err := fresh.LastWrite()
	testkit.Must(t, errors.Join(err, fresh.Close(), os.Remove(p.path("state/records.db"))))
	handed, err := os.ReadFile(p.path("state/grants.json"))
	testkit.Must(t, err)
	same := regexp.MustCompile(`"store":[0-9]+`).ReplaceAll(handed, fmt.Appendf(nil, `"store":%d`, number))
	testkit.Must(t, os.WriteFile(p.path("state/grants.json"), same, 0o600))
	p.start()
	prechecked(t, k, "pre-check on a store that was lost", alice, app, "")
}

const (
	id3   = "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	later = "repo.test/team/later:1"
)

// The steps of docs/store.md, Backup and restore: what each kind of copy proves, on the node that it is from.
func TestRestoreByTheStepsOfTheManual(t *testing.T) {
	for _, tc := range []struct {
		name    string
		key     string // the content of node.key at the restore, "" for the existing one
		proved  bool   // the proofs from before the copy are known
		message string // in the log
	}{
		{name: "both", proved: true},
		{name: "another key", key: "another", message: "The node's key is not the one that the store was written with"},
		{name: "no key", key: "none", message: "The node's key is lost: no proof that was recorded before matches"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, r, _ := aTenantsNode(t)
			copied := p.operator().backup()
			// After the copy was made, a pod pulls an image that no other pod has.
			serves(r, later, "letmein", id3)
			k := p.kubelet()
			k.MustPull(k.Pod("erin"), later, "letmein")
			p.stop()
			err := errors.Join(os.Remove(p.path("state/records.db")), os.WriteFile(p.path("state/records.db"), copied, 0o600))
			switch tc.key {
			case "":
			case "none":
				err = errors.Join(err, os.Remove(p.path("state/node.key")))
			default:
				other := prepare(t, r.Endpoint(), "untrackedImages: Verify")
				other.start()
				other.stop()
				key, readErr := os.ReadFile(other.path("state/node.key"))
				err = errors.Join(err, readErr, os.WriteFile(p.path("state/node.key"), key, 0o600))
			}
			testkit.Must(t, err)
			if v, err := offline.Check(t.Context(), p.path("state/records.db")); err != nil || len(v.Problems) > 0 {
				t.Errorf("store check = %+v, %v; want it valid", v, err)
			}
			p.start()
			if !strings.Contains(p.out.String(), "the store is a copy that was made at") {
				t.Error("the log does not report that the store is a copy")
			}
			restoredNode(t, r, p, tc.proved)
			if tc.message != "" && !strings.Contains(p.out.String(), tc.message) {
				t.Errorf("the log does not contain %q", tc.message)
			}
			if tc.message == "" && strings.Contains(p.out.String(), "key") {
				t.Error("the log has a message about the key")
			}
		})
	}
}

// restoredNode checks that a node after a restore is as the manual describes.
func restoredNode(t *testing.T, r *criproxytest.Runtime, p *process, proved bool) {
	t.Helper()
	serves(r, "repo.test/nothing:1", "", "") // the registry refuses everything
	k := p.kubelet()
	pod := k.Pod("frank")
	prechecked(t, k, "pre-check of the preloaded image", pod, pre, id2) // by its mark
	prechecked(t, k, "pre-check of what came after the copy", pod, later, "")
	prechecked(t, k, "pre-check of what was proved", pod, app, "")
	switch id, err := k.Pull(t.Context(), pod, app, canary); {
	case proved && (err != nil || id != id1):
		t.Errorf("pull with what was proved = %q, %v; want the image at once", id, err)
	case !proved && err == nil:
		t.Errorf("pull with what was proved under another key = %q; want it refused by the registry", id)
	}
}
