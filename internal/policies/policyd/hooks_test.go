package policyd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// hook starts a hook on a socket of the process. message is that of its denial; "" allows.
func (p *process) hook(name string, message func(*admissionv1.AdmissionRequest) string) {
	p.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			panic(http.ErrAbortHandler)
		}
		text := message(review.Request)
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: text == "", Result: &metav1.Status{Message: text},
			AuditAnnotations: map[string]string{"seen": "yes"},
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	s.Listener = testkit.Value(net.Listen("unix", p.path(name+".sock")))(p)
	s.Start()
	p.Cleanup(s.Close)
}

// hookFile returns a policy file with a hook of each name.
func (p *process) hookFile(file string, names ...string) string {
	text := "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: " + file +
		"}\nwebhooks:\n"
	for _, name := range names {
		text += fmt.Sprintf("- {name: %s, admissionReviewVersions: [v1], clientConfig: {url: 'unix://%s'}, "+
			"sideEffects: None, rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}\n", name,
			p.path(name+".sock"))
	}
	return text
}

func (p *process) admit(names ...string) policyclient.AdmitRequest {
	return policyclient.AdmitRequest{
		PolicyHash: p.hash(), Namespace: "team", Name: "web", Node: "node-1", Hooks: names,
		Pod: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}`),
	}
}

// Shows: 004-30
func TestHooksAreAsked(t *testing.T) {
	p := prepare(t)
	seen := make(chan *admissionv1.AdmissionRequest, 2)
	p.hook("allows", func(r *admissionv1.AdmissionRequest) string { seen <- r; return "" })
	p.hook("denies", func(*admissionv1.AdmissionRequest) string { return "no licence" })
	p.write("policies/hooks.yaml", p.hookFile("f", "allows", "denies", "absent"))
	p.start()
	got := testkit.Value(p.client().Admit(t.Context(), p.admit("f/allows")))(t)
	if len(got) != 1 || !got[0].Allowed || got[0].AuditAnnotations["f.allows.seen"] != "yes" || got[0].Took == 0 {
		t.Errorf("allows: %+v", got)
	}
	r := <-seen
	if r.UserInfo.Username != "system:node:node-1" || fmt.Sprint(r.UserInfo.Groups) != "[system:nodes]" ||
		r.DryRun == nil || *r.DryRun || r.UID == "" || r.Operation != admissionv1.Create || len(r.Object.Raw) == 0 {
		t.Errorf("the request is %+v", r)
	}
	got = testkit.Value(p.client().Admit(t.Context(), p.admit("f/denies")))(t)
	if len(got) != 1 || got[0].Allowed || got[0].Message != "no licence" || got[0].Failure != "" {
		t.Errorf("denies: %+v", got)
	}
	got = testkit.Value(p.client().Admit(t.Context(), p.admit("f/absent")))(t)
	if len(got) != 1 || got[0].Allowed || !strings.Contains(got[0].Failure, "absent.sock") {
		t.Errorf("absent: %+v", got)
	}
	for _, line := range []string{
		`pullgate_policyd_hook_requests_total{hook="f/allows",outcome="allowed"} 1`,
		`pullgate_policyd_hook_requests_total{hook="f/denies",outcome="denied"} 1`,
		`pullgate_policyd_hook_requests_total{hook="f/absent",outcome="failed_closed"} 1`,
		`pullgate_policyd_hook_circuit_open{hook="f/absent"} 0`, `pullgate_policyd_hook_seconds_count{hook="f/allows"} 1`,
	} {
		p.has(line)
	}
	if text := p.log.String(); !strings.Contains(text, `"Hook in use"`) {
		t.Errorf("the log is %s", text)
	}
	testkit.Must(t, os.Remove(p.path("policies/hooks.yaml")))
	p.until("the hooks are removed", func() bool {
		_, page := p.get("/metrics")
		return !strings.Contains(page, `hook="f/`)
	})
}

func TestAdmitRefusesRequests(t *testing.T) {
	p := prepare(t)
	p.write("policies/hooks.yaml", strings.Replace(p.hookFile("f", "a"), "{name: f}",
		"{name: f, annotations: {policy.pullgate.dev/at: Admission}}", 1))
	p.write("policies/node.yaml", p.hookFile("g", "a"))
	p.start()
	client := policyv1.NewPolicyClient(p.connect())
	valid := func() *policyv1.AdmitRequest {
		return &policyv1.AdmitRequest{PolicyHash: p.hash(), Namespace: "n", Pod: []byte("{}"), Hooks: []string{"g/a"}}
	}
	for want, change := range map[string]func(r *policyv1.AdmitRequest){
		"policy_hash is empty":      func(r *policyv1.AdmitRequest) { r.PolicyHash = "" },
		"namespace or pod is empty": func(r *policyv1.AdmitRequest) { r.Namespace = "" },
		"are not all in":            func(r *policyv1.AdmitRequest) { r.Hooks = []string{"g/a", "g/b"} },
		`"f/a"`:                     func(r *policyv1.AdmitRequest) { r.Hooks = []string{"f/a"} },
		"[] are":                    func(r *policyv1.AdmitRequest) { r.Hooks = nil },
		"pullgated has x":           func(r *policyv1.AdmitRequest) { r.PolicyHash = "x" },
	} {
		r := valid()
		change(r)
		_, err := client.Admit(t.Context(), r)
		if c := status.Code(err); c != codes.InvalidArgument && c != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A call is judged by one set of files, also while files come and go.
func TestNoCallIsJudgedByHalfASet(t *testing.T) {
	p := prepare(t)
	for _, name := range []string{"a", "b", "c"} {
		p.hook(name, func(*admissionv1.AdmissionRequest) string { return "" })
	}
	p.write("policies/one.yaml", p.hookFile("one", "a"))
	p.start()
	with := p.admit("one/a")
	p.write("policies/two.yaml", p.hookFile("two", "b", "c"))
	both := p.admit("one/a", "two/b", "two/c")
	client := p.client()
	var stop atomic.Bool
	var calls sync.WaitGroup
	var judged [2]atomic.Int64
	for i, r := range []policyclient.AdmitRequest{with, both} {
		for range 4 {
			calls.Go(func() {
				for !stop.Load() {
					got, err := client.Admit(t.Context(), r)
					if err == nil && len(got) != len(r.Hooks) || err != nil && !errors.Is(err, policyclient.ErrOtherPolicies) {
						t.Errorf("%d answers of %d, %v", len(got), len(r.Hooks), err)
						return
					}
					if err == nil {
						judged[i].Add(1)
					}
				}
			})
		}
	}
	for i := range 50 {
		testkit.Must(t, os.Remove(p.path("policies/two.yaml")))
		before := judged[0].Load()
		p.until("a call without the second file", func() bool { return judged[0].Load() > before })
		before = judged[1].Load()
		testkit.Must(t, os.WriteFile(p.path("policies/.new"), []byte(p.hookFile("two", "b", "c")), 0o644))
		testkit.Must(t, os.Rename(p.path("policies/.new"), p.path("policies/two.yaml")))
		p.until(fmt.Sprintf("a call with the second file, round %d", i), func() bool { return judged[1].Load() > before })
	}
	stop.Store(true)
	calls.Wait()
}

// generatedPod returns a Pod that two hooks judge, with annotations that a user can forge.
func generatedPod(r *rand.Rand) string {
	one := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	container := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"image":%q%s}`, name, one("registry.example/vendor/db:1", "app:1"),
			one("", `,"securityContext":{"privileged":true}`))
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app","namespace":%q,"labels":{%s},`+
		`"annotations":{"policy.pullgate.dev/mode":"Audit","policy.pullgate.dev/admitted":"true",`+
		`"policy.pullgate.dev/stage":"RunPodSandbox","policy.pullgate.dev/container":"x",`+
		`"policy.pullgate.dev/unknown-fields":%q}},"spec":{%s"tolerations":[%s],"initContainers":[%s],`+
		`"containers":[%s,%s]}}`, one("team", "other"),
		one("", `"licence":"seat-1"`, `"licence":"none"`, `"team":"a"`, `"licence":"seat-1","team":"a"`),
		one("", "metadata.labels,spec.containers", "spec.containers[*].image"), one("", `"hostNetwork":true,`),
		one("", `{"operator":"Exists"}`), one("", container("init")), container("a"), container("b"))
}

// judgeGenerated denies a vendor's images without a licence, and pods that tolerate everything.
func judgeGenerated(r *admissionv1.AdmissionRequest) string {
	var pod struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			Tolerations                []struct{ Operator string }
			Containers, InitContainers []struct{ Image string }
		}
	}
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return err.Error()
	}
	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		if strings.Contains(c.Image, "/vendor/") && pod.Metadata.Labels["licence"] != "seat-1" {
			return "no licence"
		}
	}
	if len(pod.Spec.Tolerations) > 0 {
		return "tolerates everything"
	}
	return ""
}

// With the pod source, hooks give one answer at the node and in the webhook; without, the node refuses nothing that the
// webhook admits. What a user writes into annotations changes neither.
func TestWebhookAndNodeAgreeOnHooks(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.hook("judges", judgeGenerated)
	fields := []string{
		"", "matchConditions: [{name: a, expression: 'request.namespace == \"team\"'}]",
		"objectSelector: {matchLabels: {team: a}}",
		"objectSelector: {matchExpressions: [{key: licence, operator: NotIn, values: [none]}]}",
		"matchConditions: [{name: a, expression: 'object.spec.containers.exists(c, c.image.contains(\"vendor\"))'}]",
		"matchConditions: [{name: a, expression: 'object.spec.hostNetwork == true'}], " +
			"objectSelector: {matchLabels: {team: a}}",
	}
	file := func(fields string) string {
		text := strings.Replace(p.hookFile("both", "judges"), "}\nwebhooks",
			", annotations: {policy.pullgate.dev/at: Both}}\nwebhooks", 1)
		if fields != "" {
			text = strings.Replace(text, "sideEffects: None", "sideEffects: None, "+fields, 1)
		}
		return text
	}
	p.write("policies/both.yaml", file(""))
	p.start()
	client, https := p.client(), trusting(ca)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	outcomes := map[string]int{}
	for _, beside := range fields {
		p.write("policies/both.yaml", file(beside))
		set := testkit.Value(policyfiles.Read(policyfiles.Paths{Folder: p.config.Policies}))(t)
		if _, err := client.Review(t.Context(), p.request()); err != nil { // policyd reads the files
			t.Fatalf("%s: %v\n%s", beside, err, p.log)
		}
		v := policyclient.NewHookValidator(policyfiles.HooksOf(set), policyclient.HookOptions{
			Admit: client.Admit, PolicyHash: set.Hash, Node: "node-1",
		})
		for range 60 {
			pod := generatedPod(r)
			parsed := testkit.Value(podfile.Read([]byte(pod)))(t)[0]
			body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1",
				"kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"operation":"CREATE",
				"namespace":%q,"name":"app","object":%s}}`, parsed.Namespace, pod)
			_, text, err := p.post(https, "/admission/validate?timeout=10s", strings.NewReader(body))
			testkit.Must(t, err)
			webhook := strings.Contains(text, `"allowed":true`)
			for _, source := range []bool{true, false} {
				for _, s := range parsed.AtNode(podfile.Node{PodSource: source}) {
					if s.Container == nil {
						continue
					}
					d := admission.DecisionOf(v.Validate(t.Context(), admission.Subject{
						Stage: admission.StageContainer, Pod: s.Pod, Container: s.Container,
					}))
					outcomes[fmt.Sprintf("source %v, webhook %v, node %v", source, webhook, d.Admitted())]++
					// Conditions on a field that is not known count as met.
					if source && d.Admitted() != webhook ||
						!source && webhook && !d.Admitted() && !strings.Contains(beside, "matchConditions") {
						_, why := d.Refusal()
						t.Errorf("source %v, %s: the webhook says %s, the node %v %s\nabout %s in\n%s", source, beside, text,
							d.Admitted(), why, s.Container.Name, pod)
					}
				}
			}
		}
	}
	t.Log(outcomes)
	for _, o := range []string{
		"source true, webhook true, node true", "source true, webhook false, node false",
		"source false, webhook true, node true", "source false, webhook false, node true",
	} {
		if outcomes[o] == 0 {
			t.Errorf("no pod with %s", o)
		}
	}
}

// One file gives the same answer at the node and in admission.
// Shows: 004-11, 004-13
func TestHooksInTheWebhook(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	seen := make(chan admissionv1.AdmissionRequest, 16)
	p.hook("judges", func(r *admissionv1.AdmissionRequest) string {
		select {
		case seen <- *r:
		default:
		}
		if strings.Contains(string(r.Object.Raw), "denied") {
			return "no licence"
		}
		return ""
	})
	p.hook("node-only", func(*admissionv1.AdmissionRequest) string { return "not at the node" })
	at := func(place, file string, names ...string) string {
		return strings.Replace(p.hookFile(file, names...), "}\nwebhooks",
			", annotations: {policy.pullgate.dev/at: "+place+"}}\nwebhooks", 1)
	}
	p.write("policies/both.yaml", strings.Replace(at("Both", "both", "judges"), "[CREATE]", "[CREATE, UPDATE]", 1))
	p.write("policies/node.yaml", p.hookFile("node", "node-only"))
	p.start()
	review := func(operation, subresource, object, old string) string {
		t.Helper()
		body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1",
			"kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"subResource":%q,
			"operation":%q,"namespace":"team","name":"app","userInfo":{"username":"alice"},"object":%s,"oldObject":%s}}`,
			subresource, operation, object, old)
		code, text, err := p.post(trusting(ca), "/admission/validate?timeout=10s", strings.NewReader(body))
		if err != nil || code != http.StatusOK {
			t.Errorf("answer %d %q, %v", code, text, err)
		}
		return text
	}
	pod := func(name string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name +
			`","annotations":{"policy.pullgate.dev/stage":"x"}},"spec":` + appPod + `}`
	}
	text := review("CREATE", "", pod("app"), "null")
	if !strings.Contains(text, `"allowed":true`) || !strings.Contains(text, `"both.judges.seen":"yes"`) {
		t.Errorf("allowed: %s", text)
	}
	r := <-seen
	if r.UserInfo.Username != "alice" || r.UID == "u-1" || !strings.Contains(string(r.Object.Raw),
		`"policy.pullgate.dev/stage":"x"`) {
		t.Errorf("the request is %+v", r)
	}
	text = review("CREATE", "", pod("denied"), "null")
	if !strings.Contains(text, "hook both/judges denied it: no licence") || !strings.Contains(text, `"code":403`) {
		t.Errorf("denied: %s", text)
	}
	<-seen
	if text := p.log.String(); !strings.Contains(text, "Hooks are asked about requests of everyone") {
		t.Errorf("the log is %s", text)
	}
	text = review("UPDATE", "", pod("app"), pod("before"))
	if r := <-seen; !strings.Contains(text, `"allowed":true`) || r.Operation != "UPDATE" ||
		!strings.Contains(string(r.OldObject.Raw), "before") {
		t.Errorf("an update: %s, %+v", text, r)
	}
	for _, kind := range []string{"status", "ephemeralcontainers"} {
		if text := review("UPDATE", kind, pod("denied"), pod("denied")); !strings.Contains(text, `"allowed":true`) {
			t.Errorf("%s, which is not in the rules: %s", kind, text)
		}
	}
	if len(seen) > 0 {
		t.Errorf("%d more requests", len(seen))
	}
	p.write("policies/absent.yaml", at("Admission", "absent", "absent"))
	p.until("a hook that is absent", func() bool {
		text = review("CREATE", "", pod("app"), "null")
		return strings.Contains(text, "hook absent/absent gave no valid answer")
	})
	if !strings.Contains(text, `"code":500`) {
		t.Errorf("a hook that fails closed: %s", text)
	}
	if _, err := p.client().Admit(t.Context(), p.admit("absent/absent")); err == nil {
		t.Error("the node asked a hook that is for admission")
	}
}
