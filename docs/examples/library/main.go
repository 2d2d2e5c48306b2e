// Command library uses pkg/tracker as a program like a kubelet does: every pod proves access to a private image once,
// also across restarts.
//
//	library DIRECTORY POD USER PASSWORD
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const name = "registry.example/team/app:1"

const id = "sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"

// A node stands for a container runtime and a registry: the image arrives with the first pull that the registry allows.
type node struct{ marker string }

func (n node) Image(context.Context, string) (tracker.Image, error) {
	_, err := os.Stat(n.marker)
	if errors.Is(err, os.ErrNotExist) {
		return tracker.Image{}, nil // it is not present
	}
	return tracker.NewImage(id, name), err
}

func (n node) Images(ctx context.Context) ([]tracker.Image, error) {
	i, err := n.Image(ctx, name)
	return []tracker.Image{i}, err
}

func run(dir, pod, user, password string) (err error) {
	ctx, runtime := context.Background(), node{marker: dir + "/image"}
	t, _, err := tracker.Open(dir, runtime, tracker.Options{}) // the report says what was lost, if anything
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Flush(), t.Close()) }() // a daemon calls t.Run instead of t.Flush
	who := tracker.Pod{UID: pod, Namespace: pod}
	login := t.Sent(credential.New(credential.Login{Username: user, Password: password}), who)
	image, _ := runtime.Image(ctx, name)
	v := t.Check(ctx, tracker.Request{Pod: who, Name: imageref.New(name), Image: image, Sent: login})
	if !v.Allowed() {
		pull, err := t.BeginPull(ctx, imageref.New(name), image)
		if err != nil {
			return err
		}
		if password != "secret" {
			return errors.Join(errors.New("401 Unauthorized"), pull.Refused())
		}
		if err := os.WriteFile(runtime.marker, nil, 0o600); err != nil {
			return errors.Join(err, pull.Lost())
		}
		if v, err = pull.Proved(tracker.Proof{ImageID: id, Sent: login, Pod: who}); err != nil {
			return err
		}
		fmt.Println("pulled", name)
	}
	fmt.Printf("%s runs: %s\n", pod, v.Reason)
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}
