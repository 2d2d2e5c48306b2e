package gate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const app = "repo.test/team/app:1"

// Image IDs in the form of the runtime under test.
var (
	id1 = underTest().ID("sha256:1111111111111111111111111111111111111111111111111111111111111111")
	id2 = underTest().ID("sha256:2222222222222222222222222222222222222222222222222222222222222222")
	id3 = underTest().ID("sha256:2333333333333333333333333333333333333333333333333333333333333333")
)

// counts implements the metrics of a gate under test.
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

func (c *counts) Verdict(string, policy.Decision) {}
func (c *counts) Use(policy.Reason)               {}
func (c *counts) Refused(call string)             { c.add("refused " + call) }
func (c *counts) Recheck(policy, outcome string, _ time.Duration) {
	c.add(strings.TrimSuffix("recheck "+outcome+" "+policy, " unknown"))
}
func (c *counts) CredentialsIgnored()                               { c.add("credentials ignored") }
func (c *counts) PullUnresolved()                                   { c.add("unresolved") }
func (c *counts) CreationRefused(reason string)                     { c.add("creation refused " + reason) }
func (c *counts) ForwardedCall(string, string, bool, time.Duration) {}
func (c *counts) Audited(would policy.Verdict)                      { c.add("audited " + would.String()) }
func (c *counts) ViewConflict(field string)                         { c.add("conflict " + field) }
func (c *counts) Admission(call string, d admission.Decision) {
	c.add(fmt.Sprintf("admission %s %s", call, d.Answer))
}
func (c *counts) Panic() { c.add("panic") }

// runtimeVariable names the profile of the runtime behind the proxies of a process, containerd by default.
const runtimeVariable = "PULLGATE_TEST_RUNTIME"

// underTest returns that profile.
func underTest() criproxytest.Profile {
	for _, profile := range criproxytest.Profiles() {
		if profile.String() == os.Getenv(runtimeVariable) {
			return profile
		}
	}
	return criproxytest.Containerd
}

// A proxy is a complete proxy in process: a real store, the fake runtime as its backend, and clients.
type proxy struct {
	t       testing.TB
	runtime *criproxytest.Runtime
	options tracker.Options
	config  gate.Config
	dir     string
	key     credential.Key

	counts  *counts
	store   *records.Store
	tracker *tracker.Tracker
	gate    *gate.Gate
	server  *criproxy.Server
	up      *criproxy.Upstream
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	*criproxytest.Kubelet
}

// newProxy starts a proxy with the options and the switches of the test.
func newProxy(tb testing.TB, o tracker.Options, c gate.Config) *proxy {
	tb.Helper()
	dir := criproxytest.SocketDir(tb)
	p := &proxy{
		t: tb, runtime: criproxytest.NewRuntimeAs(tb, underTest()), options: o, config: c, dir: dir,
		key: credential.NewKey(),
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.Release = [2]string{"containerd", "2.1.0"} })
	p.start()
	tb.Cleanup(p.stop)
	return p
}

// newProxyOfAlice is newProxy for a node on which a pod of alice has pulled app, which the registry gives as id1 for
// the password good.
func newProxyOfAlice(tb testing.TB, o tracker.Options, c gate.Config) (p *proxy, alice *criproxytest.Pod) {
	tb.Helper()
	p = newProxy(tb, o, c)
	p.serves(app, "good", img(id1))
	alice = p.Pod("alice")
	p.MustPull(alice, app, "good")
	return p, alice
}

func (p *proxy) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// done is must for the results of a call.
func (p *proxy) done(_ any, err error) {
	p.t.Helper()
	p.must(err)
}

func (p *proxy) start() {
	p.t.Helper()
	var err error
	p.counts = &counts{}
	p.store, _, err = records.Open(filepath.Join(p.dir, "records.db"), records.Options{})
	p.must(err)
	p.up, err = criproxy.Dial(p.runtime.Endpoint())
	p.must(err)
	rt := gate.NewRuntime(p.up, p.up)
	p.tracker = tracker.New(p.store, p.key, rt, p.options)
	c := p.config
	c.Tracker, c.Pods, c.Runtime, c.Metrics = p.tracker, podindex.New(), rt, p.counts
	p.gate = gate.New(c)
	p.server = criproxy.New(criproxy.Config{
		Runtime: p.up, Image: p.up, Handlers: p.gate.Handlers(), Called: p.gate.Called, Metrics: p.counts,
		Log: klog.Logger{},
	})
	socket := filepath.Join(p.dir, "cri.sock")
	_ = os.Remove(socket)
	l := testkit.Value((&net.ListenConfig{}).Listen(p.t.Context(), "unix", socket))(p.t)
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
	p.Kubelet = criproxytest.NewKubelet(p.t, "unix://"+socket)
}

func (p *proxy) stop() {
	p.t.Helper()
	_ = p.Conn.Close() // also closed at the end of the test
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.server.Shutdown(ctx)
	p.gate.Wait()
	p.cancel()
	p.wg.Wait()
	p.must(errors.Join(p.up.Close(), p.store.Close()))
}

// restart restarts the daemon: the state in memory is lost.
func (p *proxy) restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

// journaled returns a logger, and a function that returns the lines with a text that it has logged.
func journaled(level int) (log klog.Logger, lines func(text string) []string) {
	var mu sync.Mutex
	var all []string
	log = funcr.NewJSON(func(line string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, line)
	}, funcr.Options{Verbosity: level})
	return log, func(text string) (found []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, line := range all {
			if strings.Contains(line, text) {
				found = append(found, line)
			}
		}
		return found
	}
}

// img returns an image with names.
func img(id string, names ...string) criproxytest.Image {
	return criproxytest.Image{ID: id, Names: names}
}

// restorePod asks for the restore of a pod.
func (p *proxy) restorePod(
	x *criproxytest.Pod, containers ...*runtimeapi.ContainerConfig,
) (*runtimeapi.RestorePodResponse, error) {
	request := &runtimeapi.RestorePodRequest{Config: x.Config, ContainerConfigs: containers}
	return p.Runtime.RestorePod(p.t.Context(), request)
}

// container returns the configuration of a container on an image ID that the pod names so.
func container(id, name string, mounts ...*runtimeapi.Mount) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Mounts: mounts,
		Image: &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name},
	}
}

// behind creates a container without the gate.
func (p *proxy) behind(x *criproxytest.Pod, id, name string) (containerID string) {
	p.t.Helper()
	made, err := criproxytest.Call[*runtimeapi.CreateContainerResponse](p.runtime,
		&runtimeapi.CreateContainerRequest{PodSandboxId: x.Sandbox, Config: container(id, name)})
	p.must(err)
	return made.GetContainerId()
}

// behindRemoved removes a container without the gate.
func (p *proxy) behindRemoved(id string) {
	p.t.Helper()
	_, err := criproxytest.Call[*runtimeapi.RemoveContainerResponse](p.runtime,
		&runtimeapi.RemoveContainerRequest{ContainerId: id})
	p.must(err)
}

// serves makes the registry return an image for a name to clients with the password.
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

// wantPrecheck reports a pre-check of a pod that is answered with another image ID; "" is the answer for an image that
// is hidden or absent.
func (p *proxy) wantPrecheck(x *criproxytest.Pod, name, want, what string, args ...any) {
	p.t.Helper()
	if got := p.Precheck(x, name); got != want {
		p.t.Errorf("%s = %q; want %q", fmt.Sprintf(what, args...), got, want)
	}
}

// wantCreate reports a creation of a container that ends with another code.
func (p *proxy) wantCreate(x *criproxytest.Pod, id, name string, want codes.Code, what string, args ...any) {
	p.t.Helper()
	p.ends(want, what, args...)(p.Create(p.t.Context(), x, id, name))
}

// wantPull reports a pull that is not answered with the image ID.
func (p *proxy) wantPull(x *criproxytest.Pod, name, password, want, what string, args ...any) {
	p.t.Helper()
	if id, err := p.Pull(p.t.Context(), x, name, password); id != want || err != nil {
		p.t.Errorf("%s = %q, %v; want %s", fmt.Sprintf(what, args...), id, err, want)
	}
}

// wantNoPull reports a pull that succeeds.
func (p *proxy) wantNoPull(x *criproxytest.Pod, name, password, what string) {
	p.t.Helper()
	if id, err := p.Pull(p.t.Context(), x, name, password); err == nil {
		p.t.Errorf("%s = %q; want it denied", what, id)
	}
}

// wantCounts reports other metrics.
func (p *proxy) wantCounts(want map[string]int) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.counts.get()); diff != "" {
		p.t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// createAndStart creates a container on an image ID that the pod names so, and starts it.
func (p *proxy) createAndStart(x *criproxytest.Pod, id, name string) error {
	container, err := p.Create(p.t.Context(), x, id, name)
	if err == nil {
		err = p.Start(p.t.Context(), container)
	}
	return err
}

// fails makes the runtime answer the calls of a method with an error; nil lets them succeed.
func (p *proxy) fails(method string, with error) {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Fail = func(called string) error {
			if called == method {
				return with
			}
			return nil
		}
	})
}

// wantNoContainers reports containers at the runtime.
func (p *proxy) wantNoContainers(why string, args ...any) {
	p.t.Helper()
	if got := p.runtime.Containers(); len(got) != 0 {
		p.t.Errorf("containers left: %v; want %s", got, fmt.Sprintf(why, args...))
	}
}

// wantCode reports an error with another code.
func (p *proxy) wantCode(err error, want codes.Code, what string, args ...any) {
	p.t.Helper()
	if status.Code(err) != want {
		p.t.Errorf("%s = %v; want %v", fmt.Sprintf(what, args...), err, want)
	}
}

// ends is wantCode for the results of a call.
func (p *proxy) ends(want codes.Code, what string, args ...any) func(any, error) {
	p.t.Helper()
	return func(_ any, err error) {
		p.t.Helper()
		p.wantCode(err, want, what, args...)
	}
}

// beforeAnswer calls f when the runtime has carried out a call of a method and has not answered it.
func (p *proxy) beforeAnswer(method string, f func()) {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.BeforeAnswer = func(called string) {
			if called == method {
				f()
			}
		}
	})
}

// restoring is exact, and allows restored containers.
func restoring() gate.Config {
	c := exact()
	c.AllowRestores = true
	return c
}

// exact is the configuration for a kubelet that sends no pre-check for Always.
func exact() gate.Config {
	return gate.Config{OutageFallback: true, AlwaysPrecheck: gate.AlwaysSkipped}
}

// copied copies the store's file, as a crash at this instant would leave it.
func (p *proxy) copied() string {
	p.t.Helper()
	data := testkit.Value(os.ReadFile(filepath.Join(p.dir, "records.db")))(p.t)
	path := filepath.Join(p.t.TempDir(), "records.db")
	p.must(os.WriteFile(path, data, 0o600))
	return path
}

// onDisk reads a copy of the store's file, as a crash at this instant would leave it.
func (p *proxy) onDisk() string {
	p.t.Helper()
	path := p.copied()
	s, report, err := records.Open(path, records.Options{})
	p.must(err)
	defer func() { p.must(s.Close()) }()
	if report.SetAside != "" {
		return "a damaged store"
	}
	stats := testkit.Value(s.Stats())(p.t)
	return fmt.Sprintf("%d intents, %d records", stats.Intents, stats.Records)
}
