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

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
