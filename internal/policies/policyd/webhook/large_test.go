package webhook_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// A list with many small elements takes a hundred times its size once it is decoded.
func TestManyValuesAreDenied(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Templates: templates()})
	for _, element := range []string{"{}", "null", `{"name":"a"}`} {
		many := "[" + strings.Repeat(element+",", 200_000) + element + "]"
		for _, field := range []string{"containers", "volumes", "initContainers", "ephemeralContainers", "tolerations"} {
			spec := `{"` + field + `":` + many + `}`
			for name, body := range map[string]string{
				"pod": `"resource":{"resource":"pods","version":"v1"},"kind":{"version":"v1","kind":"Pod"},"object":{"spec":` +
					spec + `}`,
				"custom resource": `"resource":{"group":"example.com","resource":"workers"},"object":{"spec":{"worker":` +
					`{"template":{"spec":` + spec + `}}}}`,
			} {
				text := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE",` +
					`"namespace":"team",` + body + `}}`
				before := allocated()
				answer := send(t, w, webhook.ValidatePath, text)
				if used := allocated() - before; used > 32<<20 {
					t.Errorf("%s, %s of %s: %d MiB allocated", name, field, element, used>>20)
				}
				if !strings.Contains(answer, `"uid":"u","allowed":false`) ||
					!strings.Contains(answer, "object is too large to be judged") {
					t.Errorf("%s, %s of %s: %s; want a denial", name, field, element, answer)
				}
			}
		}
		answer := send(t, w, webhook.ImageReviewPath, imageReview+`,"spec":{"namespace":"team","containers":`+many+`}}`)
		if !strings.Contains(answer, `"allowed":false,"reason":"pullgate: the review is too large to be judged"`) {
			t.Errorf("image review with %s: %s; want a denial", element, answer)
		}
	}
}

// allocated returns how many bytes have been allocated so far.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func send(t *testing.T, w *world, path, body string) string {
	t.Helper()
	return w.post(t.Context(), path+"?timeout=1s", []byte(body)).Body.String()
}

// A waiting is a reviewer, has hooks and the labels of namespaces; all wait.
type waiting struct{ entered, release chan struct{} }

func (w waiting) wait() {
	w.entered <- struct{}{}
	<-w.release
}

func (w waiting) Review(context.Context, review.Subject) []admission.Finding {
	w.wait()
	return []admission.Finding{{Answer: admission.Admit}}
}

func (w waiting) Hooks(string, string) webhook.AskHooks {
	send := func() (a webhook.HookAnswers) {
		w.wait()
		return a
	}
	return func(_ context.Context, _ *admissionv1.AdmissionRequest, _, _ *admission.Pod) func() webhook.HookAnswers {
		return send
	}
}

func (w waiting) Labels(context.Context, string) (map[string]string, bool) {
	w.wait()
	return nil, false
}

// Large objects are judged one at a time. A review or a hook that takes long does not make others wait.
func TestLargeObjectsWaitForEachOther(t *testing.T) {
	large := strings.Replace(string(pod("{containers: [{name: c, image: a}]}").body(t)),
		`"object":{`, `"object":{"x":"`+strings.Repeat("x", 300<<10)+`",`, 1)
	const allowed = `"allowed":true`
	sendAll := func(w *world, n int, want string) *sync.WaitGroup {
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if answer := send(t, w, webhook.ValidatePath, large); !strings.Contains(answer, want) {
					t.Errorf("%s; want %s", answer, want)
				}
			})
		}
		return &all
	}
	for _, options := range []func(waiting) webhook.Options{
		func(w waiting) webhook.Options { return webhook.Options{Review: w.Review} },
		func(w waiting) webhook.Options { return webhook.Options{Hooks: w.Hooks} },
	} {
		w := waiting{make(chan struct{}), make(chan struct{})}
		o := options(w)
		o.Chain = chain(t, noHostNetwork)
		all := sendAll(newWorld(t, o), 3, allowed)
		for range 3 {
			<-w.entered
		}
		close(w.release)
		all.Wait()
	}

	labels := waiting{make(chan struct{}), make(chan struct{})}
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Labels: labels.Labels})
	first := sendAll(w, 1, allowed)
	<-labels.entered
	sendAll(w, 2, "the object is large, and was not judged in time").Wait()
	close(labels.release)
	first.Wait()
}
