package gate_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// creates makes and starts a container of a pod, as a kubelet does.
func (p *proxy) creates(k *criproxytest.Kubelet, of *criproxytest.Pod, attempt uint32, labels ...string) string {
	p.t.Helper()
	id, err := p.tryCreate(p.t.Context(), k, of, attempt, labels...)
	p.must(err)
	p.must(k.Start(p.t.Context(), id))
	return id
}

func (p *proxy) tryCreate(
	ctx context.Context, k *criproxytest.Kubelet, of *criproxytest.Pod, attempt uint32, labels ...string,
) (string, error) {
	c := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: attempt}, Labels: map[string]string{},
		Image: &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app},
	}
	for _, l := range append(labels, "io.kubernetes.pod.uid") {
		c.Labels[l] = of.UID
	}
	if len(labels) > 0 {
		delete(c.Labels, "io.kubernetes.pod.uid")
	}
	resp, err := k.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: of.Sandbox, SandboxConfig: of.Config, Config: c,
	})
	return resp.GetContainerId(), err
}

func (p *proxy) hasBypassed(when string, want bool) {
	p.t.Helper()
	if got := testkit.Value(p.gate.HasBypassed(p.t.Context()))(p.t); got != want {
		p.t.Errorf("%s: a container was created past pullgated: %v; want %v", when, got, want)
	}
}

// A container of the kubelet that was created at the runtime itself shows a bypass as long as the runtime has it.
func TestHasBypassed(t *testing.T) {
	p, alice := newProxyOfAlice(t, tracker.Options{}, exact())
	direct := criproxytest.NewKubelet(t, p.runtime.Endpoint())
	p.creates(direct, alice, 0)
	p.creates(p.Kubelet, alice, 1)
	p.hasBypassed("what was there before the first list", false)
	last := p.creates(p.Kubelet, alice, 2)
	p.hasBypassed("a further one through pullgated", false)
	p.done(p.Runtime.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: last}))
	p.creates(direct, alice, 3, "of.another.client")
	p.hasBypassed("one of another client than a kubelet", false)
	id := testkit.Value(p.tryCreate(t.Context(), direct, alice, 4))(t)
	p.hasBypassed("one that was not started", false)
	p.must(direct.Start(t.Context(), id))
	p.hasBypassed("one past pullgated, in the first list that has it", false)
	for range 2 {
		p.hasBypassed("one past pullgated", true)
	}
	p.creates(p.Kubelet, alice, 5)
	p.hasBypassed("then one through pullgated", true)
	p.done(direct.Runtime.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}))
	p.hasBypassed("after its removal", false)
	p.runtime.Stop()
	if _, err := p.gate.HasBypassed(t.Context()); err == nil {
		t.Error("no error although the runtime cannot be asked")
	}
}

// A denied creation does not stand for a later one of the same name past pullgated.
func TestDeniedCreationIsNoCreation(t *testing.T) {
	p, _ := newProxyOfAlice(t, tracker.Options{}, exact())
	p.hasBypassed("at first", false)
	mallory := p.Pod("mallory")
	if _, err := p.tryCreate(t.Context(), p.Kubelet, mallory, 0); err == nil {
		t.Fatal("the container of mallory was created")
	}
	p.creates(criproxytest.NewKubelet(t, p.runtime.Endpoint()), mallory, 0)
	p.hasBypassed("the denied one past pullgated, in the first list that has it", false)
	p.hasBypassed("the denied one past pullgated", true)
}

// A creation whose answer is lost has created the container, and one that fails undoes no earlier one.
func TestContainerOfALostAnswer(t *testing.T) {
	p, alice := newProxyOfAlice(t, tracker.Options{}, exact())
	p.hasBypassed("at first", false)
	p.beforeAnswer("CreateContainer", func() { p.runtime.Stop() })
	if _, err := p.tryCreate(t.Context(), p.Kubelet, alice, 0); err == nil {
		t.Fatal("the call was answered")
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = nil })
	p.runtime.Start(t)
	direct := criproxytest.NewKubelet(t, p.runtime.Endpoint())
	p.must(direct.Start(t.Context(), p.runtime.Containers()[0]))
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Fail = func(method string) error {
			if method == "CreateContainer" {
				return status.Error(codes.Unknown, "the name is reserved")
			}
			return nil
		}
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := p.tryCreate(t.Context(), p.Kubelet, alice, 0); status.Code(err) == codes.PermissionDenied {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	for range 2 {
		p.hasBypassed("the one whose answer was lost", false)
	}
}

// A runtime may list a container that it restored with metadata of the checkpoint: its ID is known, too.
func TestRestoredContainerHasOtherMetadata(t *testing.T) {
	p, alice := newProxyOfAlice(t, tracker.Options{}, exact())
	p.hasBypassed("at first", false)
	id := p.creates(p.Kubelet, alice, 0)
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Rewrite = func(method string, answer []byte) []byte {
			if method != "ListContainers" {
				return answer
			}
			var list runtimeapi.ListContainersResponse
			testkit.Must(t, proto.Unmarshal(answer, &list))
			for _, c := range list.GetContainers() {
				c.Metadata.Attempt = 7
			}
			return testkit.Value(proto.Marshal(&list))(t)
		}
	})
	for range 2 {
		p.hasBypassed(id+" with another attempt", false)
	}
}

// What is known of containers is bounded, and a container that some lists omit stays known.
func TestKnownContainersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k gate.Containers
		list := func(n int) (all []*runtimeapi.Container) {
			for i := range n {
				all = append(all, &runtimeapi.Container{
					PodSandboxId: fmt.Sprint(i), State: runtimeapi.ContainerState_CONTAINER_RUNNING,
					Labels: map[string]string{"io.kubernetes.pod.uid": "u"},
				})
			}
			return all
		}
		want := func(when string, n int, bypassed bool, known int) {
			t.Helper()
			if got := k.Compare(list(n)); got != bypassed || k.Known() != known {
				t.Errorf("%s: %v, %d known; want %v, %d", when, got, k.Known(), bypassed, known)
			}
		}
		want("first list", 3, false, 3)
		time.Sleep(9 * time.Minute)
		want("a runtime that is loading", 1, false, 3)
		want("and has loaded", 3, false, 3)
		time.Sleep(11 * time.Minute)
		want("two are gone", 1, false, 1)
		want("another one", 2, false, 1)
		want("another one, again", 2, true, 1)
		want("it is gone", 1, false, 1)
		want("it is back", 2, false, 1)
		for i := range 20_000 {
			k.Created(fmt.Sprint("sandbox", i))
		}
		want("too many", 3, false, 3)
		want("the next list", 4, false, 3)
		want("the one after that", 4, true, 3)
	})
}
