package gate_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// An allowed call reaches the runtime byte for byte: unknown fields are still in it.
func TestJudgedRequestReachesTheRuntimeAsItCame(t *testing.T) {
	p := newProxy(t, tracker.Options{}, restoring())
	p.serves(app, "good", img(id1))
	alice := p.Pod("alice")
	container := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app},
	}
	var created runtimeapi.CreateContainerResponse
	for _, tc := range []struct {
		method  string
		request func() proto.Message
		answer  proto.Message
	}{
		{runtimeapi.ImageService_PullImage_FullMethodName, func() proto.Message {
			return &runtimeapi.PullImageRequest{
				Image: &runtimeapi.ImageSpec{Image: app}, Auth: &runtimeapi.AuthConfig{Username: "u", Password: "good"},
				SandboxConfig: alice.Config,
			}
		}, &runtimeapi.PullImageResponse{}},
		{runtimeapi.RuntimeService_CreateContainer_FullMethodName, func() proto.Message {
			return &runtimeapi.CreateContainerRequest{
				PodSandboxId: alice.Sandbox, SandboxConfig: alice.Config, Config: container,
			}
		}, &created},
		{runtimeapi.RuntimeService_StartContainer_FullMethodName, func() proto.Message {
			return &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()}
		}, &runtimeapi.StartContainerResponse{}},
		{runtimeapi.RuntimeService_RestorePod_FullMethodName, func() proto.Message {
			return &runtimeapi.RestorePodRequest{
				Config: alice.Config, ContainerConfigs: []*runtimeapi.ContainerConfig{container},
			}
		}, &runtimeapi.RestorePodResponse{}},
	} {
		name := tc.method[strings.LastIndex(tc.method, "/")+1:]
		request, err := proto.Marshal(tc.request())
		p.must(err)
		request = append(request, 0xfa, 0x3e, 0x03, 'n', 'e', 'w')
		answer, err := criproxytest.CallRaw(t.Context(), p.Conn, tc.method, request)
		if err != nil {
			t.Errorf("%s = %v; want it let through", name, err)
			continue
		}
		p.must(proto.Unmarshal(answer, tc.answer))
		if got := p.runtime.Requests(name); len(got) != 1 || !bytes.Equal(got[0], request) {
			t.Errorf("%s reached the runtime as %x; want once, %x", name, got, request)
		}
	}
}

// The runtime completes the pull, and the connection to it breaks before it answers.
func TestConnectionThatBreaksBeforeTheAnswerLeavesAnIntent(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1))
	alice, bob := p.Pod("alice"), p.Pod("bob")
	p.beforeAnswer("PullImage", func() {
		p.runtime.Stop()
	})
	if _, err := p.Pull(t.Context(), alice, app, "good"); status.Code(err) != codes.Unavailable {
		t.Errorf("pull whose answer is lost = %v; want Unavailable", err)
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = nil })
	p.runtime.Start(t)
	for _, x := range []*criproxytest.Pod{bob, alice} {
		if got := eventually(t, p, x); got != "" {
			t.Errorf("%s's pre-check = %q; want it hidden, because the outcome of the pull is unknown", x.UID, got)
		}
	}
	if got := p.onDisk(); got != "1 intents, 0 records" {
		t.Errorf("on disk: %s; want the one intent and nothing else", got)
	}
}

// eventually sends pre-checks of app until the runtime is back.
func eventually(t *testing.T, p *proxy, x *criproxytest.Pod) string {
	t.Helper()
	for back := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		id, err := p.TryPrecheck(t.Context(), x, app)
		if err == nil {
			return id
		}
		if status.Code(err) != codes.Unavailable || time.Since(back) > 10*time.Second {
			t.Fatalf("pre-check %v after the runtime is back = %v", time.Since(back), err)
		}
	}
}
