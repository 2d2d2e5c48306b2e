package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

// wrap returns objects of all resources with this pod spec, by resource.
func wrap(spec string) map[string]request {
	template := "template: {metadata: {labels: {a: b}}, spec: " + spec + "}"
	return map[string]request{
		"pods":                   pod(spec),
		"podtemplates":           in("", "podtemplates", "PodTemplate", template),
		"replicationcontrollers": in("", "replicationcontrollers", "ReplicationController", "spec: {"+template+"}"),
		"replicasets.apps":       in("apps", "replicasets", "ReplicaSet", "spec: {"+template+"}"),
		"daemonsets.apps":        in("apps", "daemonsets", "DaemonSet", "spec: {"+template+"}"),
		"statefulsets.apps":      in("apps", "statefulsets", "StatefulSet", "spec: {"+template+"}"),
		"deployments.apps":       in("apps", "deployments", "Deployment", "spec: {"+template+"}"),
		"jobs.batch":             in("batch", "jobs", "Job", "spec: {"+template+"}"),
		"cronjobs.batch":         in("batch", "cronjobs", "CronJob", "spec: {jobTemplate: {spec: {"+template+"}}}"),
		"workers.example.com":    worker("{worker: {" + template + "}}"),
		"groupsofpods.example.com": in("example.com", "groupsofpods", "GroupOfPods",
			"spec: {groups: [{name: x}, {"+template+"}]}"),
	}
}

func templates() []config.PodTemplate {
	return []config.PodTemplate{
		{Group: "example.com", Resource: "workers", Path: "spec.worker.template"},
		{Group: "example.com", Resource: "groupsofpods", Path: "spec.groups.template"},
	}
}

// Every resource with pods is judged, on creation and on update, by restrictions of the pod and of its containers.
// Shows: 003-30, 004-21, 004-22
func TestEveryResourceIsJudged(t *testing.T) {
	const (
		good      = "{containers: [{name: c, image: good.test/a}]}"
		bad       = "{containers: [{name: c, image: bad.test/a}]}"
		badInit   = "{containers: [{name: c, image: good.test/a}], initContainers: [{name: i, image: bad.test/a}]}"
		onNetwork = "{hostNetwork: true, containers: [{name: c, image: good.test/a}]}"
	)
	c := chain(t, noHostNetwork, onlyGood, "}\nspec: {metadata: {name: {blacklist: [x]}}}")
	w := newWorld(t, webhook.Options{Chain: c, Templates: templates()})
	const field = "policy a: spec.spec.securityContext.hostNetwork: true is not allowed; allowed: false"
	const image = `policy b: container "%s": spec.spec.containers[0].image[0].registry: ` +
		`"bad.test" is not allowed; allowed: good.test`
	for name, tc := range map[string]struct{ spec, want string }{
		"admitted":        {good, ""},
		"image":           {bad, fmt.Sprintf(image, "c")},
		"init container":  {badInit, fmt.Sprintf(image, "i")},
		"field of a pod":  {onNetwork, field},
		"without a field": {"{}", ""},
	} {
		before := wrap(`{nodeName: n, hostIPC: true, containers: [{name: c, image: "before.test/a"}]}`)
		for resource, q := range wrap(tc.spec) {
			want := tc.want
			if want != "" {
				of := resource
				if of == "pods" {
					of = "pod"
				}
				want = "403 pullgate: " + of + " team/app: " + want
			}
			if got := message(w.ask(t, q)); got != want {
				t.Errorf("%s, CREATE of %s: %q; want %q", name, resource, got, want)
			}
			q.old = before[resource].object
			if got := message(w.ask(t, q)); got != want {
				t.Errorf("%s, UPDATE of %s: %q; want %q", name, resource, got, want)
			}
			outcome := webhook.Allowed
			if want != "" {
				outcome = webhook.Denied
			}
			e := w.last()
			is := []string{string(e.Outcome), e.Resource, e.Operation, e.Namespace, e.Name}
			if !slices.Equal(is, []string{string(outcome), resource, "UPDATE", "team", "app"}) {
				t.Errorf("%s, %s: event %+v; want %s", name, resource, e, outcome)
			}
		}
	}
}

func TestWhatIsNotJudged(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork)})
	bad := "{hostNetwork: true, containers: [{name: c, image: a}]}"
	for name, change := range map[string]func(q *request){
		"deletion":           func(q *request) { q.operation = admissionv1.Delete },
		"connection":         func(q *request) { q.operation, q.subresource = admissionv1.Connect, "exec" },
		"status":             func(q *request) { q.operation, q.subresource = admissionv1.Update, "status" },
		"binding":            func(q *request) { q.subresource = "binding" },
		"config map":         func(q *request) { q.resource = "configmaps" },
		"pods of metrics":    func(q *request) { q.group = "metrics.k8s.io" },
		"another group":      func(q *request) { q.group, q.resource = "other.io", "deployments" },
		"scale":              func(q *request) { q.group, q.resource, q.subresource = "apps", "deployments", "scale" },
		"no configured path": func(q *request) { q.group, q.resource = "example.com", "workers" },
		"object without it": func(q *request) {
			q.group, q.resource, q.object = "apps", "deployments", "{metadata: {name: a}}"
		},
		"controller, template": func(q *request) {
			q.resource, q.object = "replicationcontrollers", "{spec: {template: null}}"
		},
	} {
		q := pod(bad)
		change(&q)
		if r := w.ask(t, q); !r.Allowed || len(r.Warnings) > 0 {
			t.Errorf("%s: %+v; want an admission", name, r)
		}
	}
}

// A denied mirror pod hides a pod that runs. No kubelet runs one.
func TestMirrorPods(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Review: deniesAll{}.Review})
	const spec = "{nodeName: n1, hostNetwork: true, containers: [{name: c, image: a}]}"
	for annotation, want := range map[string]bool{
		"kubernetes.io/config.mirror: x": true, "kubernetes.io/config.mirror: ''": true,
		"kubernetes.io/config.source: file": false, "x: y": false,
	} {
		q := pod(spec, annotation)
		if r := w.ask(t, q); r.Allowed != want || (w.last().Outcome == webhook.MirrorPod) != want {
			t.Errorf("%s: %s, outcome %s; want allowed %v", annotation, message(r), w.last().Outcome, want)
		}
	}
	deployment := in("apps", "deployments", "Deployment",
		"spec: {template: {metadata: {annotations: {kubernetes.io/config.mirror: x}}, spec: "+spec+"}}")
	if r := w.ask(t, deployment); r.Allowed {
		t.Error("a template with the annotation is admitted")
	}
}

// A chain that exempts static pods exempts no pod here because of its annotations.
// Shows: 000-30
func TestStaticPodsAreNotExemptByAnnotation(t *testing.T) {
	c := chain(t, noHostNetwork)
	set := admission.Rules{
		ExemptStaticPods: true, ExemptNamespaces: []string{"kube-system"},
		Validators: []admission.Named{{Name: "none", Validator: deniesAll{}}},
	}
	c.Set(set)
	w := newWorld(t, webhook.Options{Chain: c})
	if r := w.ask(t, pod("{containers: [{name: c, image: a}]}", "kubernetes.io/config.source: file")); r.Allowed {
		t.Error("a pod with the annotations of a static pod is exempt")
	}
	set.ExemptNamespaces = []string{"team"}
	c.Set(set)
	if r := w.ask(t, pod("{containers: [{name: c, image: a}]}")); !r.Allowed ||
		w.last().Decision.Exemption != admission.ExemptNamespace {
		t.Errorf("%s in an exempt namespace", message(r))
	}
}

// deniesAll is a validator and a reviewer.
type deniesAll struct{}

func (deniesAll) Validate(context.Context, admission.Subject) []admission.Finding {
	return []admission.Finding{{Answer: admission.Deny, Message: "no"}}
}

func (d deniesAll) Review(ctx context.Context, _ review.Subject) []admission.Finding {
	return d.Validate(ctx, admission.Subject{})
}

// An update of an object that violates a policy is admitted if it changes nothing that a policy judges.
// Shows: 004-22
func TestUpdates(t *testing.T) {
	const (
		onlyTeam   = "}\nspec: {metadata: {labels: {requireKeys: [team]}}}"
		elsewhere  = "}\nbinding: {namespaces: [other]}\nspec: {metadata: {labels: {requireKeys: [q]}}}"
		container  = "{name: c, image: good.test/a, env: [{name: A, value: b}]}"
		violating  = "{hostNetwork: true, containers: [" + container + "]}"
		metadata   = "{metadata: {name: app, finalizers: [x.io/y], labels: {l: m"
		deployment = metadata + "}}, spec: {replicas: 3, template: {metadata: {labels: {a: b}}, spec: " + violating + "}}}"
		aPod       = metadata + ", team: x}, annotations: {n: o}}, spec: " + violating + "}"
		finalizers = "finalizers: [x.io/y], =>"
	)
	none, labels := []string{noHostNetwork}, []string{noHostNetwork, onlyTeam}
	for name, tc := range map[string]struct {
		policies        []string
		pod, deployment string // what is replaced, and what by
		want            bool
		outcome         webhook.Outcome
	}{
		"finalizer": {none, finalizers, finalizers, true, webhook.Unchanged},
		"label":     {none, "l: m, =>", "l: m=>", true, webhook.Unchanged},
		"replicas, toleration": {
			none, "true,=>true, tolerations: [{key: k}],", "replicas: 3=>replicas: 4", true,
			webhook.Unchanged,
		},
		"environment":      {none, "value: b=>value: c", "value: b=>value: c", true, webhook.Unchanged},
		"image, no policy": {none, "good.test=>bad.test", "good.test=>bad.test", true, webhook.Unchanged},
		"image, judged": {
			[]string{noHostNetwork, onlyGood}, "good.test/a=>good.test/b", "good.test/a=>good.test/b", false, webhook.Denied,
		},
		"label, and a policy for labels": {labels, "l: m, =>", finalizers, true, ""},
		"label that a policy requires":   {labels, ", team: x=>", finalizers, false, ""},
		"label and another field": {
			[]string{noHostNetwork, onlyTeam, onlyGood}, "l: m, team: x}, annotations: {n: o}}, spec: {hostNetwork: true, " +
				"containers: [{name: c, image: good.test/a=>team: x}}, spec: {hostNetwork: true, containers: [{name: c, " +
				"image: good.test/b", finalizers, false, "",
		},
		"violation ends": {none, "true=>false", "true=>false", true, webhook.Allowed},
		"policy of another namespace": {
			[]string{noHostNetwork, elsewhere},
			"l: m, =>", "a: b=>a: c", true,
			webhook.Unchanged,
		},
	} {
		w := newWorld(t, webhook.Options{Chain: chain(t, tc.policies...)})
		for _, q := range []request{
			{resource: "pods", kind: "Pod", old: aPod, object: tc.pod},
			{group: "apps", resource: "deployments", kind: "Deployment", old: deployment, object: tc.deployment},
		} {
			from, to, _ := strings.Cut(q.object, "=>")
			q.object = strings.Replace(q.old, from, to, 1)
			want := tc.want || tc.outcome == "" && q.group != "" // the last change is none of the template
			if r := w.ask(t, q); r.Allowed != want || tc.outcome != "" && w.last().Outcome != tc.outcome {
				t.Errorf("%s: %s: %q, %s; want allowed %v, %s", name, q.kind, message(r), w.last().Outcome, want, tc.outcome)
			}
		}
	}
}

// An object before the update that cannot be decoded counts as another one.
func TestUpdateOfWhatCannotBeDecoded(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork)})
	q := pod("{hostNetwork: true, containers: [{name: c, image: a}]}")
	q.old = "{spec: 7}"
	if w.ask(t, q).Allowed {
		t.Error("a pod is admitted because the old one cannot be decoded")
	}
}

// Only the ephemeral containers are judged when one is added, by the fields of the pod too.
func TestEphemeralContainers(t *testing.T) {
	reviewer := &recorder{}
	w := newWorld(t, webhook.Options{Chain: chain(t, onlyGood, noHostNetwork), Review: reviewer.Review})
	const running = "{containers: [{name: c, image: bad.test/old}], ephemeralContainers: ["
	spec := func(image, more string) string {
		return running + "{name: e, image: good.test/a}, {name: f, image: " + image + "}]" + more + "}"
	}
	before := pod(running + "{name: e, image: good.test/a}]}").object
	for name, tc := range map[string]struct {
		image, more string
		want        string
	}{
		"allowed": {"good.test/debug", "", ""},
		"denied":  {"bad.test/debug", "", `container "f"`},
		"by pod":  {"good.test/debug", ", hostNetwork: true", "hostNetwork"},
	} {
		q := pod(spec(tc.image, tc.more))
		q.subresource, q.old = "ephemeralcontainers", before
		r := w.ask(t, q)
		if r.Allowed != (tc.want == "") || !strings.Contains(message(r), tc.want) ||
			strings.Contains(message(r), `container "c"`) {
			t.Errorf("%s: %q; want %q", name, message(r), tc.want)
		}
	}
	want := []review.Subject{{Namespace: "team", Images: []string{"good.test/a", "good.test/debug"}}}
	testkit.Equal(t, "reviewed", reviewer.pods, want)
}

// recorder is a reviewer that admits.
type recorder struct{ pods []review.Subject }

func (r *recorder) Review(_ context.Context, p review.Subject) []admission.Finding {
	r.pods = append(r.pods, p)
	return []admission.Finding{{Answer: admission.Admit}}
}

// Reviews are of pods only: containers, init containers, image volumes, and the annotations for backends.
// Shows: 000-02, 000-08, 000-09, 000-12
func TestReviews(t *testing.T) {
	reviewer := &recorder{}
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Review: reviewer.Review})
	spec := "{containers: [{name: c, image: 'c:1', env: [{name: A, value: canary}]}], initContainers: " +
		"[{name: i, image: 'i:1'}], volumes: [{name: v, image: {reference: 'v:1'}}, {name: w, emptyDir: {}}]}"
	annotations := []string{"x.image-policy.k8s.io/break-glass: T-7", "image-policy.k8s.io/bare: x", "other.io/a: canary"}
	want := review.Subject{
		Namespace: "team", Annotations: map[string]string{"x.image-policy.k8s.io/break-glass": "T-7"},
		Images: []string{"c:1", "i:1"}, Volumes: []string{"v:1"},
	}
	for resource, q := range wrap(spec) {
		if resource == "pods" {
			q = pod(spec, annotations...)
		}
		reviewer.pods = nil
		if r := w.ask(t, q); !r.Allowed {
			t.Errorf("%s: %s", resource, message(r))
		}
		if resource != "pods" {
			if len(reviewer.pods) > 0 {
				t.Errorf("%s is reviewed", resource)
			}
			continue
		}
		testkit.Equal(t, "reviewed", reviewer.pods, []review.Subject{want})
	}
	for name, tc := range map[string]struct {
		from, to string
		reviews  int
	}{
		"label":                       {"name: app", "name: app, labels: {a: b}", 0},
		"another annotation":          {"other.io/a: canary", "other.io/a: x", 0},
		"annotation for the backends": {"T-7", "T-8", 1},
		"image":                       {"c:1", "c:2", 1},
		"image of a volume":           {"v:1", "v:2", 1},
	} {
		reviewer.pods = nil
		q := pod(spec, annotations...)
		q.old = q.object
		q.object = strings.Replace(q.object, tc.from, tc.to, 1)
		if w.ask(t, q); len(reviewer.pods) != tc.reviews {
			t.Errorf("%s: %d reviews; want %d", name, len(reviewer.pods), tc.reviews)
		}
	}
	reviewer.pods = nil
	if w.ask(t, pod("{hostNetwork: true, containers: [{name: c, image: a}]}")); len(reviewer.pods) > 0 {
		t.Error("a pod that a restriction denies is reviewed")
	}
}

// Shows: 000-01, 000-03, 000-16, 000-24
func TestAnswersOfReviews(t *testing.T) {
	deny := admission.Finding{Answer: admission.Deny, Policy: "backend", Message: "backend: no"}
	annotated := deny
	annotated.AuditAnnotations = map[string]string{"ticket": "T-7", "with/slash": "x", "with space": "x", "": "x"}
	open := admission.Finding{Answer: admission.Admit, Policy: "backend", FailedOpen: true}
	for name, tc := range map[string]struct {
		review []admission.Finding
		want   string
		audit  map[string]string
	}{
		"allowed":     {[]admission.Finding{{Answer: admission.Admit}}, "", nil},
		"denied":      {[]admission.Finding{{Answer: admission.Admit}, deny}, "403 pullgate: pod team/app: backend: no", nil},
		"no finding":  {nil, "403 pullgate: pod team/app: denied without a reason, which is a defect of pullgate", nil},
		"no answer":   {[]admission.Finding{{Message: "?"}}, "403 pullgate: pod team/app: ?", nil},
		"failed open": {[]admission.Finding{open}, "", map[string]string{"failed-open": "true"}},
		"annotations": {
			[]admission.Finding{annotated, {
				Answer:           admission.Admit,
				AuditAnnotations: map[string]string{"ticket": "T-8", "other": "y"},
			}},
			"403 pullgate: pod team/app: backend: no",
			map[string]string{"ticket": "T-7; T-8", "other": "y"},
		},
	} {
		w := newWorld(t, webhook.Options{Review: func(context.Context, review.Subject) []admission.Finding {
			return tc.review
		}})
		r := w.ask(t, pod("{containers: [{name: c, image: a}]}"))
		if d := cmp.Diff(tc.audit, r.AuditAnnotations); message(r) != tc.want || d != "" {
			t.Errorf("%s: %q, annotations (-want +got) %s; want %q", name, message(r), d, tc.want)
		}
		if e := w.last(); len(e.Decision.Findings) != len(tc.review) || (e.Outcome == webhook.Allowed) != (tc.want == "") {
			t.Errorf("%s: event %+v", name, e)
		}
	}
}

// Policies that only report answer with warnings; a dry run gets the same answer and is marked in the event.
func TestWarningsAndDryRuns(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, audited+noHostNetwork, onlyGood)})
	want := []string{"pullgate: audit: policy a: spec.spec.securityContext.hostNetwork: true is not allowed; allowed: " +
		"false"}
	for resource, q := range wrap("{hostNetwork: true, containers: [{name: c, image: good.test/a}]}") {
		if strings.Contains(resource, "example.com") {
			continue
		}
		for _, dry := range []bool{false, true} {
			q.dryRun = dry
			r := w.ask(t, q)
			if !r.Allowed || !slices.Equal(r.Warnings, want) || w.last().DryRun != dry {
				t.Errorf("%s, dry run %v: %+v, event %+v; want %q", resource, dry, r, w.last(), want)
			}
		}
	}
	var many []string
	for i := range 25 {
		many = append(many, fmt.Sprintf("%s}\nspec: {spec: {securityContext: {hostNetwork: {require: false}}, "+
			"terminationGracePeriodSeconds: {ranges: [{max: %d}]}}}", audited, i))
	}
	w = newWorld(t, webhook.Options{Chain: chain(t, many...)})
	r := w.ask(t, pod("{hostNetwork: true, containers: [{name: c, image: a}]}"))
	if len(r.Warnings) != 11 || r.Warnings[10] != "pullgate: and 15 more" {
		t.Errorf("%d warnings %q; want 10 and how many more", len(r.Warnings), r.Warnings)
	}
}

type labels map[string]map[string]string

func (l labels) Labels(_ context.Context, namespace string) (map[string]string, bool) {
	labels, ok := l[namespace]
	return labels, ok
}

// Labels of namespaces decide which policies are bound. Labels that are not known bind policies that deny, and none
// that accepts.
func TestNamespaceLabels(t *testing.T) {
	const selected = "}\nbinding: {mode: %s, namespaceSelector: {matchLabels: {tier: dev}}}\n" +
		"spec: {spec: {securityContext: {hostNetwork: {require: %v}}}}"
	q := pod("{hostNetwork: true, containers: [{name: c, image: a}]}")
	for name, tc := range map[string]struct {
		namespaces   func(context.Context, string) (map[string]string, bool)
		drop, accept bool // admitted with such a policy
	}{
		"selected":     {labels{"team": {"tier": "dev"}}.Labels, false, true},
		"not selected": {labels{"team": {"tier": "prod"}}.Labels, true, false},
		"unknown":      {labels{}.Labels, false, false},
		"no source":    {nil, false, false},
	} {
		dropping := chain(t, fmt.Sprintf(selected, "Drop", false))
		accepting := chain(t, fmt.Sprintf(selected, "Accept", true), noHostNetwork)
		for c, want := range map[*admission.Chain]bool{dropping: tc.drop, accepting: tc.accept} {
			if r := newWorld(t, webhook.Options{Chain: c, Labels: tc.namespaces}).ask(t, q); r.Allowed != want {
				t.Errorf("%s, Drop %v: %q; want allowed %v", name, c == dropping, message(r), want)
			}
		}
	}
}

// The namespace is that of the request, whatever the object says.
func TestNamespaceOfTheRequest(t *testing.T) {
	c := chain(t, strings.Replace(noHostNetwork, "\n", "\nbinding: {namespaces: [team]}\n", 1))
	w := newWorld(t, webhook.Options{Chain: c})
	q := request{group: "apps", resource: "deployments", object: "{metadata: {namespace: other}, " +
		"spec: {template: {metadata: {namespace: other}, spec: {hostNetwork: true}}}}"}
	if w.ask(t, q).Allowed {
		t.Error("a namespace in the object decides")
	}
}

// A review gets the deadline that the request names, with time for the answer.
func TestDeadline(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"?timeout=10s": 9 * time.Second, "?timeout=2s": 1800 * time.Millisecond, "": 9 * time.Second,
		"?timeout=x": 9 * time.Second, "?timeout=-1s": 9 * time.Second, "?timeout=10h": 27 * time.Second,
	} {
		var got time.Duration
		w := newWorld(t, webhook.Options{Review: func(ctx context.Context, _ review.Subject) []admission.Finding {
			deadline, _ := ctx.Deadline()
			got = time.Until(deadline)
			return nil
		}})
		w.post(t.Context(), webhook.ValidatePath+query, pod("{containers: [{image: a}]}").body(t))
		if got > want || got < want-time.Second {
			t.Errorf("%q: %v left; want %v", query, got, want)
		}
	}
}

// A panic denies, because an error would leave the answer to the failure policy.
// Shows: 004-R6
func TestPanicsDeny(t *testing.T) {
	panics := func(context.Context, review.Subject) []admission.Finding { panic("defect") }
	w := newWorld(t, webhook.Options{Review: panics})
	r := w.ask(t, pod("{containers: [{image: a}]}"))
	if r.Allowed || r.Result.Code != http.StatusInternalServerError || w.last().Outcome != webhook.Failed ||
		len(w.panics) != 1 {
		t.Errorf("%+v, event %+v, panics %v; want a denial", r, w.last(), w.panics)
	}
}
