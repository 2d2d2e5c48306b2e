package podsource_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// apiserver answers as a kube-apiserver does for the kubelet of one node, and as the test sets it.
type apiserver struct {
	mu       sync.Mutex
	version  int
	pods     map[string]*corev1.Pod
	secrets  map[string]*corev1.Secret
	accounts map[string]string // UIDs of service accounts, by namespace and name
	watchers map[chan event]struct{}
	user     string // the answer to a review
	// refuse is called before each request; a status other than 0 is the answer.
	refuse func(r *http.Request) int
	seen   []string // requests, "GET /api/v1/…"
	broken string   // the answer for a Secret called broken
	events []*corev1.Event
	node   *corev1.Node // nil: there is none
	merges int          // how often its status was patched

	reports      bool // whether NodeReports are defined
	report       *api.NodeReport
	reportWrites int
	patched      string // the last patch of the report
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func newAPIServer() *apiserver {
	return &apiserver{
		accounts: map[string]string{}, version: 1, pods: map[string]*corev1.Pod{},
		secrets: map[string]*corev1.Secret{}, watchers: map[chan event]struct{}{},
		refuse: func(*http.Request) int { return 0 },
	}
}

func (a *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.seen = append(a.seen, r.Method+" "+r.URL.Path)
	refuse := a.refuse
	a.mu.Unlock()
	if code := refuse(r); code != 0 {
		answer(w, code, status(code))
		return
	}
	switch path := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); {
	case r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("fieldSelector") != "spec.nodeName=node-1":
		answer(w, 403, status(403))
	case r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("watch") == "true":
		a.watch(w, r)
	case r.URL.Path == "/api/v1/pods":
		a.list(w)
	case len(path) == 6 && path[2] == "namespaces" && path[4] == "secrets":
		a.secret(w, path[3]+"/"+path[5])
	case r.Method == http.MethodPost && len(path) == 5 && path[4] == "events":
		a.event(w, r, path[3])
	case len(path) == 6 && path[2] == "namespaces" && path[4] == "serviceaccounts":
		a.serviceAccount(w, path[3], path[5])
	case r.Method == http.MethodPost && r.URL.Path == "/apis/authentication.k8s.io/v1/selfsubjectreviews" && a.user != "":
		answer(w, 201, map[string]any{
			"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
			"status": map[string]any{"userInfo": map[string]string{"username": a.user}},
		})
	case r.URL.Path == "/api/v1/nodes/node-1", r.URL.Path == "/api/v1/nodes/node-1/status":
		a.nodeStatus(w, r)
	case r.URL.Path == group:
		a.resources(w)
	case strings.HasPrefix(r.URL.Path, reports):
		a.nodeReport(w, r)
	default:
		answer(w, 404, status(404))
	}
}

func (a *apiserver) definesReports(yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reports = yes
}

// resources lists those of the group, which has others than NodeReports in any case.
func (a *apiserver) resources(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "rollouts"}}}
	if a.reports {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: "nodereports"})
	}
	answer(w, 200, list)
}

// nodeReport creates the report, or merges a patch into it, as for a custom resource.
func (a *apiserver) nodeReport(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	next, content := &api.NodeReport{}, r.Header.Get("Content-Type")
	switch {
	case !a.reports:
		answer(w, 404, status(404))
		return
	case r.Method == http.MethodPost && r.URL.Path == reports && content == "application/json":
		err = errors.Join(err, json.Unmarshal(body, next))
	case r.Method == http.MethodPatch && r.URL.Path == reports+"/node-1" && content == string(types.MergePatchType):
		if a.report == nil {
			answer(w, 404, status(404))
			return
		}
		a.patched = string(body)
		before, merged := json.Marshal(a.report)
		if err = errors.Join(err, merged); err == nil {
			body, err = jsonpatch.MergePatch(before, body)
		}
		err = errors.Join(err, json.Unmarshal(body, next))
	default:
		err = errors.New("another request")
	}
	if err != nil {
		answer(w, 400, status(400))
		return
	}
	a.report = next
	a.reportWrites++
	answer(w, 200, next)
}

// nodeStatus gets the node, or merges a patch into its status.
func (a *apiserver) nodeStatus(w http.ResponseWriter, r *http.Request) {
	patch, err := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil || a.node == nil:
		answer(w, 404, status(404))
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.StrategicMergePatchType):
		before, err := json.Marshal(a.node)
		if err == nil {
			patch, err = strategicpatch.StrategicMergePatch(before, patch, corev1.Node{})
		}
		if err == nil {
			a.node = &corev1.Node{}
			err = json.Unmarshal(patch, a.node)
		}
		if err != nil {
			answer(w, 400, status(400))
			return
		}
		a.merges++
		fallthrough
	default:
		answer(w, 200, a.node)
	}
}

// condition returns a condition of the node, the zero value if it has none, and the number of writes.
func (a *apiserver) condition(kind corev1.NodeConditionType) (corev1.NodeCondition, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.node != nil {
		for _, c := range a.node.Status.Conditions {
			if c.Type == kind {
				return c, a.merges
			}
		}
	}
	return corev1.NodeCondition{}, a.merges
}

// register makes the node, with these conditions and Ready.
func (a *apiserver) register(conditions ...corev1.NodeCondition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	a.node.Name, a.node.UID = "node-1", "uid-1"
	a.node.Status.Conditions = append(conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: "True"})
}

func (a *apiserver) event(w http.ResponseWriter, r *http.Request, namespace string) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		e := &corev1.Event{}
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, e)
		if err == nil && e.Namespace == namespace && e.InvolvedObject.Namespace == namespace {
			a.mu.Lock()
			a.events = append(a.events, e)
			a.mu.Unlock()
			answer(w, 201, e)
			return
		}
	}
	answer(w, 400, status(400))
}

func (a *apiserver) sent() []*corev1.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.events)
}

func (a *apiserver) list(w http.ResponseWriter) {
	a.mu.Lock()
	l := corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)},
	}
	for _, name := range slices.Sorted(maps.Keys(a.pods)) {
		l.Items = append(l.Items, *a.pods[name])
	}
	a.mu.Unlock()
	answer(w, 200, l)
}

func (a *apiserver) secret(w http.ResponseWriter, name string) {
	a.mu.Lock()
	s := a.secrets[name]
	broken := a.broken
	a.mu.Unlock()
	if broken != "" && strings.HasSuffix(name, "/broken") {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(broken))
		return
	}
	if s == nil {
		answer(w, 404, status(404))
		return
	}
	answer(w, 200, s)
}

func (a *apiserver) serviceAccount(w http.ResponseWriter, namespace, name string) {
	a.mu.Lock()
	uid := a.accounts[namespace+"/"+name]
	a.mu.Unlock()
	if uid == "" {
		answer(w, 404, status(404))
		return
	}
	answer(w, 200, corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)},
	})
}

// account creates a service account, or deletes it if there is no UID.
func (a *apiserver) account(name, uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accounts[name] = uid
}

func (a *apiserver) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan event, 1000)
	a.mu.Lock()
	a.watchers[events] = struct{}{}
	behind := r.URL.Query().Get("resourceVersion") != strconv.Itoa(a.version)
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, events)
		a.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).Flush()
	if behind {
		events <- event{"ERROR", status(410)}
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			_ = json.NewEncoder(w).Encode(e)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func status(code int) metav1.Status {
	reasons := map[int]metav1.StatusReason{
		401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired",
		500: "InternalError", 503: "ServiceUnavailable",
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure",
		Reason: reasons[code], Code: int32(code),
	}
}

// change changes the state of the server and sends the event to the watches.
func (a *apiserver) change(kind string, p *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.ResourceVersion = strconv.Itoa(a.version)
	if kind == "DELETED" {
		delete(a.pods, p.Namespace+"/"+p.Name)
	} else {
		a.pods[p.Namespace+"/"+p.Name] = p
	}
	a.sendLocked(event{kind, p})
}

func (a *apiserver) sendLocked(e event) {
	for w := range a.watchers {
		w <- e
	}
}

// send sends an event without a pod.
func (a *apiserver) send(e event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sendLocked(e)
}

// hangUp ends all watches.
func (a *apiserver) hangUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watchers {
		close(w)
		delete(a.watchers, w)
	}
}

func (a *apiserver) put(s *corev1.Secret) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	s = s.DeepCopy()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
	s.ResourceVersion = strconv.Itoa(a.version)
	a.secrets[s.Namespace+"/"+s.Name] = s
}

func (a *apiserver) remove(secret string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.secrets, secret)
}

func (a *apiserver) refusing(f func(r *http.Request) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = f
}

// requests returns how many requests have been made for a path, whatever the query.
func (a *apiserver) requests(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, s := range a.seen {
		if strings.HasSuffix(s, path) {
			n++
		}
	}
	return n
}

// serve serves on a network until end is called, which returns when all goroutines of the bubble are blocked.
func (a *apiserver) serve() (n *network, end func()) {
	n = newNetwork()
	server := httptest.NewUnstartedServer(a)
	server.Listener = n
	server.Start()
	return n, func() {
		a.hangUp()
		server.Close()
		n.cut(true)
		synctest.Wait()
	}
}

// network is a listener whose connections are pipes, so that a test in a bubble can wait until all goroutines are
// blocked.
type network struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	down   bool
	conns  []net.Conn
}

func newNetwork() *network {
	return &network{accept: make(chan net.Conn), closed: make(chan struct{})}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 6443} }

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("connection refused")}
	}
	ours, theirs := net.Pipe()
	select {
	case n.accept <- theirs:
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	n.conns = append(n.conns, theirs)
	n.mu.Unlock()
	return ours, nil
}

// cut ends all connections and, with down, allows no new ones.
func (n *network) cut(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

// world is a running source with an API server, in a bubble.
type world struct {
	*testing.T
	api     *apiserver
	net     *network
	options podsource.Options
	source  *podsource.Source
	key     credential.Key
	mu      sync.Mutex
	reasons map[podsource.Reason]int
	became  map[string]int // Events
	stop    func()
	log     klog.Logger

	accounts atomic.Bool                         // service accounts are needed
	state    atomic.Pointer[podsource.Condition] // of the node; nil: not known
	report   atomic.Pointer[api.Report]          // of the node; nil: there is none
}

// inWorld runs a test in a bubble. The source starts when the test calls start.
func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			T: t, api: newAPIServer(), key: credential.NewKey(), reasons: map[podsource.Reason]int{}, became: map[string]int{},
			stop: func() {},
			log:  ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true))),
		}
		var end func()
		w.net, end = w.api.serve()
		o := podsource.Options{
			Kubeconfig: kubeconfig(t, "http://10.0.0.1:6443", nil), NodeName: "node-1", Key: w.key,
			Accounts: w.accounts.Load,
			Failed: func(r podsource.Reason) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.reasons[r]++
			},
			Sent: func(outcome string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.became[outcome]++
			},
			Condition: func(context.Context) (podsource.Condition, bool) {
				if state := w.state.Load(); state != nil {
					return *state, true
				}
				return podsource.Condition{}, false
			},
			Report: func() (r api.Report, known bool) {
				if now := w.report.Load(); now != nil {
					r, known = *now, true
					r.Heartbeat = metav1.Now()
				}
				return r, known
			},
			ConditionWritten: func(outcome string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.became[outcome]++
			},
		}
		o.Dial(w.net.dial)
		w.options = o
		w.renew()
		f(w)
		w.stop()
		end()
	})
}

// renew ends the source, if it runs, and makes a new one, as a restart of pullgated does.
func (w *world) renew() {
	w.Helper()
	w.stop()
	w.stop = func() {}
	w.source = testkit.Value(podsource.New(w.options))(w)
}

// startWithPull starts the source with a pod u1 whose pull secret has a credential for repo.test.
func (w *world) startWithPull() {
	w.Helper()
	w.api.put(secret("pull", "s1", "repo.test"))
	w.api.change("ADDED", pod("web", "u1", app, "pull"))
	w.start()
}

// start runs the source until the test ends, and returns when all goroutines are blocked.
func (w *world) start() {
	w.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(w.Context(), w.log))
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run = %v; want nil", err)
		}
	}
	synctest.Wait()
}

// pass lets the duration pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d) // in the bubble: the clock moves when all goroutines are blocked
	synctest.Wait()
}

func (w *world) failed(r podsource.Reason) int {
	synctest.Wait() // a failure is counted after it is known to those who wait for it
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reasons[r]
}

// kubeconfig writes a kubeconfig.
func kubeconfig(tb testing.TB, server string, user map[string]any) string {
	tb.Helper()
	if user == nil {
		user = map[string]any{"token": "t"}
	}
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": server}}},
		"users":    []any{map[string]any{"name": "u", "user": user}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// pod makes a pod with one container.
func pod(name, uid, image string, secrets ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: name, UID: types.UID(uid), Annotations: map[string]string{"app": name},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: "IfNotPresent"}},
		},
	}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

// secret makes a pull secret. The user of each entry has the name of its registry.
func secret(name, uid string, keys ...string) *corev1.Secret {
	auths := map[string]any{}
	for _, k := range keys {
		auths[k] = map[string]string{"username": k, "password": uid}
	}
	data, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		panic(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)},
		Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
	}
}

// id is the ID of the credential that secret makes for a registry.
func (w *world) id(registry, uid string) credential.ID {
	return w.key.ID(credential.New(credential.Login{Username: registry, Password: uid}))
}
