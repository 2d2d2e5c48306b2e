package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// What an operator pulls by hand, without a pod, is recorded like any other pull.
func TestPullsWithoutAPod(t *testing.T) { onEach(t, pullsWithoutAPod) }

func pullsWithoutAPod(t runtimeTest) {
	s := begin(t)
	app, open := s.private("operator/app:1", node.Image{}), s.public("operator/open:1", node.Image{})
	alice, mallory := node.Alice(), node.Mallory()
	pull := func(name string, l *node.Login) error {
		var auth *runtimeapi.AuthConfig
		if l != nil {
			auth = &runtimeapi.AuthConfig{Username: l.Username, Password: l.Password}
		}
		_, err := s.k.Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: name}, auth, nil)
		return err
	}
	s.must(pull(app.Name, &alice))
	s.must(pull(open.Name, nil))
	for _, l := range []*node.Login{nil, &mallory} {
		if err := pull(app.Name, l); err == nil {
			t.Errorf("pull by hand with %v = nil; want the registry's refusal", l)
		}
	}
	s.run(pod("team-c", app, node.IfNotPresent, alice), app, node.Running, 0)
	s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
	s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
	s.run(pod("team-b", open, node.Never), open, node.Running, 0)
}

// Calls that pullgated does not judge get the runtime's answer, also for a hidden image.
func TestOtherCallsPassUnaltered(t *testing.T) { onEach(t, otherCallsPassUnaltered) }

func otherCallsPassUnaltered(t runtimeTest) {
	s := begin(t)
	direct := s.dial(s.node.Containerd.Endpoint())
	app := s.private("passes/app:1", node.Image{User: "4711"})
	owner := pod("team-a", app, node.IfNotPresent, node.Alice())
	events := s.watch()
	started := s.keep(owner, app, node.Running, -1)

	thief := pod("team-b", app, node.Never)
	s.must(s.k.Sandbox(t.Context(), thief))
	annotated := &runtimeapi.ImageSpec{Image: app.Name, Annotations: thief.Annotations()}
	bare := &runtimeapi.ImageSpec{Image: app.Name}
	if id, err := s.k.Precheck(t.Context(), thief); id != "" || err != nil {
		t.Fatalf("pre-check = %q, %v; want it hidden", id, err)
	}
	for name, ask := range map[string]func(*node.Kubelet) (any, error){
		"ImageStatus without annotations": func(k *node.Kubelet) (any, error) { return k.Images.ImageStatus(t.Context(), bare, false) },
		"verbose ImageStatus":             func(k *node.Kubelet) (any, error) { return k.Images.ImageStatus(t.Context(), bare, true) },
		"verbose ImageStatus with annotations": func(k *node.Kubelet) (any, error) {
			return k.Images.ImageStatus(t.Context(), annotated, true)
		},
		"ListImages": func(k *node.Kubelet) (any, error) {
			images, err := k.Images.ListImages(t.Context(), nil) // in any order
			slices.SortFunc(images, func(a, b *runtimeapi.Image) int { return strings.Compare(a.GetId(), b.GetId()) })
			return images, err
		},
		"Version": func(k *node.Kubelet) (any, error) { return k.Runtime.Version(t.Context(), "v1") },
		"ContainerStatus": func(k *node.Kubelet) (any, error) {
			return k.Runtime.ContainerStatus(t.Context(), started.Container, true)
		},
		"PodSandboxStatus": func(k *node.Kubelet) (any, error) {
			return k.Runtime.PodSandboxStatus(t.Context(), owner.SandboxID(), false)
		},
		"an error": func(k *node.Kubelet) (any, error) {
			return k.Runtime.ContainerStatus(t.Context(), "no-such-container", false)
		},
	} {
		want, wantErr := ask(direct)
		got, err := ask(s.k)
		if text(got) != text(want) || errText(err) != errText(wantErr) {
			t.Errorf("%s = %v, %v; want %v, %v, as the runtime answers", name, got, err, want, wantErr)
		}
	}

	out, _, err := s.k.Runtime.ExecSync(t.Context(), started.Container, []string{"/bin/id", "-u"}, 10*time.Second)
	if err != nil || string(out) != "4711\n" {
		t.Errorf("ExecSync of id -u = %q, %v; want 4711", out, err)
	}
	exec, err := s.k.Runtime.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: started.Container, Cmd: []string{"/bin/id"}, Stdout: true})
	if err != nil || !strings.HasPrefix(exec.GetUrl(), "http://127.0.0.1:") {
		t.Errorf("Exec = %v, %v; want the runtime's own URL", exec, err)
	}
	s.must(s.k.Remove(t.Context(), thief))
	s.must(s.k.Remove(t.Context(), owner))
	if t.containerd == debian {
		return // containerd 1.6 has no events
	}
	for _, want := range []runtimeapi.ContainerEventType{
		runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
	} {
		if !events(started.Container, want) {
			t.Errorf("no %v of %s came through the stream", want, started.Container)
		}
	}
}

// watch opens the stream of container events through pullgated. The function it returns waits for one.
func (s *suite) watch() func(container string, kind runtimeapi.ContainerEventType) bool {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	came := make(chan *runtimeapi.ContainerEventResponse, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It returns with the context, or at once if the runtime has no events.
		_ = s.k.Runtime.GetContainerEvents(ctx, came, nil)
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	return func(container string, kind runtimeapi.ContainerEventType) bool {
		limit := time.NewTimer(10 * time.Second)
		defer limit.Stop()
		for {
			select {
			case e := <-came:
				if e.GetContainerId() == container && e.GetContainerEventType() == kind {
					return true
				}
			case <-limit.C:
				return false
			}
		}
	}
}

func text(answer any) string { return fmt.Sprintf("%v", answer) }

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
