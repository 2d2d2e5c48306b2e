package daemon_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

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
