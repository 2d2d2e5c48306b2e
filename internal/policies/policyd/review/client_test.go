package review_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A fake is a backend without a network. answer is called for each attempt with its number, from 1.
type fake struct {
	answer func(n int, req *http.Request) (*http.Response, error)

	mu     sync.Mutex
	bodies []string
	at     []time.Time
}

func (f *fake) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.bodies = append(f.bodies, string(body))
	f.at = append(f.at, time.Now())
	n := len(f.bodies)
	f.mu.Unlock()
	return f.answer(n, req)
}

func (f *fake) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bodies)
}

func respond(status int, body string, header ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

const (
	header = `{"apiVersion":"imagepolicy.k8s.io/v1alpha1","kind":"ImageReview","status":`
	allow  = header + `{"allowed":true,"auditAnnotations":{"by":"test"}}}`
	deny   = header + `{"allowed":false,"reason":"not scanned"}}`
)

// always answers each attempt.
func always(status int, body string, header ...string) *fake {
	return &fake{answer: func(int, *http.Request) (*http.Response, error) { return respond(status, body, header...), nil }}
}

// hang answers no attempt.
func hang() *fake {
	return &fake{answer: func(_ int, req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}}
}

// slow answers each attempt after a time.
func slow(d time.Duration, status int, body string) *fake {
	return &fake{answer: func(_ int, req *http.Request) (*http.Response, error) {
		ctx, cancel := context.WithTimeout(req.Context(), d)
		defer cancel()
		<-ctx.Done()
		return respond(status, body), req.Context().Err()
	}}
}

// backend returns the configuration of a backend that admits on failure.
func backend() policyfiles.Backend {
	return policyfiles.Backend{
		Name: "test", AllowTTL: time.Hour, DenyTTL: 30 * time.Second, RetryBackoff: 500 * time.Millisecond,
		DefaultAllow: true, IncludeImageVolumes: true,
	}
}

func client(t *testing.T, b policyfiles.Backend, f *fake) *review.Client {
	t.Helper()
	c := review.NewClientWith(b, f)
	t.Cleanup(c.Close)
	return c
}

func image(name string) review.Subject {
	return review.Subject{Namespace: "default", Images: []string{name}}
}

// ask reviews a subject that the backend reviews.
func ask(t *testing.T, c *review.Client, ctx context.Context, s review.Subject) review.Result { //nolint:revive // tests
	t.Helper()
	r, ok := c.Review(ctx, s)
	if !ok {
		t.Error("the backend does not review the subject")
	}
	return r
}

// Shows: 000-06, 000-12, 000-13, 000-14, 000-17, 000-29
func TestBody(t *testing.T) {
	body := func(containers, more string) string {
		return `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},"spec":{"containers":[` +
			containers + `],` + more + `},"status":{"allowed":false}}` // as kube-apiserver sends it
	}
	const digest = "r.example:5000/a/B@sha256:beb6bd6a68f114c1dc2ea4b28db81bdf91de202a9014972bec5e4d9171d90ed"
	f := always(200, allow)
	c := client(t, backend(), f)
	ask(t, c, t.Context(), review.Subject{
		Namespace: "default", Images: []string{"app:1", "init:1"}, Annotations: map[string]string{
			"x.image-policy.k8s.io/break-glass": "T-7", "image-policy.k8s.io/nothing-before": "canary", "other": "canary",
			"x.image-policy.k8s.io": "canary",
		},
	})
	ask(t, c, t.Context(), review.Subject{
		Namespace: "team", Images: []string{digest}, Volumes: []string{"data"}, Annotations: map[string]string{"a": "b"},
	})
	for i, want := range []string{
		body(`{"image":"app:1"},{"image":"init:1"}`,
			`"annotations":{"x.image-policy.k8s.io/break-glass":"T-7"},"namespace":"default"`),
		body(`{"image":"`+digest+`"},{"image":"data"}`, `"namespace":"team"`),
	} {
		if f.bodies[i] != want {
			t.Errorf("body\n%s\nwant\n%s", f.bodies[i], want)
		}
	}
}

// A backend is sent no environment, no labels and no user: a subject does not have them. A field that is added to the
// types must not be sent before it is decided that it may be.
// Shows: 000-06, 000-07, 000-40
func TestRequestHasNoOtherFields(t *testing.T) {
	for typ, want := range map[reflect.Type]int{
		reflect.TypeFor[review.Subject](): 4, reflect.TypeFor[v1alpha1.ImageReview](): 4,
		reflect.TypeFor[v1alpha1.ImageReviewSpec](): 3, reflect.TypeFor[v1alpha1.ImageReviewContainerSpec](): 1,
	} {
		if typ.NumField() != want {
			t.Errorf("%v has %d fields; want %d", typ, typ.NumField(), want)
		}
	}
}

// Shows: 000-18
func TestWhatIsReviewed(t *testing.T) {
	images := func(f *fake) []string {
		var all []string
		for _, body := range f.bodies {
			var r v1alpha1.ImageReview
			testkit.Must(t, json.Unmarshal([]byte(body), &r))
			for _, c := range r.Spec.Containers {
				all = append(all, c.Image)
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		namespaces      []string
		volumes         bool
		images, volumed string
		want            string
	}{
		"all":                    {nil, true, "1 2", "3", "[1 2 3]"},
		"without volumes":        {nil, false, "1", "3", "[1]"},
		"a volume":               {nil, true, "", "3", "[3]"},
		"a volume, without them": {nil, false, "", "3", "[]"},
		"no image":               {nil, true, "", "", "[]"},
		"a namespace":            {[]string{"b", "a"}, true, "1", "", "[1]"},
		"another namespace":      {[]string{"b"}, true, "1", "", "[]"},
	} {
		subject := review.Subject{Namespace: "a", Images: strings.Fields(c.images), Volumes: strings.Fields(c.volumed)}
		f := always(200, deny)
		b := backend()
		b.Namespaces, b.IncludeImageVolumes = c.namespaces, c.volumes
		r, ok := client(t, b, f).Review(t.Context(), subject)
		if got := fmt.Sprint(images(f)); got != c.want || ok != (c.want != "[]") || r.Allowed {
			t.Errorf("%s: %v, %v reviewed; want %v", name, ok, got, c.want)
		}
	}
}

// A failure is a backend without an answer, how many attempts are made, and the error.
type failure struct {
	fake     *fake
	attempts int
	want     string
}

func failing() map[string]failure {
	connection := func(err error) *fake {
		return &fake{answer: func(int, *http.Request) (*http.Response, error) { return nil, err }}
	}
	invalid := func(body, want string) failure { return failure{always(200, body), 1, want} }
	const (
		notOne    = "the answer is not an ImageReview: "
		badStatus = "the answer has an invalid status: json: cannot unmarshal string"
		is, must  = "the answer is ", "; must be ImageReview of imagepolicy.k8s.io/v1alpha1"
		ever      = "99999999999999"
	)
	return map[string]failure{
		"refused": {
			connection(fmt.Errorf("dial: %w", syscall.ECONNREFUSED)), 5,
			"attempt 5: dial: connection refused",
		},
		"reset":            {connection(syscall.ECONNRESET), 5, "attempt 5: connection reset by peer"},
		"closed":           {connection(io.EOF), 5, "attempt 5: EOF"},
		"TLS":              {connection(errors.New("tls: unknown authority")), 1, "tls: unknown authority"},
		"hangs":            {hang(), 1, "timed out"},
		"500":              {always(500, deny), 5, "attempt 5: status 500 Internal Server Error"},
		"504":              {always(504, ""), 5, "attempt 5: status 504 Gateway Timeout"},
		"429":              {always(429, ""), 5, "attempt 5: status 429 Too Many Requests"},
		"429 for ever":     {always(429, "", "Retry-After", ever), 1, "status 429 Too Many Requests"},
		"503":              {always(503, ""), 1, "status 503 Service Unavailable"},
		"503, Retry-After": {always(503, "", "Retry-After", "1"), 5, "attempt 5: status 503 Service Unavailable"},
		"403":              {always(403, allow), 1, "status 403 Forbidden"},
		"302": {
			always(302, allow, "Location", "https://other.test/", "Retry-After", "1"), 1,
			"status 302 Found",
		},
		"204":          {always(204, ""), 1, "status 204 without a body"},
		"empty":        invalid("", "status 200 without a body"),
		"half":         invalid(allow[:len(allow)/2], notOne+"unexpected end of JSON input"),
		"two":          invalid(allow+allow, notOne+"invalid character '{' after top-level value"),
		"HTML":         invalid("<html>", notOne+"invalid character '<' looking for beginning of value"),
		"list":         invalid("[]", notOne+"json: cannot unmarshal array"),
		"another kind": invalid(`{"kind":"Status","apiVersion":"v1","status":"Success"}`, is+`"Status" of "v1"`+must),
		"another kind only": invalid(strings.Replace(allow, "ImageReview", "Pod", 1),
			is+`"Pod" of "imagepolicy.k8s.io/v1alpha1"`+must),
		"another version": invalid(strings.Replace(allow, "v1alpha1", "v1", 1),
			is+`"ImageReview" of "imagepolicy.k8s.io/v1"`+must),
		"status":             invalid(`{"kind":"ImageReview","status":"allowed"}`, badStatus),
		"allowed, a string":  invalid(`{"kind":"ImageReview","status":{"allowed":"true"}}`, badStatus),
		"one byte too large": invalid(allow+strings.Repeat(" ", 256<<10+1-len(allow)), "the answer has more than 256 KiB"),
	}
}

// Shows: 000-11, 000-22, 000-27
func TestFailures(t *testing.T) {
	for name, c := range failing() {
		synctest.Test(t, func(t *testing.T) {
			for _, defaultAllow := range []bool{true, false} {
				c.fake.bodies = nil
				b := backend()
				b.DefaultAllow = defaultAllow
				cl := client(t, b, c.fake)
				for n := 1; n <= 2; n++ { // a failure is not cached
					start := time.Now()
					r := ask(t, cl, t.Context(), image("a"))
					if r.Allowed != defaultAllow || r.FailedOpen != defaultAllow || r.Cached || r.Reason != "" ||
						!strings.HasPrefix(r.Failure, c.want) {
						t.Errorf("%s: %+v; want defaultAllow, marked, and %s", name, r, c.want)
					}
					if got := c.fake.requests(); got != n*c.attempts {
						t.Errorf("%s: %d attempts after review %d; want %d each", name, got, n, c.attempts)
					}
					if r.Took != time.Since(start) || r.Took > review.AttemptTimeout {
						t.Errorf("%s: took %v of %v", name, r.Took, time.Since(start))
					}
				}
			}
		})
	}
}

// Shows: 000-11, 000-15
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		allowed bool
		reason  string
		audit   map[string]string
	}{
		"allow":             {allow, true, "", map[string]string{"by": "test"}},
		"deny":              {deny, false, "not scanned", nil},
		"no kind":           {`{"status":{"allowed":true}}`, true, "", nil},
		"no status":         {`{"kind":"ImageReview"}`, false, "", nil},
		"null":              {`{"status":null}`, false, "", nil},
		"no answer":         {`{"status":{"reason":"x"}}`, false, "x", nil},
		"another spelling":  {`{"status":{"allowed":false,"Allowed":true}}`, false, "", nil},
		"a reason to allow": {`{"status":{"allowed":true,"reason":"x"}}`, true, "", nil},
		"a long reason": {
			`{"status":{"reason":"` + strings.Repeat("ä", 3000) + `"}}`, false, strings.Repeat("ä", 512),
			nil,
		},
		"several lines": {`{"status":{"reason":"\na\r\nb\u0000\u001b\u202ec\n"}}`, false, "a  b   c", nil},
		"many annotations": {
			`{"status":{"auditAnnotations":{"b":"` + strings.Repeat("x", 9000) + `","a":"1"}}}`, false, "",
			map[string]string{"a": "1"},
		},
		"exactly 256 KiB": {allow + strings.Repeat(" ", 256<<10-len(allow)), true, "", map[string]string{"by": "test"}},
		"fields of the API": {
			`{"metadata":{"creationTimestamp":null,"x":1},"spec":7,"status":{"allowed":true},"new":{}}`, true, "", nil,
		},
	} {
		r := ask(t, client(t, backend(), always(201, c.body)), t.Context(), image("a"))
		if r.Allowed != c.allowed || r.Reason != c.reason || !maps.Equal(r.AuditAnnotations, c.audit) || r.FailedOpen ||
			r.Err != nil || r.Backend != "test" {
			t.Errorf("%s: %+v; want %+v", name, r, c)
		}
	}
}

// Shows: 000-21
func TestAttemptsAreSpaced(t *testing.T) {
	for name, c := range map[string]struct {
		backoff  time.Duration
		header   []string
		min, max [4]int64 // milliseconds
	}{
		"backoff": {time.Second, nil, [4]int64{1000, 1500, 2250, 3375}, [4]int64{1200, 1800, 2700, 4050}},
		"no wait": {0, nil, [4]int64{}, [4]int64{}},
		"later": {
			time.Second,
			[]string{"Retry-After", "3"},
			[4]int64{3000, 3000, 3000, 3375},
			[4]int64{3000, 3000, 3000, 4050},
		},
		"a date": {
			time.Second,
			[]string{"Retry-After", "Sat, 01 Jan 2000 00:00:10 GMT"},
			[4]int64{10000, 1500, 2250, 3375},
			[4]int64{10000, 1800, 2700, 4050},
		},
	} {
		synctest.Test(t, func(t *testing.T) { // its clock begins at 2000-01-01
			b := backend()
			b.RetryBackoff = c.backoff
			f := always(429, "", c.header...)
			ask(t, client(t, b, f), t.Context(), image("a"))
			for i := range 4 {
				if d := f.at[i+1].Sub(f.at[i]).Milliseconds(); d < c.min[i] || d > c.max[i] {
					t.Errorf("%s: %d ms after attempt %d; want %d to %d", name, d, i+1, c.min[i], c.max[i])
				}
			}
		})
	}
}

// Shows: 000-21
func TestAnswerAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{answer: func(n int, _ *http.Request) (*http.Response, error) {
			if n == 1 {
				return nil, syscall.ECONNREFUSED
			}
			return respond([]int{429, 500, 504, 200}[n-2], deny, "Retry-After", "2"), nil
		}}
		c := client(t, backend(), f)
		if r := ask(t, c, t.Context(), image("a")); r.Allowed || r.Err != nil || r.Reason != "not scanned" ||
			f.requests() != 5 {
			t.Errorf("%+v after %d attempts; want the answer of the fifth", r, f.requests())
		}
	})
}

func TestDeadline(t *testing.T) {
	for name, f := range map[string]*fake{
		"hangs": hang(), "429": always(429, "", "Retry-After", "20"), "refused": failing()["refused"].fake,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := backend()
			b.RetryBackoff = time.Minute
			c := client(t, b, f)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			r := ask(t, c, ctx, image("a"))
			within := strings.HasPrefix(r.Failure, "no answer within 9s")
			if !r.FailedOpen || ctx.Err() != nil || r.Took != 9*time.Second || !within {
				t.Errorf("%s: %+v, context: %v; want a failure a second before the deadline", name, r, ctx.Err())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // without a deadline a review ends too
		r := ask(t, client(t, backend(), slow(25*time.Second, 500, "")), t.Context(), image("a"))
		if r.Took != review.MaxReview || !r.FailedOpen {
			t.Errorf("%+v; want a failure after %v", r, review.MaxReview)
		}
	})
}

func TestCanceledReviewDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, backend(), hang())
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if r := ask(t, c, ctx, image("a")); r.Allowed || r.FailedOpen || !errors.Is(r.Err, context.Canceled) {
			t.Errorf("%+v; want a denial", r)
		}
	})
}

func TestClosedClientDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, backend(), hang())
		time.AfterFunc(time.Second, c.Close)
		for _, when := range []string{"during the review", "before the review"} {
			if r := ask(t, c, t.Context(), image("a")); r.Allowed || r.FailedOpen || !errors.Is(r.Err, review.ErrClosed) {
				t.Errorf("%s: %+v; want a denial", when, r)
			}
		}
	})
}

func TestSubjectThatCannotBeSentIsDenied(t *testing.T) {
	f := always(200, allow)
	c := client(t, backend(), f)
	for _, s := range []review.Subject{
		image("a\xff"), image("a\xfe"),
		{Namespace: "\xff", Images: []string{"a"}},
		{Images: []string{"a"}, Annotations: map[string]string{"a.image-policy.k8s.io/b": "\xff"}},
		{Images: []string{"a"}, Annotations: map[string]string{"a.image-policy.k8s.io/\xff": "b"}},
	} {
		if r := ask(t, c, t.Context(), s); r.Allowed || r.FailedOpen || !errors.Is(r.Err, review.ErrNotUTF8) {
			t.Errorf("%q: %+v; want a denial", s, r)
		}
	}
	if r := ask(t, c, t.Context(), image("a\ufffd")); !r.Allowed || f.requests() != 1 {
		t.Errorf("%+v after %d requests; want a valid character to be sent", r, f.requests())
	}
}
