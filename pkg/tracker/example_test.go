package tracker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A node is a registry that lets one credential pull one image, and a runtime that keeps the pulled images. A program like a kubelet works
// between the two.
type node struct{ images []tracker.Image }

func (n *node) Images(context.Context) ([]tracker.Image, error) { return n.images, nil }

func (n *node) status(name string) tracker.Image {
	for _, i := range n.images {
		if i.Names[0].String() == name {
			return i
		}
	}
	return tracker.Image{}
}

func (n *node) pull(name, password string) (string, error) {
	if password != "alice's" {
		return "", errors.New("401 Unauthorized")
	}
	id := "sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
	n.images = []tracker.Image{tracker.NewImage(id, name)}
	return id, nil
}

// A program like a kubelet, without a proxy. Before it runs a container it asks the tracker. If the answer is Reverify, it pulls, between an
// intent and a record.
func Example() {
	dir, err := os.MkdirTemp("", "tracker")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, _, err := records.Open(filepath.Join(dir, "records.db"), records.Options{Now: time.Now()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()
	runtime := &node{}
	t := tracker.New(store, credential.NewKey(), runtime, tracker.Options{})

	ensure := func(pod, name, user, password string) error {
		ctx := context.Background()
		who := tracker.Pod{UID: pod, Namespace: pod}
		cred := credential.New(user, password, "", "", "", "")
		v := t.Check(ctx, tracker.Request{Pod: who, Name: imageref.New(name), Image: runtime.status(name), Credentials: []credential.Credential{cred}})
		if v.Allowed() {
			fmt.Printf("%s runs: %s\n", pod, v.Reason)
			return nil
		}
		pull, err := t.BeginPull(ctx, imageref.New(name), runtime.status(name)) // the intent is on disk now
		if err != nil {
			return err
		}
		id, err := runtime.pull(name, password)
		if err != nil {
			fmt.Printf("%s waits: %s, and the registry says %v\n", pod, v.Reason, err)
			return pull.Refused()
		}
		v, err = pull.Proved(tracker.Proof{ImageID: id, Credential: cred, Pod: who}) // the record is on disk now
		fmt.Printf("%s runs: %s by a pull\n", pod, v.Reason)
		return err
	}

	const name = "registry.example/team/app:1"
	for _, step := range []struct{ pod, user, password string }{
		{"alice", "alice", "alice's"},
		{"bob", "bob", "bob's"},
		{"carol", "alice", "alice's"},
	} {
		if err := ensure(step.pod, name, step.user, step.password); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// alice runs: proved by a pull
	// bob waits: not_proved, and the registry says 401 Unauthorized
	// carol runs: proved
}
