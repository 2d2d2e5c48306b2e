package gate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A modelSecret is the content of a Secret.
type modelSecret struct {
	uid      string
	password string
}

// A modelPod is one pod on the node.
type modelPod struct {
	slot
	at      int // index in slots
	uid     string
	seen    string
	sandbox string

	mu    sync.Mutex      // guards names
	names map[string]bool // that it has asked for; its spec has them
}

// asksFor adds a name to the pod's spec.
func (p *modelPod) asksFor(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names[name] = true
}

func (p *modelPod) specNames() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.names)
}

// A process is one run of pullgated.
type process struct {
	store   *records.Store
	tracker *tracker.Tracker
	gate    *gate.Gate
	conn    *modelConn
	up      *criproxy.Upstream
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// A waitingCall is a call that has not been answered.
type waitingCall struct {
	*interruption
	cancel context.CancelFunc
	done   atomic.Bool
	finish func() // judges the answer
}

// A modelWorld is one node from its first start, and its users. It runs in a synctest bubble: time passes only when an
// operation waits, and every goroutine that can continue does so before the next operation begins.
type modelWorld struct {
	setting
	path    string
	key     credential.Key
	runtime *modelRuntime
	truth   *truth
	notary  *modelNotary
	counts  map[string]int // number of events, by kind

	*process
	pods      [6]*modelPod
	secrets   map[string][2]*modelSecret // by namespace
	good      map[string][]string        // good passwords of a tenant, the newest last
	passwords int
	accounts  map[string]*modelAccount // by namespace
	givenMu   sync.Mutex
	given     map[string]given // by token, since the start of the process
	uids      int
	waiting   []*waitingCall
	scanned   bool
	failure   string
}

func newModelWorld(s setting, path string) *modelWorld {
	t := newTruth()
	w := &modelWorld{
		setting: s, path: path, key: credential.NewKey(), truth: t, runtime: newModelRuntime(s.kind, t),
		counts:  map[string]int{},
		secrets: map[string][2]*modelSecret{}, good: map[string][]string{"alice": {"a0"}, "bob": {"b0"}},
	}
	w.notary = newModelNotary(w)
	t.exempt, t.validity, t.grace = s.exempt, s.validity, s.grace
	for _, ns := range []string{"alice", "bob"} {
		w.secrets[ns] = [2]*modelSecret{{uid: "u0-" + ns, password: ns[:1] + "0"}, {uid: "u1-" + ns, password: ns[:1] + "0"}}
	}
	w.accounts, w.given = map[string]*modelAccount{"alice": {uid: "alice-0"}, "bob": {uid: "bob-0"}}, map[string]given{}
	w.give("alice")
	w.give("bob")
	w.truth.mode = policy.Mode(s.policy)
	return w
}

func (w *modelWorld) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
	}
}

func (w *modelWorld) must(err error) {
	if err != nil {
		w.fail("model: %v", err)
	}
}

// run runs a world and returns the failure, "" if there is none.
func (w *modelWorld) run(ops []op) string {
	defer func() {
		for _, suffix := range []string{"", ".access", ".lend"} {
			_ = os.Remove(w.path + suffix)
		}
	}()
	for len(ops) > 0 && ops[0].kind == opImportFirst {
		w.apply(ops[0])
		ops = ops[1:]
	}
	w.start()
	w.sync()
	for i := range ops {
		if w.failure != "" {
			break
		}
		time.Sleep(ops[i].gap)
		w.apply(ops[i])
		w.settle()
	}
	failure := w.failure
	w.kill()
	time.Sleep(time.Minute) // calls of the killed process may wait for their turn to list images
	rest()
	return failure
}

func (w *modelWorld) rules() tracker.Rules {
	var allowlist []string
	if w.truth.mode == policy.ModeNeverVerifyAllowlistedImages {
		allowlist = []string{"docker.io/library/*"}
	}
	p, err := policy.New(string(w.truth.mode), allowlist)
	w.must(err)
	r := tracker.Rules{Policy: p, Validity: w.validity, Grace: w.grace, NodeNamespaces: w.truth.node}
	if w.exempt {
		r.ExemptStaticPods, r.ExemptNamespaces = true, []string{systemNamespace}
	}
	return r
}

// start starts pullgated, which opens its store in the state after a crash or a stop.
func (w *modelWorld) start() {
	first := w.process == nil
	store, _, openErr := records.Open(w.path, records.Options{KeyExists: !first})
	w.must(openErr)
	if openErr != nil {
		return
	}
	if !first {
		w.givenMu.Lock()
		clear(w.given)
		w.givenMu.Unlock()
	}
	p := &process{store: store, conn: &modelConn{runtime: w.runtime, broken: make(chan struct{})}}
	up, err := criproxy.Dial("unix:///never-dialled", grpc.WithUnaryInterceptor(p.conn.intercept))
	w.must(err)
	p.up = up
	rt := gate.NewRuntime(p.up, p.up)
	offered := w.key.ID(credential.New(credential.Login{Username: "tenant", Password: operatorPassword}))
	p.tracker = tracker.New(store, w.key, rt, tracker.Options{
		Rules: w.rules(), VerifyUntracked: w.verify, AccountsOf: w.accountsOf,
		NodeOffers: func(repository string, id credential.ID) bool {
			return repository == repositoryOf(systemImage) && id == offered
		},
		NodeHolds: func(_ context.Context, id credential.ID) bool { return id == offered },
	})
	always := gate.AlwaysSent
	if w.skips {
		always = gate.AlwaysSkipped
	}
	config := gate.Config{
		Tracker: p.tracker, Pods: podindex.New(), Runtime: rt, Metrics: &counts{}, Log: klog.Logger{},
		OutageFallback: w.fallback, AlwaysPrecheck: always,
	}
	if w.podSource {
		config.PodSource = modelSource{w}
	}
	p.gate = gate.New(config)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Go(func() { p.tracker.Run(ctx) })
	w.process = p
	if w.signatures {
		w.notary.begin()
	}
}

// sync does what pullgated does when it has reached the runtime.
func (w *modelWorld) sync() {
	if w.process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := w.gate.Sync(ctx)
	if len(w.waiting) > 0 && status.Code(err) == codes.DeadlineExceeded {
		return // it shares a list that another call waits for; the daemon tries again later
	}
	w.must(err)
	w.scanned = true
}

// kill ends pullgated at once. Its calls end; the runtime may continue them.
func (w *modelWorld) kill() {
	if w.process == nil {
		return
	}
	err := errors.Join(w.store.Close(), w.up.Close()) // from now on its writes have no effect
	close(w.conn.broken)
	w.process.cancel()
	for _, c := range w.waiting {
		c.cancel()
	}
	w.waiting = nil
	w.process.wg.Wait()
	rest()
	w.must(err)
}

// stop stops pullgated in an orderly way and returns the handover.
func (w *modelWorld) stop() []byte {
	for _, c := range w.waiting {
		c.cancel()
	}
	w.settle()
	w.process.cancel()
	w.process.wg.Wait()
	close(w.conn.broken)
	w.settle()
	w.gate.Wait()
	data, err := w.tracker.HandOver()
	w.must(errors.Join(err, w.store.Close(), w.up.Close()))
	return data
}

// rest lets all goroutines continue that wait only for calls of the runtime, each of which takes a moment.
func rest() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// settle lets all goroutines continue that can, and judges the answers that have arrived.
func (w *modelWorld) settle() {
	if len(w.waiting) == 0 {
		return
	}
	rest()
	for _, c := range slices.Clone(w.waiting) {
		if c.done.Load() {
			c.cancel()
			w.waiting = slices.DeleteFunc(w.waiting, func(x *waitingCall) bool { return x == c })
			c.finish()
		}
	}
}

// pod returns the pod of a slot, and creates one if there is none.
func (w *modelWorld) pod(at uint8) *modelPod {
	if p := w.pods[at]; p != nil {
		return p
	}
	p := w.newPod(at)
	var resp runtimeapi.RunPodSandboxResponse
	if err := w.call(context.Background(), runtimeapi.RuntimeService_RunPodSandbox_FullMethodName,
		&runtimeapi.RunPodSandboxRequest{Config: p.config()}, &resp); err != nil {
		w.fail("model: RunPodSandbox of %s: %v", p.who, err)
	}
	p.sandbox = resp.GetPodSandboxId()
	return p
}

func (w *modelWorld) newPod(at uint8) *modelPod {
	w.uids++
	uid := fmt.Sprintf("%s-%d", slots[at].who, w.uids)
	p := &modelPod{slot: slots[at], at: int(at), uid: uid, seen: "2026-11-21T05:00:00." + uid, names: map[string]bool{}}
	w.pods[at] = p
	return p
}

func (p *modelPod) annotations() map[string]string {
	return map[string]string{podindex.SeenAnnotation: p.seen, podindex.SourceAnnotation: p.source}
}

func (p *modelPod) config() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Uid: p.uid, Namespace: p.namespace, Name: p.who},
		Annotations: p.annotations(),
	}
}

func (w *modelWorld) endPod(at uint8) {
	p := w.pods[at]
	if p == nil {
		return
	}
	w.pods[at] = nil
	w.must(w.call(context.Background(), runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName,
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox}, &runtimeapi.RemovePodSandboxResponse{}))
	delete(w.truth.grants, p.uid)
}

func (w *modelWorld) call(ctx context.Context, method string, req, resp proto.Message) error {
	return w.gate.CallForTest(ctx, w.up, method, req, resp)
}

// interrupted makes a call that may be interrupted. Its answer is judged when it arrives.
func (w *modelWorld) interrupted(x *interruption, call func(ctx context.Context), finish func()) {
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), interruptionKey{}, x))
	if x.how != waitBefore && x.how != waitAfter {
		// A pull may wait for an equal one that waits for the runtime.
		slow := time.AfterFunc(time.Minute, func() {
			for i := range w.waiting {
				w.release(i)
			}
		})
		call(ctx)
		if !slow.Stop() {
			w.counts["call waited for a slow one"]++
		}
		cancel()
		finish()
		return
	}
	x.release = make(chan struct{})
	c := &waitingCall{interruption: x, cancel: cancel, finish: finish}
	w.waiting = append(w.waiting, c)
	go func() {
		call(ctx)
		c.done.Store(true)
	}()
	w.settle()
}

// release lets a slow call continue, if it has reached the runtime.
func (w *modelWorld) release(i int) {
	if i < len(w.waiting) && w.waiting[i].interruption.waiting.Swap(false) {
		close(w.waiting[i].release)
	}
}

// modelSource is the pod source of a world.
type modelSource struct{ w *modelWorld }

func (s modelSource) byUID(uid string) *modelPod {
	for _, p := range s.w.pods {
		if p != nil && p.uid == uid {
			return p
		}
	}
	return nil
}

func (s modelSource) PullPolicies(uid string, name imageref.Ref) ([]string, bool) {
	p := s.byUID(uid)
	if p == nil || p.at >= len(s.w.pullPolicy) || !p.specNames()[name.String()] {
		return nil, p != nil
	}
	return []string{s.w.pullPolicy[p.at]}, true
}

func (s modelSource) Secrets(_ context.Context, uid string, _ imageref.Ref) (all []tracker.Secret, complete bool) {
	p := s.byUID(uid)
	if g, ok := s.w.account(p); ok {
		account, _ := tracker.OfAccount(s.w.key, g.namespace, accountName, g.uid)
		all = append(all, account)
	}
	for _, h := range s.w.held(p) {
		all = append(all, tracker.Secret{
			Ref: h.ref, Credential: s.w.key.ID(credential.New(credential.Login{Username: "tenant", Password: h.password})),
		})
	}
	return all, true
}

func (modelSource) ServiceAccount(context.Context, string, string) string { return "" }

func (modelSource) Candidates(map[string]string, imageref.Ref) ([]string, bool) { return nil, false }

func modelPath(dir string, worker int) string {
	return filepath.Join(dir, fmt.Sprintf("%d.db", worker))
}

func modelDir() (string, error) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		return os.MkdirTemp("/dev/shm", "pullgate-model-")
	}
	return os.MkdirTemp("", "pullgate-model-")
}

// modelRepositories returns the repositories of all names that are not image IDs.
func modelRepositories() (all []string) {
	for _, name := range modelNames[:len(modelNames)-idNames] {
		if r := repositoryOf(name); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

func isID(name string) bool { return strings.HasPrefix(name, "sha256:") }
