package policyd_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

// initialiser starts an initialiser on a socket. The function returns a JSON patch, or else the whole answer.
func (p *process) initialiser(name string, reply func(*admissionv1.AdmissionRequest, *corev1.Pod) string) {
	p.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var pod corev1.Pod
		if json.NewDecoder(r.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &pod) != nil {
			panic(http.ErrAbortHandler)
		}
		text := reply(review.Request, &pod)
		if text == "" || text[0] == '[' {
			text = patchAnswer(review.Request, text, "")
		}
		_, _ = w.Write([]byte(text))
	}))
	s.Listener = testkit.Value(net.Listen("unix", p.path(name+".sock")))(p)
	s.Start()
	p.Cleanup(s.Close)
}

// patchAnswer allows a pod, with a patch, or with further fields instead.
func patchAnswer(r *admissionv1.AdmissionRequest, patch, fields string) string {
	if patch != "" {
		fields = `,"patchType":"JSONPatch","patch":"` + base64.StdEncoding.EncodeToString([]byte(patch)) + `"` + fields
	}
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"` + string(r.UID) +
		`","allowed":true` + fields + `}}`
}

// initialiserFile returns a policy file whose webhooks have an objectSelector with matchLabels, and further fields.
func (p *process) initialiserFile(file, labels, fields string, names ...string) string {
	return strings.NewReplacer("Validating", "Mutating", "sideEffects", "objectSelector: {matchLabels: {"+labels+"}}, "+
		fields+"sideEffects").Replace(p.hookFile(file, names...))
}

// A mutation is an answer of the webhook, and the pod after it.
type mutation struct {
	admissionv1.AdmissionResponse

	pod  corev1.Pod
	json string
}

// initialised sends a pod, which is JSON.
func (p *process) initialised(c *tls.Config, pod string) mutation {
	p.Helper()
	return p.initialisedIn(10*time.Second, c, pod)
}

func (p *process) initialisedIn(within time.Duration, c *tls.Config, pod string) (m mutation) {
	p.Helper()
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"version":"v1",
		"kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"operation":"CREATE","namespace":"team","name":"app",
		"userInfo":{"username":"alice"},"dryRun":false,"object":` + pod + `}}`
	code, text, err := p.post(c, webhook.MutatePath+"?timeout="+within.String(), strings.NewReader(body))
	var review admissionv1.AdmissionReview
	if err != nil || code != http.StatusOK || json.Unmarshal([]byte(text), &review) != nil {
		p.Fatalf("answer %d %q, %v", code, text, err)
	}
	m.AdmissionResponse, m.json = *review.Response, pod
	if len(m.Patch) > 0 {
		patch := testkit.Value(jsonpatch.DecodePatch(m.Patch))(p)
		m.json = string(testkit.Value(patch.Apply([]byte(pod)))(p))
	}
	testkit.Must(p, json.Unmarshal([]byte(m.json), &m.pod))
	return m
}

func podWith(labels string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app","namespace":"team","labels":{` + labels +
		`},"annotations":{"trace":"-"}},"spec":` + appPod + `}`
}

const defaultsForAll = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodDefaults\nmetadata: {name: all}\n" +
	"template: {metadata: {labels: {from: defaults, kept: new}}}\n"

// Ten initialisers run in order. One that fails, at each place, is skipped or ends the request.
//
// Shows: 004-R1, 004-10, 004-13
func TestInitialisersRunInOrder(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	var mu sync.Mutex
	var asked string
	var names []string
	for i := range 10 {
		name := fmt.Sprint("i", i)
		names = append(names, name)
		p.initialiser(name, func(r *admissionv1.AdmissionRequest, pod *corev1.Pod) string {
			mu.Lock()
			defer mu.Unlock()
			asked += fmt.Sprint(i)
			if r.UserInfo.Username != "alice" || r.Operation != admissionv1.Create || r.UID == "u-1" ||
				pod.Labels["from"] != "defaults" {
				t.Errorf("%s: the request is %+v, with labels %v", name, r, pod.Labels)
			}
			if pod.Labels["fail"] == fmt.Sprint(i) {
				return `{"garbage":true}`
			}
			if strings.Contains(pod.Annotations["trace"], fmt.Sprint(i)) {
				return "" // it has been here
			}
			return fmt.Sprintf(`[{"op":"replace","path":"/metadata/annotations/trace","value":"%s%d"}]`,
				pod.Annotations["trace"], i)
		})
	}
	p.write("policies/defaults.yaml", defaultsForAll)
	for _, policy := range []string{"Fail", "Ignore"} {
		fields, kind := "failurePolicy: "+policy+", ", strings.ToLower(policy)
		// not in the order of the names of the files
		p.write("policies/b-"+kind+".yaml", p.initialiserFile("a-"+kind, "policy: "+policy, fields, names[:4]...))
		p.write("policies/a-"+kind+".yaml", p.initialiserFile("b-"+kind, "policy: "+policy, fields, names[4:]...))
	}
	p.start()
	client := trusting(ca)
	send := func(labels string) (mutation, string) {
		mu.Lock()
		asked = ""
		mu.Unlock()
		m := p.initialised(client, podWith(labels))
		return m, asked
	}
	const all = "0123456789"
	for i := range 10 {
		m, asked := send(fmt.Sprintf(`"kept":"old","policy":"Ignore","fail":"%d"`, i))
		want := "-" + all[:i] + all[i+1:]
		if !m.Allowed || m.pod.Annotations["trace"] != want || asked != all || m.pod.Labels["kept"] != "old" ||
			m.AuditAnnotations["failed-open"] != "true" {
			t.Errorf("%d fails, Ignore: %v, trace %s, asked %s, %v; want %s", i, m.Allowed, m.pod.Annotations["trace"], asked,
				m.AuditAnnotations, want)
		}
		m, asked = send(fmt.Sprintf(`"policy":"Fail","fail":"%d"`, i))
		file := "a-fail"
		if i > 3 {
			file = "b-fail"
		}
		if m.Allowed || len(m.Patch) > 0 || asked != all[:i+1] || m.Result.Code != 500 ||
			!strings.Contains(
				m.Result.Message,
				fmt.Sprintf("pullgate: pod team/app: hook %s/i%d gave no valid answer", file, i),
			) {
			t.Errorf("%d fails, Fail: %+v, asked %s", i, m.AdmissionResponse, asked)
		}
	}
	m, _ := send(`"policy":"Ignore"`)
	if m.pod.Annotations["trace"] != "-"+all || m.pod.Labels["from"] != "defaults" || m.pod.Labels["kept"] != "new" ||
		!strings.HasPrefix(m.AuditAnnotations["patched-by"], "PodDefaults all; hook a-ignore/i0; ") {
		t.Errorf("no one fails: %s, %v", m.json, m.AuditAnnotations)
	}
	// The API server calls the webhook once more if another one changes the pod.
	if again := p.initialised(
		client,
		m.json,
	); !again.Allowed || len(again.Patch) > 0 ||
		again.AuditAnnotations["patched-by"] != "" {
		t.Errorf("once more: %s, %v", again.Patch, again.AuditAnnotations)
	}
	p.has(`pullgate_policyd_hook_requests_total{hook="a-ignore/i0",outcome="failed_open"} 1`)
	p.has(`pullgate_policyd_hook_requests_total{hook="b-fail/i9",outcome="failed_closed"} 1`)
	if !strings.Contains(p.log.String(), `"Patched a pod"`) {
		t.Error("the log has no line about a pod that was patched")
	}
}

// What an initialiser answers counts as a whole or not at all.
//
// Shows: 004-12
func TestAnswersOfInitialisers(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	label := func(value string) string {
		return `[{"op":"add","path":"/metadata/labels/bad","value":"` + value + `"}`
	}
	const tooLarge = "the request or its patch is too large" // users choose how large it is, so that Ignore has no effect
	huge := label("x") + `,{"op":"test","path":"/kind","value":"` + strings.Repeat("x", 70<<10) + `"}]`
	answers := map[string]struct {
		reply func(r *admissionv1.AdmissionRequest) string
		want  string
	}{
		"garbage": {func(*admissionv1.AdmissionRequest) string { return "no JSON" }, "not an AdmissionReview"},
		"uid": {
			func(r *admissionv1.AdmissionRequest) string { r.UID = "u-1"; return patchAnswer(r, label("x")+"]", "") },
			"UID",
		},
		"type": {func(r *admissionv1.AdmissionRequest) string {
			return strings.Replace(patchAnswer(r, label("x")+"]", ""), "JSONPatch", "MergePatch", 1)
		}, `the patchType "MergePatch"`},
		"no-type": {func(r *admissionv1.AdmissionRequest) string {
			return strings.Replace(patchAnswer(r, label("x")+"]", ""), `"patchType":"JSONPatch",`, "", 1)
		}, "a patch without a patchType"},
		"no-patch": {
			func(r *admissionv1.AdmissionRequest) string { return patchAnswer(r, "", `,"patchType":"JSONPatch"`) },
			"the other way round",
		},
		"huge": {func(r *admissionv1.AdmissionRequest) string { return patchAnswer(r, huge, "") }, tooLarge},
		"too-huge": {
			func(r *admissionv1.AdmissionRequest) string { return patchAnswer(r, strings.Repeat(huge, 4), "") },
			tooLarge,
		},
		"no-list": {
			func(r *admissionv1.AdmissionRequest) string { return patchAnswer(r, `{"a":1}`, "") },
			"not a JSON patch",
		},
		"null": {func(*admissionv1.AdmissionRequest) string { return `[null]` }, "the patch"},
		"op": {
			func(*admissionv1.AdmissionRequest) string { return `[{"op":"grow","path":"/a"}]` },
			"not a JSON patch",
		},
		"no-op": {func(*admissionv1.AdmissionRequest) string { return `[{}]` }, "not a JSON patch"},
		"no-apply": {func(r *admissionv1.AdmissionRequest) string {
			return patchAnswer(r, label("x")+`,{"op":"remove","path":"/spec/absent"}]`,
				`,"warnings":["stays"],"auditAnnotations":{"a":"stays"}`)
		}, "does not apply"},
		"test": {func(*admissionv1.AdmissionRequest) string {
			return label("x") + `,{"op":"test","path":"/kind","value":"Job"}]`
		}, "does not apply"},
		"test-all": {func(*admissionv1.AdmissionRequest) string { return `[{"op":"test","path":""}]` }, "does not apply"},
		"far": {func(*admissionv1.AdmissionRequest) string {
			return label("x") + `,{"op":"add","path":"/spec/containers/99999999","value":{}}]`
		}, "does not apply"},
		"no-pod": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"replace","path":"/spec/containers","value":7}]`
		}, "not a Pod"},
		"all-null": {
			func(*admissionv1.AdmissionRequest) string { return `[{"op":"replace","path":"","value":null}]` },
			"does not apply",
		},
		"all": {
			func(*admissionv1.AdmissionRequest) string { return `[{"op":"replace","path":"","value":{}}]` },
			"does not apply",
		},
		"typo": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"add","path":"/spec/hostNetwrk","value":true}]`
		}, `unknown field "spec.hostNetwrk"`},
		"kind": {
			func(*admissionv1.AdmissionRequest) string { return `[{"op":"replace","path":"/kind","value":"Job"}]` },
			"another kind",
		},
		"name": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"replace","path":"/metadata/name","value":"b"}]`
		}, "another kind, name"},
		"namespace": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"replace","path":"/metadata/namespace","value":"b"}]`
		}, "namespace"},
		"generate": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"add","path":"/metadata/generateName","value":"b"}]`
		}, "metadata"},
		"status": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"add","path":"/status","value":{"phase":"Running"}}]`
		}, "status"},
		"mirror": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"add","path":"/metadata/annotations/kubernetes.io~1config.mirror","value":"x"}]`
		}, "a meaning for pullgate"},
		"own": {func(*admissionv1.AdmissionRequest) string {
			return `[{"op":"add","path":"/metadata/annotations/policy.pullgate.dev~1image-digests","value":"{}"}]`
		}, "a meaning for pullgate"},
		"copies": {func(*admissionv1.AdmissionRequest) string {
			return label("x") + strings.Repeat(`,{"op":"copy","from":"/spec","path":"/spec/x"}`, 900) + `,{"op":"copy",
				"from":"/spec","path":"/spec/x"}]`
		}, tooLarge},
		"annotation": {func(*admissionv1.AdmissionRequest) string {
			return label(
				"x",
			) + `,{"op":"add","path":"/metadata/annotations/large","value":"` + strings.Repeat(
				"x",
				60<<10,
			) + `"},{"op":"copy","from":"/metadata/annotations/large","path":"/metadata/annotations/more"},
				{"op":"copy","from":"/metadata/annotations/large","path":"/metadata/annotations/most"}]`
		}, tooLarge},
		"hangs": {func(*admissionv1.AdmissionRequest) string { time.Sleep(3 * time.Second); return "" }, "timed out"},
	}
	p.initialiser("bad", func(r *admissionv1.AdmissionRequest, pod *corev1.Pod) string {
		return answers[pod.Labels["answer"]].reply(r)
	})
	p.initialiser("after", func(_ *admissionv1.AdmissionRequest, pod *corev1.Pod) string {
		if pod.Labels["bad"] != "" {
			t.Errorf("%s: a part of it stayed", pod.Labels["answer"])
		}
		return `[{"op":"add","path":"/metadata/labels/after","value":"yes"}]`
	})
	for _, policy := range []string{"Fail", "Ignore"} {
		p.write("policies/"+policy+".yaml", p.initialiserFile(strings.ToLower(policy), "policy: "+policy,
			"timeoutSeconds: 1, failurePolicy: "+policy+", ", "bad", "after"))
	}
	p.start()
	client := trusting(ca)
	for name, tc := range answers {
		began := time.Now()
		m := p.initialised(client, podWith(`"policy":"Ignore","answer":"`+name+`"`))
		if tc.want == tooLarge {
			if m.Allowed {
				t.Errorf("%s, Ignore: allowed with %s", name, m.json)
			}
		} else if !m.Allowed || m.pod.Labels["after"] != "yes" || m.pod.Name != "app" || m.pod.Kind != "Pod" ||
			m.AuditAnnotations["patched-by"] != "hook ignore/after" || len(m.AuditAnnotations) != 2 ||
			m.AuditAnnotations["failed-open"] != "true" || len(m.Warnings) > 0 {
			t.Errorf("%s, Ignore: %s, %v, %v", name, m.json, m.AuditAnnotations, m.Warnings)
		}
		m = p.initialised(client, podWith(`"policy":"Fail","answer":"`+name+`"`))
		if m.Allowed || m.Result.Code != 500 || !strings.Contains(m.Result.Message, tc.want) ||
			len(m.Result.Message) > 2<<10 {
			t.Errorf("%s, Fail: %+v; want %s", name, m.Result, tc.want)
		}
		if text := strings.ReplaceAll(p.log.String(), `\"`, `"`); !strings.Contains(text, tc.want) {
			t.Errorf("%s: the log has no %s:\n%s", name, tc.want, text)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	p.has("pullgate_policyd_panics_total 0")
}

// An initialiser can undo what an earlier one did, deny, warn, or be tried without effect. It sees what its selectors
// and conditions select of the pod as it is then.
func TestInitialisersTogether(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.initialiser("sets", func(*admissionv1.AdmissionRequest, *corev1.Pod) string {
		return `[{"op":"add","path":"/metadata/labels/set","value":"x"},{"op":"add","path":"/spec/hostNetwork","value":true}]`
	})
	p.initialiser("removes", func(r *admissionv1.AdmissionRequest, pod *corev1.Pod) string {
		if pod.Labels["set"] != "x" || !pod.Spec.HostNetwork {
			t.Errorf("it sees %+v", pod.ObjectMeta)
		}
		return patchAnswer(r, `[{"op":"remove","path":"/metadata/labels/set"},{"op":"remove","path":"/spec/hostNetwork"}]`,
			`,"warnings":["it was there"],"auditAnnotations":{"removed":"set"}`)
	})
	p.initialiser("denies", func(r *admissionv1.AdmissionRequest, pod *corev1.Pod) string {
		if pod.Labels["deny"] == "" {
			return ""
		}
		return strings.Replace(
			patchAnswer(r, `[{"op":"add","path":"/metadata/labels/x","value":"x"}]`, ""),
			`"allowed":true`,
			`"allowed":false,"status":{"code":429,"message":"no"}`,
			1,
		)
	})
	p.initialiser("selected", func(*admissionv1.AdmissionRequest, *corev1.Pod) string {
		return `[{"op":"add","path":"/metadata/labels/selected","value":"yes"}]`
	})
	p.write("policies/a.yaml", p.initialiserFile("a", "", "", "sets"))
	p.write("policies/b.yaml", p.initialiserFile("b", "set: x", "", "removes"))
	p.write("policies/c.yaml", p.initialiserFile("c", "set: x", "", "selected")) // no longer
	p.write("policies/d.yaml", p.initialiserFile("d", "",
		"matchConditions: [{name: c, expression: 'request.userInfo.username == \"bob\"'}], ", "selected"))
	p.write("policies/e.yaml", strings.Replace(p.initialiserFile("e", "", "", "selected"), "{name: e}",
		"{name: e, annotations: {policy.pullgate.dev/mode: Audit}}", 1))
	p.write("policies/f.yaml", p.initialiserFile("f", "", "", "denies"))
	p.write("policies/hook.yaml", p.hookFile("f", "denies")) // of the same name, at the node
	p.start()
	client := trusting(ca)
	before := podWith("")
	m := p.initialised(client, before)
	if text := fmt.Sprint(m.Warnings); !m.Allowed || m.pod.Labels["set"] != "" || m.pod.Labels["selected"] != "" ||
		m.pod.Spec.HostNetwork || m.AuditAnnotations["patched-by"] != "" ||
		m.AuditAnnotations["b.removes.removed"] != "set" ||
		!strings.Contains(text, "pullgate: hook b/removes: it was there") ||
		!strings.Contains(text, "hook e/selected: it would change the pod") {
		t.Errorf("%+v, %s", m.AdmissionResponse, m.json)
	}
	if m := p.initialised(client, podWith(`"deny":"yes"`)); m.Allowed || len(m.Patch) > 0 || m.Result.Code != 429 ||
		m.Result.Message != "pullgate: pod team/app: hook f/denies denied it: no" || m.AuditAnnotations["patched-by"] != "" {
		t.Errorf("a denial: %+v, %+v", m.AdmissionResponse, m.Result)
	}
	// the user chooses the size
	large := strings.Replace(before, `"trace":"-"`, `"trace":"`+strings.Repeat("x", 130<<10)+`"`, 1)
	if m := p.initialised(
		client,
		large,
	); m.Allowed ||
		!strings.Contains(m.Result.Message, "the pod has more than 131072 bytes") {
		t.Errorf("a large pod: %+v", m.AdmissionResponse)
	}
	// neither templates nor updates
	for _, body := range []string{
		strings.Replace(admissionReview("team", false, appPod), `"CREATE"`, `"UPDATE"`, 1),
		strings.Replace(admissionReview("team", false, appPod), `"operation"`,
			`"subResource":"ephemeralcontainers","operation"`, 1),
	} {
		_, text, err := p.post(client, webhook.MutatePath, strings.NewReader(body))
		if err != nil || !strings.Contains(text, `"allowed":true`) || strings.Contains(text, "patch") {
			t.Errorf("%s: %s, %v", body, text, err)
		}
	}
	mirror := strings.Replace(before, `"trace":"-"`, `"kubernetes.io/config.mirror":"x"`, 1)
	if m := p.initialised(client, mirror); !m.Allowed || len(m.Patch) > 0 {
		t.Errorf("a mirror pod: %+v", m.AdmissionResponse)
	}
	p.has(`pullgate_policyd_hook_circuit_open{hook="f/denies"} 0`)
	if text := p.judge(client, appPod); !strings.Contains(text, `"allowed":true`) {
		t.Errorf("an initialiser judges: %s", text)
	}
}

// One that hangs leaves time to those after it, and the answer comes before the API server stops waiting.
func TestInitialisersLeaveTime(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	stop := make(chan struct{})
	p.initialiser("hangs", func(*admissionv1.AdmissionRequest, *corev1.Pod) string { <-stop; return "" })
	p.initialiser("adds", func(*admissionv1.AdmissionRequest, *corev1.Pod) string {
		time.Sleep(250 * time.Millisecond)
		return `[{"op":"add","path":"/metadata/labels/added","value":"yes"}]`
	})
	t.Cleanup(func() { close(stop) }) // before the servers wait
	p.write("policies/a.yaml", p.initialiserFile("a", "", "failurePolicy: Ignore, ", "hangs"))
	p.write("policies/b.yaml", p.initialiserFile("b", "", "", "adds"))
	p.write("policies/c.yaml", p.initialiserFile("c", "last: fails", "", "hangs"))
	p.start()
	for labels, allowed := range map[string]bool{"": true, `"last":"fails"`: false} {
		began := time.Now()
		m := p.initialisedIn(2*time.Second, trusting(ca), podWith(labels))
		if took := time.Since(began); m.Allowed != allowed || took > 2*time.Second || took < time.Second ||
			(m.pod.Labels["added"] == "yes") != allowed {
			t.Errorf("{%s}: allowed %v after %v, %s", labels, m.Allowed, took, m.json)
		}
	}
}

// Whether PodDefaults or an initialiser are for a pod is not guessed, whatever the failure policy is.
func TestUnknownLabelsOfNamespaces(t *testing.T) {
	const unknown = "the labels of the namespace, by which it selects, are not known"
	add := func(p *process) {
		p.initialiser("adds", func(*admissionv1.AdmissionRequest, *corev1.Pod) string {
			return `[{"op":"add","path":"/metadata/labels/from","value":"defaults"}]`
		})
	}
	files := map[string]func(p *process) string{
		"PodDefaults all cannot complete it: " + unknown: func(*process) string {
			return defaultsForAll + "binding: {namespaceSelector: {matchLabels: {tier: dev}}}\n"
		},
		"hook a/adds gave no valid answer, after 0s: " + unknown: func(p *process) string {
			add(p)
			return p.initialiserFile("a", "", "failurePolicy: Ignore, namespaceSelector: {matchLabels: {tier: dev}}, ", "adds")
		},
		"": func(p *process) string { // that label is always known
			add(p)
			return p.initialiserFile("a", "", "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team}}, ", "adds")
		},
	}
	for want, file := range files {
		t.Run(strconv.Itoa(len(want)), func(t *testing.T) { unknownLabels(t, want, file) })
	}
}

func unknownLabels(t *testing.T, want string, file func(*process) string) {
	t.Helper()
	var lists atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch w.Header().Set("Content-Type", "application/json"); {
		case !lists.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Query().Get("watch") == "":
			_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"NamespaceList","metadata":{"resourceVersion":"1"},"items":[
				{"metadata":{"name":"team","resourceVersion":"1","labels":{"tier":"dev",
				"kubernetes.io/metadata.name":"team"}}}]}`))
		default:
			<-r.Context().Done()
		}
	}))
	t.Cleanup(api.Close)
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.write("api.kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '"+api.URL+"'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n")
	p.config.Kubeconfig = p.path("api.kubeconfig")
	p.write("policies/a.yaml", file(p))
	p.start()
	if m := p.initialised(trusting(ca), podWith("")); m.Allowed != (want == "") ||
		!m.Allowed && !strings.Contains(m.Result.Message, want) {
		t.Errorf("labels that are not known: %+v", m.AdmissionResponse)
	}
	lists.Store(true)
	p.until("the labels are known", func() bool {
		return p.initialised(trusting(ca), podWith("")).pod.Labels["from"] == "defaults"
	})
}
