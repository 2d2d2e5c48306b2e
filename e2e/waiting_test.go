package e2e_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// Pods of a tenant have large annotations, and images in a registry that accepts connections and sends nothing. A
// kubelet that pulls in parallel makes all its calls on one connection, and goes on with all other pods.
func TestPullsThatHangStopNoOtherCall(t *testing.T) { on(t, pullsThatHang, debian) }

func pullsThatHang(t runtimeTest) {
	s := begin(t)
	registry, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	var accepted atomic.Int64
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := registry.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			defer func() { _ = c.Close() }()
		}
	})
	defer func() { _ = registry.Close(); serving.Wait() }()
	ctx, cancel := context.WithCancel(t.Context())
	var pulls sync.WaitGroup
	defer func() { cancel(); pulls.Wait() }()
	const hanging = 40
	for i := range hanging {
		pulls.Go(func() {
			_, err := s.k.Images.PullImage(ctx, &runtimeapi.ImageSpec{Image: fmt.Sprintf("%s/mallory/app-%d:1", registry.Addr(), i)}, nil, &runtimeapi.PodSandboxConfig{
				Metadata:    &runtimeapi.PodSandboxMetadata{Name: "m", Uid: fmt.Sprint("m", i), Namespace: "mallory"},
				Annotations: map[string]string{"a": strings.Repeat("x", 15800), "kubernetes.io/config.seen": time.Now().Format(time.RFC3339Nano), "kubernetes.io/config.source": "api"},
			})
			if ctx.Err() == nil {
				t.Errorf("a pull from a registry that sends nothing = %v; want it to wait", err)
			}
		})
	}
	for began := time.Now(); accepted.Load() < hanging; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d of %d pulls have reached the registry; want all", accepted.Load(), hanging)
		}
	}
	for range 30 {
		limited, stop := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := s.k.Images.ImageStatus(limited, &runtimeapi.ImageSpec{Image: "repo.test/absent:1", Annotations: map[string]string{"a": strings.Repeat("y", 4000)}}, false)
		stop()
		if err != nil {
			t.Fatalf("ImageStatus of another pod, while pulls hang: %v", err)
		}
	}
}

// A runtime's errors contain what a tenant has chosen, such as a command or the name of a profile, and can be long.
// They end one call, and arrive as the runtime sends them.
func TestLongErrorsEndNoOtherCall(t *testing.T) { onEach(t, longErrors) }

func longErrors(t runtimeTest) {
	s := begin(t)
	app := s.public("long/app:1", node.Image{})
	p := pod("mallory", app, node.IfNotPresent)
	container := s.keep(p, app, node.Running, -1).Container
	defer func() { s.must(s.k.Remove(t.Context(), p)) }()
	exec := func(command string) func(*node.Kubelet) error {
		return func(k *node.Kubelet) error {
			_, _, err := k.Runtime.ExecSync(t.Context(), container, []string{command}, 10*time.Second)
			return err
		}
	}
	direct := s.dial(s.node.Containerd.Endpoint())
	for name, call := range map[string]func(*node.Kubelet) error{
		"a command of 1 kB":        exec(strings.Repeat("A", 1000)),
		"a path of 28 kB":          exec("/" + strings.Repeat("é", 14000)),
		"20 kB that are not ASCII": exec(strings.Repeat("é", 10000)),
		"56 kB that are not ASCII": exec(strings.Repeat("é", 28000)),
		"a seccomp profile of 150 kB": func(k *node.Kubelet) error {
			config := proto.CloneOf(p.SandboxConfig())
			config.Metadata.Name, config.Metadata.Uid = "long", "long-"+t.containerd
			config.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{
				ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/var/lib/kubelet/seccomp/" + strings.Repeat("A", 150<<10),
			}
			_, err := k.Runtime.RunPodSandbox(t.Context(), config, "")
			return err
		},
	} {
		other := make(chan error, 1)
		go func() {
			_, _, err := s.k.Runtime.ExecSync(t.Context(), container, []string{"/bin/sleep", "1"}, time.Minute)
			other <- err
		}()
		time.Sleep(300 * time.Millisecond) // the other call has begun
		want, got := status.Convert(call(direct)), status.Convert(call(s.k))
		// The texts have IDs of equal length.
		if want.Code() == codes.OK || got.Code() != want.Code() || len(got.Message()) != len(want.Message()) {
			t.Errorf("%s: %v with %d bytes; want %v with %d, as directly", name, got.Code(), len(got.Message()), want.Code(), len(want.Message()))
		}
		t.Logf("%s: %v with %d bytes", name, got.Code(), len(got.Message()))
		if err := <-other; err != nil {
			t.Errorf("%s ends another call: %v", name, err)
		}
	}
}
