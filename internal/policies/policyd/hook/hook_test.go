package hook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

// serve starts a hook on a Unix socket.
func serve(t *testing.T, handler http.HandlerFunc) policyfiles.Hook {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	s := httptest.NewUnstartedServer(handler)
	s.Listener = testkit.Value(net.Listen("unix", path))(t)
	s.Start()
	t.Cleanup(s.Close)
	return policyfiles.Hook{
		Name: "f/" + strings.ToLower(t.Name()), Socket: path, URL: "http://localhost/check", Timeout: time.Second,
	}
}

// answers returns a handler that answers with a response, to which it adds the UID.
func answers(change func(*admissionv1.AdmissionReview)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			panic(err)
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		change(&review)
		_ = json.NewEncoder(w).Encode(review)
	}
}

func allow(*admissionv1.AdmissionReview) {}

func deny(message string) func(*admissionv1.AdmissionReview) {
	return func(r *admissionv1.AdmissionReview) {
		r.Response.Allowed, r.Response.Result = false, &metav1.Status{Message: message}
	}
}

func clientsOf(t *testing.T, hooks ...policyfiles.Hook) []*hook.Client {
	t.Helper()
	var s hook.Set
	t.Cleanup(s.Close)
	replace(t, &s, hooks...)
	return s.Clients()
}

func replace(tb testing.TB, s *hook.Set, hooks ...policyfiles.Hook) {
	tb.Helper()
	s.Replace(testkit.Value(hook.Check(hooks))(tb))
}

func request(namespace string) hook.Request {
	return hook.Request{Admission: hook.Creation(admissionv1.AdmissionRequest{
		Namespace: namespace, Name: "p", Object: runtime.RawExtension{Raw: []byte(`{"kind":"Pod","metadata":{}}`)},
	})}
}

func ask(t *testing.T, hooks ...policyfiles.Hook) []policyfiles.HookAnswer {
	t.Helper()
	return testkit.Value(hook.Ask(t.Context(), clientsOf(t, hooks...), request("ns")))(t)
}

// Shows: 004-30
func TestHookIsAsked(t *testing.T) {
	seen := make(chan admissionv1.AdmissionReview, 1)
	h := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil || r.Method != http.MethodPost || r.URL.Path != "/check" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		seen <- review
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		answers(func(r *admissionv1.AdmissionReview) {
			r.Response.Warnings = []string{"w\n1"}
			r.Response.AuditAnnotations = map[string]string{"k y": "v\x1b[31m"}
		})(w, r)
	})
	got := ask(t, h)
	if len(got) != 1 || !got[0].Allowed || got[0].Failure != "" || got[0].Hook != h.Name {
		t.Fatalf("Ask() = %+v", got)
	}
	if w := got[0].Warnings; !slices.Equal(w, []string{"w 1"}) {
		t.Errorf("warnings %q", w)
	}
	if a := got[0].AuditAnnotations; len(a) != 1 || a["f.testhookisasked.k-y"] != "v [31m" {
		t.Errorf("audit annotations %q", a)
	}
	r := <-seen
	if r.APIVersion != "admission.k8s.io/v1" || r.Kind != "AdmissionReview" || r.Request == nil || r.Request.UID == "" ||
		r.Request.Operation != "CREATE" || r.Request.Kind.Kind != "Pod" || r.Request.Resource.Resource != "pods" ||
		r.Request.Namespace != "ns" || r.Request.Name != "p" {
		t.Errorf("the request is %+v", r.Request)
	}
}

// Shows: 004-30
func TestHookDenies(t *testing.T) {
	got := ask(t, serve(t, answers(deny("no\x1b[2J\u202e licence"+strings.Repeat("x", 4096)))))
	if len(got) != 1 || got[0].Allowed || got[0].Failure != "" {
		t.Fatalf("Ask() = %+v", got)
	}
	if m := got[0].Message; !strings.HasPrefix(m, "no [2J") || len(m) > 1024 || strings.ContainsFunc(m,
		func(r rune) bool {
			return !unicode.IsPrint(r)
		}) {
		t.Errorf("message %q", m)
	}
}

// Each of these is decided by the failure policy, in time.
// Shows: 004-12, 004-32
func TestHookFailures(t *testing.T) {
	jsonPatch := admissionv1.PatchTypeJSONPatch
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"another UID": {answers(func(r *admissionv1.AdmissionReview) { r.Response.UID = types.UID("x") }), "has the UID"},
		"no UID":      {answers(func(r *admissionv1.AdmissionReview) { r.Response.UID = "" }), "has the UID"},
		"a patch": {answers(func(r *admissionv1.AdmissionReview) {
			r.Response.Patch, r.Response.PatchType = []byte(`[]`), &jsonPatch
		}), "has a patch"},
		"no response": {answers(func(r *admissionv1.AdmissionReview) { r.Response = nil }), "has no response"},
		"another kind": {
			answers(func(r *admissionv1.AdmissionReview) { r.Kind = "ImageReview" }),
			"must be AdmissionReview",
		},
		"v1beta1": {
			answers(func(r *admissionv1.AdmissionReview) { r.APIVersion = "admission.k8s.io/v1beta1" }),
			"must be",
		},
		"garbage": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
			"not an AdmissionReview",
		},
		"other letters": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"Response":{"allowed":true}}`)
		}, "must be"},
		"empty": {func(http.ResponseWriter, *http.Request) {}, "without a body"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other", http.StatusFound)
		}, "status 302"},
		"error": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			"status 500",
		},
		"10 MB": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 10<<20)) // it fails when the client has read enough
		}, "more than 256 KiB"},
		"early close": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
			panic(http.ErrAbortHandler)
		}, "EOF"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, "timed out after 1s"},
		"hangs in the body": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "timed out after 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := serve(t, tc.handler)
			open := closed
			open.Name, open.FailOpen = "f/open", true
			begun := time.Now()
			got := ask(t, open)
			if len(got) != 1 || !got[0].Allowed || !strings.Contains(got[0].Failure, tc.want) {
				t.Errorf("with Ignore: %+v; want %s", got, tc.want)
			}
			got = ask(t, closed)
			if len(got) != 1 || got[0].Allowed || !strings.Contains(got[0].Failure, tc.want) {
				t.Errorf("with Fail: %+v; want %s", got, tc.want)
			}
			if took := time.Since(begun); took > 4*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestHookHasMatchConditions(t *testing.T) {
	h := serve(t, answers(deny("no")))
	h.Conditions = &requirement.Program{OnPods: true, Request: []string{"object", "namespace"}}
	for text, denied := range map[string]bool{
		"request.namespace == 'other'": false, "request.namespace == 'ns'": true, "object.kind == 'Pod'": true,
		"object.absent.field == 'x'": true, // it cannot be evaluated, so the hook is asked
	} {
		h.Conditions.Conditions = []requirement.Expression{{Text: text, At: "x"}}
		if got := ask(t, h); len(got) != 1 || got[0].Allowed == denied {
			t.Errorf("%s: %+v; want a denial %v", text, got, denied)
		}
	}
	// What is not known can be as the condition says.
	h.Conditions.Known = []string{"metadata.labels", "metadata.annotations", "spec.containers[*].image"}
	const labels, images = "has(object.metadata.labels)", "object.spec.containers.exists(c, c.image == 'a')"
	for _, tc := range []struct {
		text, unknown string
		denied        bool
	}{
		{labels, "metadata.labels", true},
		{labels, "metadata", true},
		{labels, "metadata.annotations,spec.tolerations", false},
		{images, "spec.containers,spec.containers[*].env", false},
		{images, "spec.containers,spec.containers[*].image", true},
		{images, "spec.containers,spec.initContainers,spec.initContainers[*].env", true}, // it is about an init container
		{images, "spec.container", false},
	} {
		h.Conditions.Conditions = []requirement.Expression{{Text: tc.text, At: "x"}}
		r := request("ns")
		r.Unknown = strings.Split(tc.unknown, ",")
		r.Admission.Object.Raw = []byte(`{"metadata":{},"spec":{"containers":[{"image":"b"}]}}`)
		got := testkit.Value(hook.Ask(t.Context(), clientsOf(t, h), r))(t)
		if len(got) != 1 || got[0].Allowed == tc.denied {
			t.Errorf("%s while %s is unknown: %+v; want a denial %v", tc.text, tc.unknown, got, tc.denied)
		}
	}
	h.Conditions.Conditions = []requirement.Expression{{Text: "request.nothing == 1", At: "webhooks[0]"}}
	if _, err := hook.Check(policyfiles.Hooks{h}); err == nil || !strings.Contains(err.Error(), "request has no nothing") {
		t.Errorf("Check() = %v", err)
	}
}

func TestHookIsAbsent(t *testing.T) {
	got := ask(t, policyfiles.Hook{Name: "f/a", Socket: "/nowhere/s", URL: "http://localhost/", Timeout: time.Second})
	if len(got) != 1 || got[0].Allowed || !strings.Contains(got[0].Failure, "/nowhere/s") {
		t.Errorf("Ask() = %+v", got)
	}
}

// Shows: 004-11, 004-31
func TestHooksAreAskedAtTheSameTime(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(500 * time.Millisecond)
		answers(allow)(w, r)
	}
	hooks := []policyfiles.Hook{serve(t, slow), serve(t, slow), serve(t, slow)}
	begun := time.Now()
	got := ask(t, hooks...)
	if took := time.Since(begun); len(got) != 3 || took > time.Second {
		t.Errorf("%d answers after %v", len(got), took)
	}
}

// Shows: 004-11
func TestDenialCancelsOthers(t *testing.T) {
	begun, canceled := make(chan struct{}), make(chan struct{})
	hangs := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(begun)
		<-r.Context().Done()
		close(canceled)
	})
	hangs.Timeout, hangs.FailOpen = 30*time.Second, true
	denies := serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-begun
		answers(deny("no"))(w, r)
	})
	got := ask(t, hangs, denies)
	<-canceled
	if len(got) != 1 || got[0].Allowed || got[0].Message != "no" {
		t.Errorf("Ask() = %+v; want only the denial", got)
	}
	denies.Audit = true
	hangs2 := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	if got := ask(t, hangs2, denies); len(got) != 2 {
		t.Errorf("Ask() = %+v; want both: the denial is only reported", got)
	}
}

func TestCallerLeaves(t *testing.T) {
	begun := make(chan struct{})
	h := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(begun)
		<-r.Context().Done()
	})
	h.Timeout, h.FailOpen = 30*time.Second, true
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	got := testkit.Value(hook.Ask(ctx, clientsOf(t, h), request("ns")))(t)
	if len(got) != 0 {
		t.Errorf("Ask() = %+v; want no answer", got)
	}
}

// A tenant whose pods make a hook slow must not deny, or with Ignore admit, the pods of others.
func TestCircuit(t *testing.T) {
	var asked atomic.Int64
	h := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"namespace":"slow"`) {
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		answers(allow)(w, r)
	})
	h.Timeout = 50 * time.Millisecond
	var s hook.Set
	t.Cleanup(s.Close)
	replace(t, &s, h)
	askAbout := func(namespace string) policyfiles.HookAnswer {
		return testkit.Value(hook.Ask(t.Context(), s.Clients(), request(namespace)))(t)[0]
	}
	for range 5 {
		if a := askAbout("slow"); a.Allowed || !strings.Contains(a.Failure, "timed out") {
			t.Fatalf("answer %+v", a)
		}
	}
	before := asked.Load()
	if a := askAbout("slow"); a.Allowed || !strings.Contains(a.Failure, "not asked for 30s") || asked.Load() != before {
		t.Errorf("answer %+v after %d requests; want none", a, asked.Load()-before)
	}
	if !s.Open()[h.Name] {
		t.Error("the circuit is not reported as open")
	}
	if a := askAbout("fast"); !a.Allowed || a.Failure != "" {
		t.Errorf("another namespace: %+v", a)
	}
	if s.Open()[h.Name] {
		t.Error("an answer does not close the circuit")
	}
	if a := askAbout("slow"); !strings.Contains(a.Failure, "timed out") {
		t.Errorf("after an answer to another namespace: %+v", a)
	}
}

// A namespace opens a circuit for itself alone, unless the hook answers nobody.
func TestCircuitOfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c hook.Circuit
		note := func(n int, namespace string) {
			for range n {
				c.Note(namespace, true)
			}
		}
		is := func(namespace string, want bool) {
			t.Helper()
			if c.Open(namespace) != want {
				t.Errorf("open for %s: %v", namespace, !want)
			}
		}
		note(4, "tenant")
		is("tenant", false)
		note(1, "tenant")
		note(1, "victim")
		is("tenant", true)
		is("victim", false)
		time.Sleep(20 * time.Second)
		note(5, "tenant-2")
		note(3, "victim")
		time.Sleep(11 * time.Second)
		is("tenant", false) // that of another namespace does not prolong it
		is("tenant-2", true)
		is("victim", false)
		note(1, "tenant")
		is("tenant", true) // at once after 30 s
		c.Note("other", false)
		for _, namespace := range []string{"tenant", "tenant-2", "victim"} {
			is(namespace, false)
		}
		for i := range 6 { // the hook is down
			note(1, fmt.Sprint("ns-", i))
			is(fmt.Sprint("ns-", i), false)
		}
		note(1, "ns-0")
		is("ns-0", true)
		is("ns-1", false)
		is("other", false)
	})
}

// What a circuit keeps is bounded. Namespaces that do not fit are asked, and change nothing for others.
func TestCircuitIsBounded(t *testing.T) {
	var c hook.Circuit
	for i := range 3000 {
		for range 2 {
			c.Note(fmt.Sprintf("ns-%d%s", i, strings.Repeat("x", 100)), true)
		}
	}
	if names, size := c.Kept(); names != 1024 || size > 1024*127 {
		t.Errorf("it has %d namespaces with %d bytes", names, size)
	}
	if !c.Open("ns-10"+strings.Repeat("x", 100)) || c.Open("ns-2000"+strings.Repeat("x", 100)) {
		t.Error("it must be open for a namespace that fits, and no other")
	}
}

// Requests take a part of one budget, in which a tenant with some namespaces leaves room for others.
func TestBudget(t *testing.T) {
	const mib = 1 << 20
	var b hook.Budget
	take := func(namespace string, size int, want bool) {
		t.Helper()
		if b.Take(namespace, size) != want {
			t.Errorf("%d bytes of %s: %v", size, namespace, !want)
		}
	}
	take("tenant", 7*mib, true)
	take("tenant", 2*mib, false) // 8 MiB for each
	for i := range 4 {
		take(fmt.Sprint("large-", i), 7*mib, true)
	}
	take("large-4", 7*mib, false) // all of them have 32 MiB, and 1 MiB each beside it
	take("large-4", 3*mib, true)
	take("large-4", 1, false)
	for i := range 26 {
		take(fmt.Sprint("small-", i), mib, true)
		take(fmt.Sprint("small-", i), 1, false)
	}
	take("last", 1, false) // 64 MiB
	b.Give("large-4", 3*mib)
	take("last", 2*mib, true)
	b.Give("last", 2*mib)
	b.Give("tenant", 7*mib)
	for i := range 26 {
		b.Give(fmt.Sprint("small-", i), mib)
	}
	for i := range 4 {
		b.Give(fmt.Sprint("large-", i), 7*mib)
	}
	if !b.Unused() {
		t.Errorf("after all requests it has %+v", &b)
	}
}

// All hooks share the budget. What does not fit is denied, with Ignore too, and gets no turn.
func TestHooksShareTheBudget(t *testing.T) {
	a, b := serve(t, answers(allow)), serve(t, answers(allow))
	a.Name, b.FailOpen, b.Timeout = "f/a", true, 10*time.Second
	clients := clientsOf(t, a, b)
	about := func(namespace string, size int) hook.Request {
		r := request(namespace)
		r.Admission.Object.Raw = []byte(`{"kind":"Pod","x":"` + strings.Repeat("x", size) + `"}`)
		return r
	}
	large := testkit.Value(hook.Prepare(t.Context(), clients[:1], about("tenant", 5<<20)))(t)
	got := testkit.Value(hook.Ask(t.Context(), clients[1:], about("tenant", 4<<20)))(t)
	if len(got) != 1 || got[0].Allowed || got[0].Failure != hook.ErrBusy.Error() {
		t.Errorf("with 9 MiB of a namespace: %+v", got)
	}
	got = testkit.Value(hook.Ask(t.Context(), clients[1:], about("tenant", 8<<20)))(t)
	if len(got) != 1 || got[0].Allowed || !strings.Contains(got[0].Failure, hook.ErrTooLarge.Error()) {
		t.Errorf("with 8 MiB in one request: %+v", got)
	}
	for _, namespace := range []string{"other", "tenant"} {
		got = testkit.Value(hook.Ask(t.Context(), clients[1:], about(namespace, 1<<20)))(t)
		if len(got) != 1 || !got[0].Allowed || got[0].Failure != "" {
			t.Errorf("%s: %+v", namespace, got)
		}
	}
	large.Ask(t.Context())
	invalid := request("ns")
	invalid.Admission.Object.Raw = []byte("{")
	if _, err := hook.Ask(t.Context(), clients, invalid); err == nil {
		t.Error("an object that is not JSON has no error")
	}
	if n := hook.Used(clients[0]); n != 0 {
		t.Errorf("after all requests %d bytes are in use", n)
	}
}

// A document with many values takes many times its size in memory: few are decoded at the same time, one of a tenant.
func TestConditionsAreEvaluatedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := policyfiles.Hook{Name: "f/a", Conditions: &requirement.Program{
			OnPods: true, Request: []string{"namespace"},
			Conditions: []requirement.Expression{{Text: "request.namespace == 'ns'", At: "x"}},
		}}
		clients := clientsOf(t, h)
		prepared := func(namespace string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := hook.Prepare(ctx, clients, request(namespace))
			return err
		}
		ends := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		for i, namespace := range []string{"a", "b"} {
			go hook.Evaluate(clients[0], admission.Tenant(t.Context(), namespace), ends[i])
		}
		synctest.Wait()
		before := hook.Used(clients[0])
		if err := prepared("c"); !errors.Is(err, context.DeadlineExceeded) || hook.Used(clients[0]) != before {
			t.Errorf("a third request: %v; %d bytes in use", err, hook.Used(clients[0]))
		}
		close(ends[1])
		synctest.Wait()
		if err := prepared("a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second request of a namespace: %v", err)
		}
		if err := prepared("c"); err != nil {
			t.Errorf("another namespace: %v", err)
		}
		close(ends[0])
	})
}

// Characters that mean something in HTML take no more bytes than in the object.
func TestSizeOfRequests(t *testing.T) {
	size := make(chan int, 1)
	h := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		size <- len(body)
	})
	r := request("ns")
	r.Admission.Object.Raw = []byte(`{"kind":"<` + strings.Repeat("<", 10_000) + `"}`)
	testkit.Value(hook.Ask(t.Context(), clientsOf(t, h), r))(t)
	if n := <-size; n > 12_000 {
		t.Errorf("the request has %d bytes", n)
	}
}

// A socket that another user can replace gets no pod.
func TestSocketOfAHook(t *testing.T) {
	h := serve(t, answers(allow))
	testkit.Must(t, os.Chmod(filepath.Dir(h.Socket), 0o777))
	if got := ask(t, h); len(got) != 1 || got[0].Allowed || !strings.Contains(got[0].Failure, "can replace the socket") {
		t.Errorf("Ask() = %+v", got)
	}
	testkit.Must(t, os.Chmod(filepath.Dir(h.Socket), 0o755))
}

// An API server waits as long as the hook may take, and the webhook answers before.
func TestCircuitOpensInAdmission(t *testing.T) {
	h := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	h.Timeout = 400 * time.Millisecond
	for limit, opens := range map[time.Duration]bool{400 * time.Millisecond: true, 100 * time.Millisecond: false} {
		clients := clientsOf(t, h)
		open := false
		for range 12 { // on a busy machine some are too late to count
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			a := testkit.Value(hook.Ask(ctx, clients, request("ns")))(t)[0]
			cancel()
			open = open || strings.Contains(a.Failure, "not asked")
		}
		if open != opens {
			t.Errorf("a caller that waits for %v: open %v; want %v", limit, open, opens)
		}
	}
}

// What a tenant can cause is denied with Ignore, too.
func TestHookRefusesForATenant(t *testing.T) {
	for status, denied := range map[int]bool{413: true, 431: true, 429: true, 400: false, 503: false} {
		h := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		h.FailOpen = true
		got := ask(t, h)
		if len(got) != 1 || got[0].Allowed == denied || !strings.Contains(got[0].Failure, fmt.Sprint("status ", status)) {
			t.Errorf("status %d: %+v; want a denial %v", status, got, denied)
		}
	}
}

// A hook chooses what its answer has: fields that are not used take no memory.
func TestUnusedFieldsOfAnswers(t *testing.T) {
	data := []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,` +
		`"status":{"message":"no","details":{"causes":[{"field":"x"}` + strings.Repeat(`,{"field":"x"}`, 10_000) + `]}}}}`)
	if n := testing.AllocsPerRun(5, func() { testkit.Must(t, hook.Decode(data, "u")) }); n > 100 {
		t.Errorf("%v allocations", n)
	}
}

// A panic in one request is one of the caller, who answers it with a denial.
func TestPanicReachesTheCaller(t *testing.T) {
	clients := clientsOf(t, serve(t, answers(allow)), serve(t, answers(allow)))
	r := request("ns")
	r.Observe = func(string, string, time.Duration) { panic("defect") }
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "defect") {
			t.Errorf("recovered %v", p)
		}
	}()
	_, _ = hook.Ask(t.Context(), clients, r)
	t.Error("Ask has returned")
}

// A namespace has eight turns; what waits does not delay others, and is denied whatever the failure policy is.
func TestNamespacesShareTheTurnsOfHooks(t *testing.T) {
	h := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"namespace":"many"`) {
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		answers(allow)(w, r)
	})
	h.FailOpen = true
	clients := clientsOf(t, h)
	results := make(chan policyfiles.HookAnswer, 40)
	for range 40 {
		go func() {
			got, _ := hook.Ask(t.Context(), clients, request("many"))
			results <- got[0]
		}()
	}
	time.Sleep(100 * time.Millisecond)
	begun := time.Now()
	got := testkit.Value(hook.Ask(t.Context(), clients, request("one")))(t)
	if took := time.Since(begun); !got[0].Allowed || got[0].Failure != "" || took > 500*time.Millisecond {
		t.Errorf("another namespace: %+v after %v", got, took)
	}
	open := 0
	for range 40 {
		if a := <-results; a.Allowed {
			open++
		} else if !strings.Contains(a.Failure, "too many requests") {
			t.Errorf("answer %+v", a)
		}
	}
	if open > 8 {
		t.Errorf("%d were admitted without an answer; at most the 8 that were sent may be", open)
	}
}

// Shows: 004-30
func TestHookOverTLS(t *testing.T) {
	ca := testkit.Value(testkit.NewAuthority("ca"))(t)
	server := testkit.Value(ca.Issue(pkix.Name{CommonName: "server"}, time.Now().Add(time.Hour)))(t)
	client := testkit.Value(ca.Issue(pkix.Name{CommonName: "node-1"}, time.Now().Add(time.Hour)))(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "node-1" {
			t.Errorf("client certificate of %s", name)
		}
		answers(allow)(w, r)
	}))
	pair := testkit.Value(tls.X509KeyPair(server.Certificate, server.Key))(t)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	h := policyfiles.Hook{
		Name: "f/a", File: "f.yaml", URL: s.URL, CABundle: string(ca.PEM()), Certificate: dir, Timeout: 5 * time.Second,
	}
	if _, err := hook.Check(policyfiles.Hooks{h}); err == nil || !strings.Contains(err.Error(), "tls.crt") ||
		!strings.Contains(err.Error(), "f.yaml: client certificate of hook f/a") {
		t.Errorf("Check without a client certificate = %v", err)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), client.Certificate, 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "tls.key"), client.Key, 0o600))
	if got := ask(t, h); !got[0].Allowed || got[0].Failure != "" {
		t.Errorf("Ask() = %+v", got)
	}
	// what was checked can be used, whatever happens to the files
	checked := testkit.Value(hook.Check(policyfiles.Hooks{h}))(t)
	testkit.Must(t, os.Rename(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "old")))
	var set hook.Set
	t.Cleanup(set.Close)
	set.Replace(checked)
	if got := testkit.Value(hook.Ask(t.Context(), set.Clients(), request("ns")))(t); len(got) != 1 || !got[0].Allowed {
		t.Errorf("without the file that was checked: Ask() = %+v", got)
	}
	testkit.Must(t, os.Rename(filepath.Join(dir, "old"), filepath.Join(dir, "tls.crt")))
	h.CABundle = ""
	if got := ask(t, h); got[0].Allowed || !strings.Contains(got[0].Failure, "certificate") {
		t.Errorf("with another authority: %+v", got)
	}
}

// A removed hook can be asked by calls that began before, and an unchanged one keeps its circuit.
func TestReplaceKeepsHooks(t *testing.T) {
	h, other := serve(t, answers(allow)), serve(t, answers(allow))
	other.Name = "f/other"
	var s hook.Set
	t.Cleanup(s.Close)
	replace(t, &s, h, other)
	before := s.Clients()
	replace(t, &s, other)
	if after := s.Clients(); len(after) != 1 || after[0] != before[1] {
		t.Error("an unchanged hook has another client")
	}
	if got := testkit.Value(hook.Ask(t.Context(), before, request("ns")))(t); len(got) != 2 || !got[0].Allowed {
		t.Errorf("Ask() = %+v", got)
	}
}

func BenchmarkAsk(b *testing.B) {
	path := filepath.Join(b.TempDir(), "s")
	s := httptest.NewUnstartedServer(answers(allow))
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	s.Listener = l
	s.Start()
	defer s.Close()
	var set hook.Set
	defer set.Close()
	replace(b, &set, policyfiles.Hook{Name: "f/a", Socket: path, URL: "http://localhost/", Timeout: time.Second})
	for b.Loop() {
		if got, err := hook.Ask(b.Context(), set.Clients(), request("ns")); err != nil || !got[0].Allowed {
			b.Fatal(fmt.Sprint(got, err))
		}
	}
}
