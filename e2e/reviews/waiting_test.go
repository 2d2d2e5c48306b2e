package reviews_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// Containers of a tenant wait for a backend that does not answer about their image. The kubelet makes the calls for all
// pods on the same connection, and goes on with all other pods.
func TestContainersThatWaitForAReviewStopNoOtherCall(t *testing.T) {
	backend := reviewbackend.New(t)
	w := start(t, func(w *world) {
		w.file("scanner", backend, "defaultAllow: false", "mallory")
	}, "slow.test/app:1", "busybox:1")
	backend.Set("slow.test/app:1", reviewbackend.Answer{Failure: reviewbackend.Hang})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Five messages of 13,107 bytes, with the prefix of gRPC, are exactly the window of 65,535 bytes with which a
	// connection of HTTP/2 begins.
	const containers, size = 5, 13107 - 5
	for range containers {
		p := w.kubelet.Pod("mallory")
		env := &runtimeapi.KeyValue{Key: "A", Value: make([]byte, size/2)}
		request := &runtimeapi.CreateContainerRequest{
			PodSandboxId: p.Sandbox, SandboxConfig: p.Config, Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
				Image:    &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: "slow.test/app:1"},
				Envs:     []*runtimeapi.KeyValue{env},
			},
		}
		env.Value = bytes.Repeat([]byte{'x'}, size/2+size-proto.Size(request))
		const method = runtimeapi.RuntimeService_CreateContainer_FullMethodName
		create := testkit.Value(w.kubelet.Conn.NewStream(ctx, &grpc.StreamDesc{}, method))(w)
		w.must(create.SendMsg(request))
	}
	if !host.Within(time.Minute, func() bool { return len(backend.Requests("slow.test/app:1")) > 0 }) {
		t.Fatal("the backend was not asked")
	}
	for range 30 {
		for name, call := range map[string]func(context.Context) error{
			"Version": func(ctx context.Context) error {
				_, err := w.kubelet.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
				return err
			},
			"ListPodSandbox": func(ctx context.Context) error {
				_, err := w.kubelet.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
				return err
			},
			"RunPodSandbox of another tenant": func(ctx context.Context) error {
				p := w.kubelet.PodFrom("alice", "api")
				p.Config.Annotations["note"] = strings.Repeat("y", 3000)
				return w.kubelet.Sandbox(ctx, p)
			},
		} {
			limited, stop := context.WithTimeout(t.Context(), 10*time.Second)
			err := call(limited)
			stop()
			if err != nil {
				t.Fatalf("%s, while containers of mallory wait: %v", name, err)
			}
		}
	}
}
