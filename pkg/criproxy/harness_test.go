package criproxy_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
	"github.com/pullgate/pullgate/pkg/pods"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	id1 = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2 = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	id3 = "sha256:2333333333333333333333333333333333333333333333333333333333333333"
	app = "repo.test/team/app:1"
)

// counts is the metrics of a gate under test.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[key]++
}

func (c *counts) get() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.of)
}

func (c *counts) Verdict(string, policy.Decision)                   {}
func (c *counts) Refused(call string)                               { c.add("refused " + call) }
func (c *counts) Recheck(_, outcome string, _ time.Duration)        { c.add("recheck " + outcome) }
func (c *counts) ForwardedCall(string, string, bool, time.Duration) {}
func (c *counts) Panic()                                            { c.add("panic") }

// A proxy is a whole proxy in process: a real store, the fake runtime behind it, clients before it.
type proxy struct {
	t       *testing.T
	runtime *criproxytest.Runtime
	options tracker.Options
	config  criproxy.GateConfig
	dir     string
	key     credential.Key

	counts  *counts
	store   *records.Store
	tracker *tracker.Tracker
	gate    *criproxy.Gate
	server  *criproxy.Server
	up      *criproxy.Upstream
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	conn    *grpc.ClientConn
	images  runtimeapi.ImageServiceClient
	runs    runtimeapi.RuntimeServiceClient
	nextPod int
}

// newProxy starts a proxy; the options and the switches of the configuration are the test's.
func newProxy(t *testing.T, o tracker.Options, c criproxy.GateConfig) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "gate") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, runtime: criproxytest.NewRuntime(t), options: o, config: c, dir: dir, key: credential.NewKey()}
	p.start()
	t.Cleanup(func() {
		p.stop()
		_ = os.RemoveAll(dir)
	})
	return p
}

func (p *proxy) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) start() {
	p.t.Helper()
	var err error
	p.counts = &counts{}
	p.store, _, err = records.Open(filepath.Join(p.dir, "records.db"), records.Options{})
	p.must(err)
	p.up, err = criproxy.Dial(p.runtime.Endpoint())
	p.must(err)
	rt := criproxy.NewRuntime(p.up, p.up)
	p.tracker, err = tracker.New(p.store, p.key, rt, p.options)
	p.must(err)
	c := p.config
	c.Tracker, c.Pods, c.Runtime, c.Metrics, c.Log = p.tracker, pods.New(), rt, p.counts, klog.Logger{}
	p.gate = criproxy.NewGate(c)
	p.server = criproxy.New(criproxy.Config{Runtime: p.up, Image: p.up, Gate: p.gate, Metrics: p.counts, Log: klog.Logger{}})
	socket := filepath.Join(p.dir, "cri.sock")
	_ = os.Remove(socket)
	l, err := (&net.ListenConfig{}).Listen(p.t.Context(), "unix", socket)
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Go(func() {
		p.up.Watch(ctx, func(up bool) {
			if !up {
				p.gate.Disconnected()
			}
		})
	})
	p.wg.Go(func() {
		if err := p.server.Serve(l); err != nil {
			p.t.Errorf("Serve = %v; want nil", err)
		}
	})
	p.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	p.must(err)
	p.images, p.runs = runtimeapi.NewImageServiceClient(p.conn), runtimeapi.NewRuntimeServiceClient(p.conn)
}

func (p *proxy) stop() {
	p.t.Helper()
	err := p.conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.server.Shutdown(ctx)
	p.cancel()
	p.wg.Wait()
	p.must(errors.Join(err, p.up.Close(), p.store.Close()))
}

// restart is a restart of the daemon: what is in memory is gone.
func (p *proxy) restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

// A pod is one pod as its kubelet knows it.
type pod struct {
	uid, seen, sandbox string
	config             *runtimeapi.PodSandboxConfig
}

// pod runs a sandbox. The namespace is that of the team.
func (p *proxy) pod(team string) *pod {
	p.t.Helper()
	x := p.podWith(team, "api")
	resp, err := p.runs.RunPodSandbox(p.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: x.config})
	p.must(err)
	x.sandbox = resp.GetPodSandboxId()
	return x
}

func (p *proxy) podWith(team, source string) *pod {
	p.nextPod++
	uid := team + "-" + string(rune('a'+p.nextPod))
	x := &pod{uid: uid, seen: "2026-11-21T05:00:00." + uid}
	x.config = &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Uid: uid, Namespace: team, Name: uid},
		Annotations: map[string]string{pods.SeenAnnotation: x.seen, pods.SourceAnnotation: source},
	}
	return x
}

// precheck returns the image ID of the answer, "" for the empty one.
func (p *proxy) precheck(x *pod, name string) string {
	p.t.Helper()
	resp, err := p.images.ImageStatus(p.t.Context(), &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: name, Annotations: x.config.GetAnnotations()},
	})
	p.must(err)
	return resp.GetImage().GetId()
}

func (p *proxy) pull(x *pod, name, password string) (string, error) {
	p.t.Helper()
	return p.pullContext(p.t.Context(), x, name, password)
}

func (p *proxy) pullContext(ctx context.Context, x *pod, name, password string) (string, error) {
	req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}}
	if x != nil {
		req.SandboxConfig = x.config
	}
	if password != "" {
		req.Auth = &runtimeapi.AuthConfig{Username: "tenant", Password: password}
	}
	resp, err := p.images.PullImage(ctx, req)
	return resp.GetImageRef(), err
}

func (p *proxy) create(x *pod, id, name string, mounts ...*runtimeapi.Mount) (string, error) {
	p.t.Helper()
	resp, err := p.runs.CreateContainer(p.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: x.sandbox, SandboxConfig: x.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name},
			Mounts:   mounts,
		},
	})
	return resp.GetContainerId(), err
}

func (p *proxy) startContainer(id string) error {
	p.t.Helper()
	_, err := p.runs.StartContainer(p.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// serves makes the registry give an image for a name to whoever has the password.
func (p *proxy) serves(name, password string, img criproxytest.Image) {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(asked string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if asked != name || auth.GetPassword() != password {
				return criproxytest.Image{}, criproxytest.Denied(asked)
			}
			return img, nil
		}
	})
}

// exact is the configuration for a kubelet that sends no pre-check for Always.
func exact() criproxy.GateConfig {
	return criproxy.GateConfig{OutageFallback: true, AlwaysPrecheck: criproxy.AlwaysPrecheckSkipped}
}
