package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

const digestsKey = webhook.DigestsAnnotation

// digestOf returns a digest that depends on the tag.
func digestOf(image string) string { return fmt.Sprintf("sha256:%064x", len(image)) }

// A pinner adds digests to images, except to those that begin with free. It cannot resolve those that begin with far,
// nor those with gone, which deny the pod.
type pinner struct{ asked []string }

func (p *pinner) digests(_ context.Context, namespace string, images []verify.Tagged) (
	digests []string, findings []admission.Finding, unresolved []string,
) {
	for _, i := range images {
		digest := i.Stored
		switch {
		case strings.Contains(i.Image, "@") || strings.HasPrefix(i.Image, "free"):
		case strings.HasPrefix(i.Image, "far"):
			unresolved = append(unresolved, i.Image+" keeps its tag")
		case strings.HasPrefix(i.Image, "gone"):
			f := admission.Finding{Answer: admission.Deny, Reason: admission.DigestRequired, Message: i.Image + " is gone"}
			findings = append(findings, f)
		case digest == "":
			digest = digestOf(i.Image)
			p.asked = append(p.asked, namespace+" "+i.Image)
		}
		digests = append(digests, digest)
	}
	return digests, findings, unresolved
}

func newPinner(tb testing.TB) (*world, *pinner) {
	tb.Helper()
	p := &pinner{}
	return newWorld(tb, webhook.Options{Digests: p.digests}), p
}

// mutated asks for a change. It returns the object after it, the operations of the patch, and the response.
func (w *world) mutated(tb testing.TB, q request) (map[string]any, []string, *admissionv1.AdmissionResponse) {
	tb.Helper()
	answer := w.post(tb.Context(), webhook.MutatePath+"?timeout=10s", q.body(tb))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || answer.Code != http.StatusOK {
		tb.Fatalf("answer %d, %s; want a review", answer.Code, answer.Body)
	}
	r := review.Response
	if r.UID != "uid-1" || (r.Patch != nil) != (r.PatchType != nil) || r.Patch != nil && !r.Allowed {
		tb.Fatalf("answer %s", answer.Body)
	}
	var object map[string]any
	testkit.Must(tb, json.Unmarshal(testkit.Value(yaml.YAMLToJSON([]byte(q.object)))(tb), &object))
	var operations []struct {
		Op, Path string
		Value    any
	}
	if r.Patch != nil {
		testkit.Must(tb, json.Unmarshal(r.Patch, &operations))
	}
	var texts []string
	for _, o := range operations {
		texts = append(texts, o.Op+" "+o.Path)
		apply(tb, object, o.Op, o.Path, o.Value)
	}
	return object, texts, r
}

// apply does what an API server does with an operation of a JSON patch.
func apply(tb testing.TB, in any, op, path string, value any) {
	tb.Helper()
	tokens := strings.Split(path, "/")[1:]
	for i, token := range tokens {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		last := i == len(tokens)-1
		switch at := in.(type) {
		case []any:
			in = at[testkit.Value(strconv.Atoi(token))(tb)]
		case map[string]any:
			if _, exists := at[token]; !exists && (op != "add" || !last) {
				tb.Fatalf("%s %s: there is no %s", op, path, token)
			}
			switch {
			case last && op == "remove":
				delete(at, token)
			case last:
				at[token] = value
			}
			in = at[token]
		default:
			tb.Fatalf("%s %s: %v has no %s", op, path, in, token)
		}
	}
}

// object returns the object as text for another request.
func object(tb testing.TB, o map[string]any) string {
	tb.Helper()
	return string(testkit.Value(json.Marshal(o))(tb))
}

func annotationOf(o map[string]any) (text string, exists bool) {
	metadata, _ := o["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, exists = annotations[digestsKey].(string)
	return text, exists
}

const everyPlace = `{containers: [{name: c, image: "a:1", imagePullPolicy: Always}, {name: d, image: "free:1"}],
	initContainers: [{name: i, image: bb}], ephemeralContainers: [{name: e, image: "r.test:5000/ccc:1"}],
	volumes: [{name: m, emptyDir: {}}, {name: v, image: {reference: "dddddddddd:1", pullPolicy: Never}}]}`

// Shows: 002-R1, 002-16
func TestDigestsAreAddedToEveryPlace(t *testing.T) {
	w, _ := newPinner(t)
	with := func(metadata string) request {
		return request{resource: "pods", kind: "Pod", object: "{metadata: " + metadata + ", spec: " + everyPlace + "}"}
	}
	dryRun := with("{name: a}")
	dryRun.dryRun = true
	for name, q := range map[string]request{
		"annotations": pod(everyPlace, "other: b"), "empty": pod(everyPlace), "none": with("{generateName: app-}"),
		"null": with("{annotations: null}"), "dry run": dryRun,
	} {
		got, operations, r := w.mutated(t, q)
		var want map[string]any
		spec := strings.NewReplacer(
			`"a:1"`, `"a:1@`+digestOf("a:1")+`"`, "image: bb", `image: "bb@`+digestOf("bb")+`"`,
			`ccc:1"`, `ccc:1@`+digestOf("r.test:5000/ccc:1")+`"`, `dddddddddd:1"`, `dddddddddd:1@`+digestOf("dddddddddd:1")+`"`,
		).Replace(everyPlace)
		testkit.Must(t, yaml.Unmarshal([]byte(spec), &want))
		testkit.Equal[any](t, name, got["spec"], want)
		note := func(image string) string {
			return fmt.Sprintf(`{"image":%q,"digest":%q}`, image, digestOf(image))
		}
		noted := `{"containers/c":` + note("a:1") + `,"ephemeralContainers/e":` + note("r.test:5000/ccc:1") +
			`,"initContainers/i":` + note("bb") + `,"volumes/v":` + note("dddddddddd:1") + `}`
		if text, _ := annotationOf(got); text != noted || !maps.Equal(r.AuditAnnotations,
			map[string]string{"image-digests": noted}) {
			t.Errorf("%s: annotation %s, audit annotations %v; want %s", name, text, r.AuditAnnotations, noted)
		}
		e := w.last()
		if len(operations) != 5 || e.Outcome != webhook.Changed || e.Path != webhook.MutatePath ||
			e.Digests != noted || e.DryRun != q.dryRun {
			t.Errorf("%s: %q, event %+v", name, operations, e)
		}
		// A second pass finds what another webhook has added. Its audit annotation does not replace the first one.
		more := object(t, got)
		more = strings.Replace(more, `"containers":[`, `"containers":[{"name":"z","image":"z:1"},`, 1)
		second, operations, r := w.mutated(t, request{resource: "pods", kind: "Pod", object: more})
		if text, _ := annotationOf(second); len(operations) != 2 || !strings.Contains(text, `"containers/c":`) ||
			r.AuditAnnotations["image-digests-reinvoked"] != `{"containers/z":`+note("z:1")+"}" || len(r.AuditAnnotations) != 1 {
			t.Errorf("%s, a second pass: %q, annotation %s, %v", name, operations, text, r.AuditAnnotations)
		}
		// A second pass, and an update of what is stored, change nothing.
		for _, old := range []string{"", object(t, got)} {
			again := request{resource: "pods", kind: "Pod", object: object(t, got), old: old}
			if _, operations, r := w.mutated(t, again); len(operations) > 0 || !r.Allowed || r.AuditAnnotations != nil ||
				w.last().Outcome != webhook.Unchanged {
				t.Errorf("%s, the second time: %q, outcome %s", name, operations, w.last().Outcome)
			}
		}
	}
}

func TestDigestsAreNotAddedToOtherObjects(t *testing.T) {
	w, p := newPinner(t)
	for resource, q := range wrap(everyPlace) {
		if resource == "pods" {
			continue
		}
		if _, operations, r := w.mutated(t, q); len(operations) > 0 || !r.Allowed || w.last().Outcome != webhook.NotJudged {
			t.Errorf("%s: %q, allowed %v, %s", resource, operations, r.Allowed, w.last().Outcome)
		}
	}
	mirror := pod(everyPlace, "kubernetes.io/config.mirror: a")
	binding, deleted := pod(everyPlace), pod(everyPlace)
	binding.subresource, deleted.operation = "binding", admissionv1.Delete
	for _, q := range []request{mirror, binding, deleted, pod(`{containers: [{name: c, image: "free:1"}, {name: d}]}`)} {
		if _, operations, r := w.mutated(t, q); len(operations) > 0 || !r.Allowed {
			t.Errorf("%+v: %q, allowed %v", q, operations, r.Allowed)
		}
	}
	if len(p.asked) > 0 {
		t.Errorf("asked for %q", p.asked)
	}
	for _, q := range []request{
		pod(`{containers: 7}`),
		{resource: "pods", kind: "Other", object: "{}"},
		pod(`{containers: [` + strings.Repeat(`{name: c, image: "a:1"},`, 1001) + `]}`),
	} {
		if _, _, r := w.mutated(t, q); r.Allowed || w.last().Outcome != webhook.Invalid || len(p.asked) > 0 {
			t.Errorf("%.60s: allowed %v, %s", q.object, r.Allowed, w.last().Outcome)
		}
	}
}

// Shows: 002-16
func TestImagesWithoutDigest(t *testing.T) {
	w, _ := newPinner(t)
	got, operations, r := w.mutated(t, pod(`{containers: [{name: a, image: "far:1"}, {name: b, image: "b:1"}]}`))
	if !r.Allowed || !slices.Equal(r.Warnings, []string{"pullgate: far:1 keeps its tag"}) || len(operations) != 2 ||
		!strings.Contains(object(t, got), `"image":"b:1@`) || !strings.Contains(object(t, got), `"image":"far:1"`) {
		t.Errorf("%q, allowed %v, warnings %q; want the other image changed", operations, r.Allowed, r.Warnings)
	}
	_, _, r = w.mutated(t, pod(`{containers: [{name: a, image: "gone:1"}, {name: b, image: "b:1"}]}`))
	if got, want := message(r), "403 pullgate: pod team/app: gone:1 is gone"; got != want || r.Patch != nil ||
		w.last().Outcome != webhook.Denied {
		t.Errorf("%q, patch %s; want %q", got, r.Patch, want)
	}
}

// An update keeps the digests that are stored, restarts no container, and resolves what it brings.
// Shows: 004-22
func TestDigestsOfUpdates(t *testing.T) {
	const storedDigest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	spec := func(image string) string { return `{containers: [{name: c, image: "` + image + `"}]}` }
	for _, tc := range []struct{ old, image, want string }{
		{"a:1@" + storedDigest, "a:1", "a:1@" + storedDigest},
		{"a:1@" + storedDigest, "docker.io/library/a:1", "docker.io/library/a:1@" + storedDigest},
		{"a@" + storedDigest, "a:latest", "a:latest@" + storedDigest},
		{"a:1@" + storedDigest, "a:2", "a:2@" + digestOf("a:2")},
		{"a:1@" + storedDigest, "other/a:1", "other/a:1@" + digestOf("other/a:1")},
		{"a:1@sha256:no", "a:1", "a:1@" + digestOf("a:1")},
		{"a:1", "a:1", "a:1"}, // is older than the rule
		{"a:1@" + storedDigest, "free:1", "free:1"},
	} {
		w, _ := newPinner(t)
		q := pod(spec(tc.image))
		q.old = pod(spec(tc.old)).object
		got, _, r := w.mutated(t, q)
		if want := `"image":"` + tc.want + `"`; !strings.Contains(object(t, got), want) || !r.Allowed {
			t.Errorf("%s, then %s: %s; want %s", tc.old, tc.image, object(t, got), want)
		}
		if _, noted := annotationOf(got); noted != (tc.want != tc.image) {
			t.Errorf("%s, then %s: annotation %v", tc.old, tc.image, noted)
		}
	}
	// What the stored pod has noted says nothing about a second pass.
	w, p := newPinner(t)
	two := `{containers: [{name: c, image: "a:1"}, {name: d, image: "%s"}]}`
	before, _, _ := w.mutated(t, pod(fmt.Sprintf(two, "free:1")))
	after := request{resource: "pods", kind: "Pod", old: object(t, before)}
	after.object = strings.Replace(after.old, "free:1", "b:1", 1)
	if _, operations, r := w.mutated(t, after); len(operations) != 2 || r.AuditAnnotations["image-digests"] == "" {
		t.Errorf("%q, audit annotations %v", operations, r.AuditAnnotations)
	}
	p.asked = nil
	running := `{containers: [{name: c, image: "%s"}], ephemeralContainers: [{name: e, image: "b:1"}%s]}`
	q := pod(fmt.Sprintf(running, "ignored:1", `, {name: f, image: "a:1"}`))
	q.old, q.subresource = pod(fmt.Sprintf(running, "a:1", "")).object, "ephemeralcontainers"
	_, operations, _ := w.mutated(t, q)
	want := []string{"replace /spec/ephemeralContainers/1/image", "add /metadata/annotations"}
	if !slices.Equal(operations, want) || !slices.Equal(p.asked, []string{"team a:1"}) {
		t.Errorf("%q, asked for %q; want the new container", operations, p.asked)
	}
}

// The annotation says what is true of the pod, whoever wrote it before, and nothing follows from it.
func TestForgedAnnotationsOfDigests(t *testing.T) {
	const other = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	truth := `{"containers/c":{"image":"a:1","digest":"` + digestOf("a:1") + `"}}`
	const spec = `{containers: [{name: c, image: "a:1"}]}`
	forged := func(key, image, digest string) string {
		return fmt.Sprintf(`{%q:{"image":%q,"digest":%q}}`, key, image, digest)
	}
	for _, text := range []string{
		forged("containers/c", "a:1", other), forged("containers/c", "good:1", digestOf("a:1")),
		forged("containers/absent", "a:1", digestOf("a:1")), forged("initContainers/c", "a:1", digestOf("a:1")),
		forged("ephemeralContainers/c", "a:1", other), forged("volumes/c", "a:1", other), forged("c", "a:1", other),
		"", "{", "null", "7", `"a"`, "[]", `{"containers/c":7}`, `{"containers/c":{"image":["a:1"]}}`,
		truth + " ", strings.Repeat(" ", 200<<10), strings.Repeat(`{"a":`, 1000), "\x00\xff~/",
	} {
		quoted := fmt.Sprintf("%s: %s", digestsKey, testkit.Value(json.Marshal(text))(t))
		w, p := newPinner(t)
		got, _, _ := w.mutated(t, pod(spec, quoted))
		if now, _ := annotationOf(got); now != truth || len(p.asked) != 1 {
			t.Errorf("%.80q: annotation %.200s, asked for %q; want %s", text, now, p.asked, truth)
		}
		// Where nothing is added it is removed, also in a namespace without rules and from an update.
		for _, w := range []*world{w, newWorld(t, webhook.Options{})} {
			for _, old := range []string{"", pod(`{containers: [{name: c, image: "free:1"}]}`).object} {
				q := pod(`{containers: [{name: c, image: "free:1"}]}`, quoted)
				q.old = old
				got, operations, _ := w.mutated(t, q)
				if now, exists := annotationOf(got); exists || len(operations) != 1 {
					t.Errorf("%.80q without digests: annotation %.200s, %q", text, now, operations)
				}
			}
		}
		// It does not count as a digest that is stored.
		q := pod(spec)
		q.old = pod(`{containers: [{name: c, image: "b:1"}]}`, quoted).object
		if got, _, _ := w.mutated(t, q); !strings.Contains(object(t, got), "a:1@"+digestOf("a:1")) {
			t.Errorf("%.80q in the old object: %s", text, object(t, got))
		}
		// The judgement of the pod does not read it.
		j := &judge{}
		v := newWorld(t, webhook.Options{Signatures: j.Judge})
		if r := v.ask(t, pod(`{containers: [{name: c, image: "bad:1"}]}`, quoted)); r.Allowed {
			t.Errorf("%.80q admits an image without a signature", text)
		}
	}
	// A user that removes it or changes it gets it back.
	w, _ := newPinner(t)
	stored, _, _ := w.mutated(t, pod(spec, "other: b"))
	for _, quoted := range []string{"other: c", "other: c, " + digestsKey + `: "{}"`} {
		q := pod(`{containers: [{name: c, image: "a:1@`+digestOf("a:1")+`"}]}`, quoted)
		q.old = object(t, stored)
		got, _, _ := w.mutated(t, q)
		if now, _ := annotationOf(got); now != truth {
			t.Errorf("%s: annotation %s; want %s", quoted, now, truth)
		}
	}
	// One that is too long to be ours is not read.
	long := testkit.Value(json.Marshal(truth + strings.Repeat(" ", 200<<10)))(t)
	got, _, _ := w.mutated(t, pod(`{containers: [{name: c, image: "a:1@`+digestOf("a:1")+`"}]}`,
		fmt.Sprintf("%s: %s", digestsKey, long)))
	if now, exists := annotationOf(got); exists {
		t.Errorf("annotation of %d bytes", len(now))
	}
	// A digest that a user wrote is no note.
	claim := forged("containers/c", "a:1@"+other, other)
	got, _, _ = w.mutated(t, pod(`{containers: [{name: c, image: "a:1@`+other+"@"+other+`"}]}`,
		digestsKey+": '"+claim+"'"))
	if now, exists := annotationOf(got); exists {
		t.Errorf("annotation %s", now)
	}
}

func TestAnnotationOfDigestsIsBounded(t *testing.T) {
	w, _ := newPinner(t)
	var containers strings.Builder
	for i := range 900 {
		fmt.Fprintf(&containers, `{name: c%d, image: "r.test/%s:%d"},`, i, strings.Repeat("a", 100), i)
	}
	_, _, r := w.mutated(t, pod(`{containers: [`+containers.String()+`]}`))
	if r.Allowed || !strings.Contains(r.Result.Message, "too many images for the annotation") {
		t.Errorf("%q; want it denied", message(r))
	}
}

// A pod that is larger than a newer limit allows keeps running, and its labels can be changed.
func TestUpdatesOfOtherFieldsAreNotLimited(t *testing.T) {
	w, p := newPinner(t)
	containers := strings.Repeat(`{name: c, image: "a:1"},`, 1001)
	for _, tc := range []struct {
		added string
		want  webhook.Outcome
	}{{"", webhook.Unchanged}, {`{name: d, image: "b:1"}`, webhook.Invalid}} {
		q := pod(`{containers: [`+containers+tc.added+`]}`, "other: b")
		q.old = pod(`{containers: [` + containers + `]}`).object
		_, operations, r := w.mutated(t, q)
		if w.last().Outcome != tc.want || r.Allowed != (tc.want == webhook.Unchanged) || len(operations) > 0 ||
			len(p.asked) > 0 {
			t.Errorf("with %q: %s, %q, asked for %q; want %s", tc.added, w.last().Outcome, message(r), p.asked, tc.want)
		}
	}
	// One whose annotation would be too long loses it, unless that has to tell of a digest that is added now.
	now, old, list := map[string]any{}, map[string]any{}, ""
	for i := range 900 {
		name, image := fmt.Sprintf("c%d", i), fmt.Sprintf("r.test/%s:%d", strings.Repeat("a", 90), i)
		in := now
		if i%2 == 0 {
			in = old
		}
		in["containers/"+name] = map[string]string{"image": image, "digest": digestOf(image)}
		list += fmt.Sprintf("{name: %s, image: %q},", name, image+"@"+digestOf(image))
	}
	annotation := func(notes map[string]any) string { return fmt.Sprintf("%s: %q", digestsKey, object(t, notes)) }
	for _, added := range []string{"", `{name: d, image: "b:1"}`} {
		q := pod(`{containers: [`+list+added+`]}`, annotation(now))
		q.old = pod(`{containers: [`+list+`]}`, annotation(old)).object
		got, operations, r := w.mutated(t, q)
		_, exists := annotationOf(got)
		if added == "" && (!r.Allowed || exists || len(operations) != 1) || added != "" && r.Allowed {
			t.Errorf("with %q: %s, %q, annotation %v", added, w.last().Outcome, message(r), exists)
		}
	}
}

func TestMutationsThatPanicDeny(t *testing.T) {
	w := newWorld(t, webhook.Options{
		Digests: func(context.Context, string, []verify.Tagged) ([]string, []admission.Finding, []string) {
			panic("defect")
		},
	})
	if _, _, r := w.mutated(t, pod(everyPlace)); r.Allowed || r.Result.Code != http.StatusInternalServerError ||
		len(w.panics) != 1 {
		t.Errorf("%q; want a denial", message(r))
	}
}

// BenchmarkMutateAndValidate is about a pod of five images whose digests are in the cache; the goal is a p99 of 10 ms.
func BenchmarkMutateAndValidate(b *testing.B) {
	set := testkit.Value(policyfiles.Read(policyfiles.Paths{Folder: digestPolicies, AnyOwner: true}))(b)
	s := testkit.Value(verify.NewService(verify.ServiceOptions{
		Config: config.DefaultPolicyd(), Verified: func(string) {},
		Resolve: func(_, tag string) (string, error) { return digestOf(tag), nil },
		Verify: func(context.Context, verify.Image, []*requirement.Rule, admission.Login, bool) (requirement.Report, error) {
			return requirement.Report{}, nil
		},
	}))(b)
	defer s.Close()
	rules := testkit.Value(s.Compile(set))(b)
	h := testkit.Value(webhook.New(webhook.Options{
		Observe: func(webhook.Event) {},
		Digests: func(ctx context.Context, namespace string, images []verify.Tagged) (
			[]string, []admission.Finding, []string,
		) {
			return s.Digests(ctx, rules, "team-a", images)
		},
		Signatures: func(ctx context.Context, _ string, images []string, template bool, u verify.Unselected) (
			[]admission.Finding, []string,
		) {
			return s.Judge(ctx, rules, "team-a", images, template, u)
		},
	}))(b)
	w := &world{Handler: h}
	var containers []string
	for i := range 5 {
		containers = append(containers, fmt.Sprintf(`{name: c%d, image: "registry.example/team-a/app-%d:1"}`, i, i))
	}
	q := pod("{containers: [" + strings.Join(containers, ", ") + "]}")
	stored, operations, _ := w.mutated(b, q)
	if len(operations) != 6 {
		b.Fatalf("operations %q", operations)
	}
	mutate, validate := q.body(b), request{resource: "pods", kind: "Pod", object: object(b, stored)}.body(b)
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		first := w.post(b.Context(), webhook.MutatePath, mutate)
		second := w.post(b.Context(), webhook.ValidatePath, validate)
		took = append(took, time.Since(began))
		if first.Code != http.StatusOK || second.Code != http.StatusOK {
			b.Fatal(first.Body, second.Body)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
