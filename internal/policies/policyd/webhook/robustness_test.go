package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

// What is not a review gets a status and a text of ours, and changes nothing for the next request.
func TestRefusedRequests(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork)})
	review := string(pod("{containers: [{name: c, image: a}]}").body(t))
	image := imageReview + `,"spec":{"containers":[{"image":"a"}],"namespace":"team"}}`
	const validate, reviews = "POST " + webhook.ValidatePath, "POST " + webhook.ImageReviewPath
	deep := `"object":{"x":` + strings.Repeat(`{"x":`, 20000) + `1` + strings.Repeat(`}`, 20000) + `,`
	with := func(text, from, to string) string { return strings.Replace(text, from, to, 1) }
	for name, tc := range map[string]struct {
		to, body string // method, path and type, application/json if there is none
		status   int
	}{
		"other path":           {"POST /", review, 404},
		"path below":           {validate + "/x", review, 404},
		"GET":                  {"GET " + webhook.ValidatePath, "", 405},
		"PUT":                  {"PUT " + webhook.ImageReviewPath, image, 405},
		"no content type":      {validate + " -", review, 415},
		"YAML":                 {validate + " application/yaml", review, 415},
		"protobuf":             {reviews + " application/vnd.kubernetes.protobuf", image, 415},
		"malformed type":       {validate + " application/json;;", review, 415},
		"charset":              {validate + " application/json;charset=utf-8", review, 200},
		"empty":                {validate, "", 400},
		"null":                 {validate, "null", 400},
		"list":                 {validate, "[]", 400},
		"half":                 {validate, review[:len(review)/2], 400},
		"two":                  {validate, review + review, 400},
		"deep":                 {validate, strings.Repeat("[", 1<<20), 413},
		"deep object":          {validate, with(review, `"object":{`, deep), 400},
		"other version":        {validate, with(review, "admission.k8s.io/v1", "admission.k8s.io/v1beta1"), 400},
		"other kind":           {validate, with(review, `"AdmissionReview"`, `"ImageReview"`), 400},
		"no request":           {validate, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, 400},
		"no uid":               {validate, with(review, "uid-1", ""), 400},
		"wrong type":           {validate, with(review, `"uid-1"`, `7`), 400},
		"other case":           {validate, with(review, `"request"`, `"Request"`), 400},
		"review at the other":  {reviews, review, 400},
		"image, empty":         {reviews, "", 400},
		"image, half":          {reviews, image[:len(image)/2], 400},
		"image, other version": {reviews, with(image, "v1alpha1", "v1"), 400},
		"image, wrong type":    {reviews, with(image, `"a"`, `["canary"]`), 400},
		"too large, no uid":    {validate, strings.Repeat(" ", 7<<20), 413},
		"too large, nested":    {validate, `{"request":{"object":{"uid":"x"` + strings.Repeat(" ", 7<<20), 413},
		"too large, list":      {validate, `[` + strings.Repeat("7,", 4<<20), 413},
	} {
		to := append(strings.Fields(tc.to), "application/json")
		r := httptest.NewRequestWithContext(t.Context(), to[0], to[1], strings.NewReader(tc.body))
		r.Header.Set("Content-Type", strings.Trim(to[2], "-"))
		answer := httptest.NewRecorder()
		before := len(w.events)
		w.ServeHTTP(answer, r)
		// what no API server sends is not counted
		if counted := len(w.events) > before; counted == (tc.status == 404 || tc.status == 405) {
			t.Errorf("%s: counted %v", name, counted)
		}
		if answer.Code != tc.status || strings.Contains(answer.Body.String(), "canary") || answer.Body.Len() > 500 {
			t.Errorf("%s: %d, %s; want %d", name, answer.Code, answer.Body, tc.status)
		}
		if tc.status != 404 && tc.status != 405 && (w.last().Outcome == webhook.Refused) != (tc.status != 200) {
			t.Errorf("%s: event %+v", name, w.last())
		}
	}
	if len(w.panics) > 0 {
		t.Errorf("panics %v", w.panics)
	}
}

// The user chooses the size of an object, so one that is too large is denied and not left to the failure policy.
func TestTooLargeObjectsAreDenied(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork)})
	with := func(size int) []byte {
		body := pod("{containers: [{name: c, image: a, env: [{name: A, value: large}]}]}").body(t)
		return bytes.Replace(body, []byte("large"), bytes.Repeat([]byte("x"), size), 1)
	}
	body := with(7 << 20)
	r := decode(t, w.post(t.Context(), webhook.ValidatePath, body))
	if r.Allowed || r.Result.Code != http.StatusRequestEntityTooLarge || w.last().Outcome != webhook.Invalid {
		t.Errorf("%s, event %+v; want a denial", message(r), w.last())
	}
	if body = with(5 << 20); !decode(t, w.post(t.Context(), webhook.ValidatePath, body)).Allowed {
		t.Error("an object and the one before it, 5 MiB, are not judged")
	}
	if got := w.reviewImages(t, "team", "a:"+strings.Repeat("x", 4<<20)); got.Allowed ||
		w.last().Outcome != webhook.Invalid {
		t.Errorf("an image review: %+v; want a denial", got)
	}
}

// The user chooses the numbers of containers, volumes and mounts; what takes long to judge is denied.
func TestManyParts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	if testkit.Raced {
		t.Skip("has one goroutine; make race runs it without the detector")
	}
	var policies []string
	for i := range 100 {
		policies = append(policies, fmt.Sprintf("}\nspec: {spec: {containers: [{image: [{registry: {whitelist: "+
			"[r%d.test]}}], securityContext: {runAsUser: {forbidNil: true}, runAsGroup: {forbidNil: true}}}], "+
			"volumes: [{volumeType: {whitelist: [secret]}}]}}", i))
	}
	w := newWorld(t, webhook.Options{Chain: chain(t, policies...), Templates: templates()})
	list := func(n int, format string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	const named = "{name: c%d, image: a}"
	mounted := "{name: c%d, volumeMounts: " + strings.ReplaceAll(list(11, "{name: v, mountPath: /%d}"), "%", "%%") + "}"
	for name, tc := range map[string]struct {
		spec string
		code string
	}{
		"containers, limit":    {"{containers: " + list(1000, named) + "}", "403"},
		"containers":           {"{containers: " + list(1001, named) + "}", "422"},
		"init containers":      {"{initContainers: " + list(1001, named) + "}", "422"},
		"ephemeral containers": {"{ephemeralContainers: " + list(1001, named) + "}", "422"},
		"volumes, limit":       {"{volumes: " + list(1000, "{name: v%d, emptyDir: {}}") + "}", "403"},
		"volumes":              {"{volumes: " + list(1001, "{name: v%d, emptyDir: {}}") + "}", "422"},
		"mounts":               {"{containers: " + list(1000, mounted) + "}", "422"},
	} {
		for _, resource := range []string{"pods", "deployments.apps"} {
			began := time.Now()
			if got := message(w.ask(t, wrap(tc.spec)[resource])); !strings.HasPrefix(got, tc.code+" ") || len(got) > 2000 {
				t.Errorf("%s, %s: %q; want %s", name, resource, got, tc.code)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s, %s: took %v", name, resource, took)
			}
			q := wrap(tc.spec)[resource]
			q.old, q.object = q.object, strings.Replace(q.object, "name: app", "name: app, finalizers: [x.io/y]", 1)
			if !w.ask(t, q).Allowed {
				t.Errorf("%s, %s: finalizers cannot be changed", name, resource)
			}
		}
	}
	half := list(501, named)
	spec := "{groups: [{template: {spec: {containers: " + half + "}}}, {template: {spec: {containers: " + half + "}}}]}"
	q := wrap("{}")["groupsofpods.example.com"]
	q.object = "{spec: " + spec + "}"
	w = newWorld(t, webhook.Options{Templates: templates()}) // admits the first template
	got := message(w.ask(t, q))
	if !strings.HasPrefix(got, "422 ") || !strings.HasSuffix(got, "].template: the object has more than 1000 containers, "+
		"1000 volumes or 10000 mounts") {
		t.Errorf("two templates with 501 containers each: %q; want a denial with the place and the reason", got)
	}
}

// Objects that cannot be decoded are denied without a value of them.
func TestInvalidObjectsAreDenied(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork)})
	for name, change := range map[string]func(q *request){
		"no object":      func(q *request) { q.object = "" },
		"null":           func(q *request) { q.object = "null" },
		"list":           func(q *request) { q.object = "[]" },
		"wrong type":     func(q *request) { q.object = "{spec: {containers: [{name: canary, env: canary}]}}" },
		"number":         func(q *request) { q.object = "{spec: {containers: [{env: [{value: 4711}]}]}}" },
		"quantity":       func(q *request) { q.object = "{spec: {containers: [{resources: {limits: {cpu: canary}}}]}}" },
		"time":           func(q *request) { q.object = "{metadata: {creationTimestamp: canary}}" },
		"other kind":     func(q *request) { q.kind = "Binding" },
		"other group":    func(q *request) { q.group, q.resource, q.kind = "", "pods", "Scale" },
		"no Deployment":  func(q *request) { q.group, q.resource, q.object = "apps", "deployments", "7" },
		"spec of a text": func(q *request) { q.group, q.resource, q.object = "apps", "deployments", "{spec: canary}" },
		"template of text": func(q *request) {
			q.group, q.resource, q.object = "apps", "deployments", "{spec: {template: canary}}"
		},
	} {
		q := pod("{containers: [{name: c, image: a}]}")
		change(&q)
		r := w.ask(t, q)
		got := message(r)
		shown := strings.Contains(got, "canary") || strings.Contains(got, "4711")
		if !strings.HasPrefix(got, "422 pullgate: ") || shown || w.last().Outcome != webhook.Invalid {
			t.Errorf("%s: %q, event %+v; want a denial", name, got, w.last())
		}
	}
}

// Values of environment, labels and annotations are in no answer and no event.
func TestNoValueOfTheObjectIsShown(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Review: deniesAll{}.Review})
	const spec = "{hostNetwork: true, containers: [{name: c, image: a, command: [canary], env: [{name: A, value: " +
		"canary}]}], volumes: [{name: v, csi: {driver: d, volumeAttributes: {k: canary}}}]}"
	for resource, q := range wrap(spec) {
		q.object = strings.Replace(q.object, "name: app", "name: app, labels: {l: canary}", 1)
		q.user.Username = "canary"
		answer := w.post(t.Context(), webhook.ValidatePath, q.body(t))
		if text := answer.Body.String() + fmt.Sprintf("%+v", w.last()); strings.Contains(text, "canary") {
			t.Errorf("%s: %s", resource, text)
		}
	}
}

// A client that sends its body slowly, or none, holds a handler no longer than it may wait.
func TestSlowClients(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork)})
	server := httptest.NewServer(w)
	defer server.Close()
	conn := testkit.Value(net.Dial("tcp", server.Listener.Addr().String()))(t)
	defer func() { _ = conn.Close() }()
	began := time.Now()
	const header = "POST %s?timeout=300ms HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
		"1000\r\n\r\n{"
	testkit.Value(fmt.Fprintf(conn, header, webhook.ValidatePath))(t)
	testkit.Must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	answer, _ := io.ReadAll(conn)
	if took := time.Since(began); took > 10*time.Second || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
		t.Errorf("after %v: %s; want an answer with the status 400", took, answer)
	}
}

// Reading a body to its end leaves no deadline behind that would end the request while a backend is asked.
func TestRequestLastsAfterTheBody(t *testing.T) {
	w := newWorld(t, webhook.Options{Review: func(ctx context.Context, _ review.Subject) []admission.Finding {
		<-ctx.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return deniesAll{}.Review(ctx, review.Subject{})
	}})
	server := httptest.NewServer(w)
	defer server.Close()
	body := pod("{containers: [{name: c, image: a}]}").body(t)
	url := server.URL + webhook.ValidatePath + "?timeout=5s" // enough to read the body on a loaded machine
	answer, err := server.Client().Post(url, "application/json", bytes.NewReader(body))
	testkit.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	if text, _ := io.ReadAll(answer.Body); !bytes.Contains(text, []byte("team/app: no")) {
		t.Errorf("answer %s; want that of the review at its deadline", text)
	}
}
