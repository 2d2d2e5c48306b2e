package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

// The paths of the endpoints.
const (
	ValidatePath    = "/admission/validate"
	ImageReviewPath = "/imagereview"
)

const (
	// maxObject is the limit of kube-apiserver for the body of a request.
	maxObject = 3 << 20
	// maxAdmissionReview has room for an object, the object before an update, and what is around them.
	maxAdmissionReview = 2*maxObject + 64<<10
	// readTimeout bounds reading a body, so that a client that sends it slowly does not hold the connection.
	readTimeout = 10 * time.Second
	// defaultTimeout is the default of kube-apiserver for a webhook, and maxTimeout the maximum.
	defaultTimeout = 10 * time.Second
	maxTimeout     = 30 * time.Second
)

// Options are the settings of a Handler.
type Options struct {
	// Chain judges restrictions. Image reviews are not in it. A nil Chain admits everything.
	Chain *admission.Chain
	// Namespaces has the labels of namespaces; nil means that they are not known.
	Namespaces Namespaces
	// Reviewer reviews the images of pods; nil means that no backend is configured.
	Reviewer Reviewer
	// Signatures judges the signatures of images; nil means that no rule is about them.
	Signatures Signatures
	// Templates say where custom resources have pod templates.
	Templates []config.PodTemplate
	// Observe is called with each answer before it is sent; nil is allowed. It may be called concurrently.
	Observe func(Event)
	// OnPanic is called when the judgement of a request panics, with the value and the stack; nil is allowed. It may be
	// called concurrently.
	OnPanic func(value any, stack []byte)
}

// Namespaces has the labels of namespaces. Its methods may be called concurrently.
type Namespaces interface {
	// Labels returns the labels of a namespace; ok is false if they are not known. It returns when ctx ends. The caller
	// does not modify the result.
	Labels(ctx context.Context, namespace string) (labels map[string]string, ok bool)
}

// A Handler answers admission reviews and image reviews. It may be used concurrently.
type Handler struct {
	options   Options
	templates map[schema.GroupResource]templatePath
	reading   chan struct{} // has an element for each large body that is held
	decoding  chan struct{} // has an element for each large body that is decoded
}

// New returns a handler. The error joins the errors of all templates.
func New(o Options) (*Handler, error) {
	h := &Handler{options: o, templates: map[schema.GroupResource]templatePath{}, reading: make(chan struct{}, maxReading), decoding: make(chan struct{}, maxDecoding)}
	if errs := config.CheckPodTemplates(o.Templates); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	builtIn := config.BuiltInPodTemplates()
	for i, t := range slices.Concat(builtIn, o.Templates) {
		resource := schema.GroupResource{Group: t.Group, Resource: t.Resource}
		path := h.templates[resource]
		path.custom = i >= len(builtIn)
		path.paths = append(path.paths, strings.Split(t.Path, "."))
		h.templates[resource] = path
	}
	return h, nil
}

// ServeHTTP answers a request. The status of an answer other than a review says what is wrong with the request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var limit int64
	var answer answerFunc
	switch r.URL.Path {
	case ValidatePath:
		limit, answer = maxAdmissionReview, h.validate
	case ImageReviewPath:
		limit, answer = maxObject, h.imageReview
	default:
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodPost { // not from an API server, so it is not counted; pullgatectl doctor sends GET
		w.Header().Set("Allow", http.MethodPost)
		r := refuse(http.StatusMethodNotAllowed, "the method must be POST")
		http.Error(w, r.text, r.status)
		return
	}
	event := Event{Path: r.URL.Path}
	response, refused := h.serve(w, r, limit, answer, &event)
	event.Took = time.Since(began)
	if refused != nil {
		event.Outcome = Refused
	}
	if h.options.Observe != nil {
		h.options.Observe(event)
	}
	if refused != nil {
		http.Error(w, refused.text, refused.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(response) //nolint:gosec // G705: JSON; an error means that the client has gone
}

// A refusal is the answer to a request that is not a review.
type refusal struct {
	status int
	text   string
}

func refuse(status int, text string) *refusal { return &refusal{status, "pullgate: " + text} }

// An answerFunc returns the answer to a body.
type answerFunc func(ctx context.Context, b received, event *Event) (any, *refusal)

// serve returns the body of an answer.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, limit int64, answer answerFunc, event *Event) (response []byte, refused *refusal) {
	defer func() {
		if value := recover(); value != nil {
			h.panicked(value)
			response, refused = nil, refuse(http.StatusInternalServerError, "internal error, which is a defect of pullgate; see the log of pullgate-policyd")
		}
	}()
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, refuse(http.StatusUnsupportedMediaType, "the content type must be application/json")
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout(r))
	defer cancel()
	b, refused := h.receive(ctx, w, r, limit)
	if refused != nil {
		return nil, refused
	}
	defer b.done()
	review, refused := answer(ctx, b, event)
	if refused != nil {
		return nil, refused
	}
	response, err := json.Marshal(review)
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, "the answer cannot be encoded")
	}
	return response, nil
}

// A received is the body of a request.
type received struct {
	text []byte
	// denied says why the text, of which this can be the beginning, must not be decoded; "" if it may be.
	denied string
	// done says that the text and what was decoded are not needed any more. It may be called several times.
	done func()
}

// receive reads a body, and waits until it may be decoded.
func (h *Handler) receive(ctx context.Context, w http.ResponseWriter, r *http.Request, limit int64) (b received, refused *refusal) {
	leaveReading, leaveDecoding := func() {}, func() {}
	if r.ContentLength < 0 || r.ContentLength > largeBody {
		leave, ok := enter(ctx, h.reading)
		if !ok {
			return b, refuse(http.StatusServiceUnavailable, "too many large requests at the same time")
		}
		leaveReading = leave
	}
	body, cut, refused := read(ctx, w, r, limit)
	if refused != nil {
		leaveReading()
		return b, refused
	}
	b.text = body
	if n := values(body); cut || n > maxValues {
		b.denied = tooLarge
	} else if len(body) > largeBody || n > largeValues {
		leave, ok := enter(ctx, h.decoding)
		if !ok {
			b.denied = tooLate
		}
		leaveDecoding = leave
	}
	b.done = func() { leaveDecoding(); leaveReading() }
	return b, nil
}

// panicked reports a panic that was recovered.
func (h *Handler) panicked(value any) {
	if h.options.OnPanic != nil {
		h.options.OnPanic(value, debug.Stack())
	}
}

// timeout returns the time for a request: nine tenths of what the caller waits, because the answer has to arrive in
// time.
func timeout(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = defaultTimeout
	}
	return min(d, maxTimeout) / 10 * 9
}

// read reads a body. cut is true if it was longer than the limit; the first part of it is returned then.
func read(ctx context.Context, w http.ResponseWriter, r *http.Request, limit int64) (body []byte, cut bool, refused *refusal) {
	control := http.NewResponseController(w)
	deadline := time.Now().Add(readTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	// Not every ResponseWriter has deadlines; that of a server does.
	_ = control.SetReadDeadline(deadline)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		// Otherwise the server would take the end of the deadline for the end of the connection, and cancel the
		// request.
		_ = control.SetReadDeadline(time.Time{})
		return body, false, nil
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return body, true, nil
	}
	return nil, false, refuse(http.StatusBadRequest, "the body was not received completely in time")
}
