package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

// The paths of the endpoints. Those of a cluster with a name have a prefix; see ClusterPath.
const (
	ValidatePath    = "/admission/validate"
	MutatePath      = "/admission/mutate"
	ImageReviewPath = "/imagereview"

	clustersPath = "/clusters/"
)

// ClusterPath returns a path for the API server of a cluster: the same one for the cluster without a name, "".
func ClusterPath(cluster, path string) string {
	if cluster == "" {
		return path
	}
	return clustersPath + cluster + path
}

const (
	maxObject = 3 << 20 // the limit of kube-apiserver for the body of a request
	// maxAdmissionReview has room for an object, the object before an update, and what is around them.
	maxAdmissionReview = 2*maxObject + 64<<10
	// maxValues bounds the JSON values of a body: a value of a few bytes, such as null in a list of containers, takes a
	// kilobyte once it is decoded.
	maxValues              = 100_000
	largeBody, largeValues = 256 << 10, 4000 // the limits of a body that is not large
	// maxReading is how many large bodies are held at the same time, and maxDecoding how many of them are decoded.
	maxReading, maxDecoding = 8, 1
	readTimeout             = 10 * time.Second // bounds reading a body
	// defaultTimeout is the default of kube-apiserver for a webhook, and maxTimeout the maximum.
	defaultTimeout, maxTimeout = 10 * time.Second, 30 * time.Second
)

// Options are the settings of a Handler. The functions may be called concurrently. All but the last two may be nil.
type Options struct {
	// Chain judges restrictions. Image reviews are not in it. A nil Chain admits everything.
	Chain  *admission.Chain
	Labels func(ctx context.Context, namespace string) (labels map[string]string, ok bool)
	// Review asks the backends of image reviews about a pod. It returns at least one finding; none denies.
	Review func(context.Context, review.Subject) []admission.Finding
	// Signatures returns the findings of rules about signatures; see verify.Service.Judge.
	Signatures func(ctx context.Context, namespace string, images []string, template bool, u verify.Unselected) (
		findings []admission.Finding, undetermined []string,
	)
	// Digests returns what rules add to images of pods; see verify.Service.Digests.
	Digests func(ctx context.Context, namespace string, images []verify.Tagged) (
		digests []string, findings []admission.Finding, unresolved []string,
	)
	// Changes returns what rules do to a new pod for images with digests; see verify.Service.Changes.
	Changes func(ctx context.Context, namespace string, elements []verify.Element) ([]*verify.Change, verify.Refusals)
	// Object returns the findings of rules with conditions on pods; see verify.Service.JudgeObject.
	Object func(context.Context, verify.Object) ([]admission.Finding, verify.Unselected)
	// Begin makes what changes a pod use one set of files, with the context that it returns.
	Begin func(context.Context) context.Context
	// Initialisers returns what completes new pods, before all else; nil if nothing does.
	Initialisers func(context.Context) func(context.Context, *Draft) HookAnswers
	// Custom judges an object by rules for custom resources; nil if none is for it. See verify.Service.JudgeCustom.
	Custom func(context.Context, verify.CustomObject) *verify.Custom
	// Hooks returns what asks the hooks for requests with an operation and a subresource; nil if there are none.
	Hooks     func(operation, subresource string) AskHooks
	Templates []config.PodTemplate // where custom resources have pod templates
	Clusters  []string             // the names of clusters. They are in the contexts of all functions
	// Client reports whether a client may ask in the name of a cluster; nil means that all may.
	Client  func(cluster string, connection *tls.ConnectionState) bool
	Observe func(Event)                   // is called with each answer before it is sent
	OnPanic func(value any, stack []byte) // is called when the judgement of a request panics
}

// An Outcome says how a request was answered.
type Outcome string

// The outcomes: Allowed and Denied are answers by Event.Decision.
const (
	Refused   Outcome = "refused" // not a review, or its judgement failed before its subject was known
	Allowed   Outcome = "allowed"
	Denied    Outcome = "denied"
	NotJudged Outcome = "not_judged" // allowed: no policy is about the kind of object or operation
	Unchanged Outcome = "unchanged"  // allowed: nothing changes that a policy judges, or the pod is not to be changed
	MirrorPod Outcome = "mirror_pod" // the API server's copy of a static pod was allowed
	Changed   Outcome = "changed"    // allowed, and the pod is changed
	Invalid   Outcome = "invalid"    // denied: the object cannot be decoded or exceeds a limit
	Failed    Outcome = "failed"     // denied: the judgement panicked
)

// Outcomes returns all outcomes.
func Outcomes() []Outcome {
	return []Outcome{Refused, Allowed, Denied, NotJudged, Unchanged, MirrorPod, Changed, Invalid, Failed}
}

// An Event describes a request and its answer. Only Digests and the messages of Decision have values of the object.
type Event struct {
	Path    string // ValidatePath, MutatePath or ImageReviewPath of a cluster, or /clusters/ for an unknown one
	Cluster string
	Outcome Outcome
	// Operation, Resource, Namespace and Name are those of an admission review. Resource is as in
	// pods/ephemeralcontainers and deployments.apps. An image review has only Namespace.
	Operation, Resource, Namespace, Name string
	DryRun                               bool
	Message                              string             // the sentence of a denial
	Decision                             admission.Decision // Decision has the findings of all validators and backends
	AuditAnnotations                     map[string]string  // those of backends and rules
	Digests                              string             // that were added to images, in JSON; "" if none were
	Patched                              string             // the initialisers and rules that have patched the pod
	Took                                 time.Duration
}

// A Handler answers admission reviews and image reviews. It may be used concurrently.
type Handler struct {
	options           Options
	templates         map[schema.GroupResource]templatePath
	reading, decoding *semaphore.Weighted // count large bodies
}

// New returns a handler. The error joins the errors of all templates.
func New(o Options) (*Handler, error) {
	h := &Handler{
		options: o, templates: map[schema.GroupResource]templatePath{},
		reading: semaphore.NewWeighted(maxReading), decoding: semaphore.NewWeighted(maxDecoding),
	}
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
	event := Event{Path: r.URL.Path}
	path := event.Path
	if rest, ok := strings.CutPrefix(path, clustersPath); ok {
		event.Cluster, path, _ = strings.Cut(rest, "/")
		path = "/" + path
		if !slices.Contains(h.options.Clusters, event.Cluster) {
			h.refused(w, Event{Path: clustersPath}, refuse(http.StatusNotFound, "kubeconfigs has no such cluster"))
			return
		}
	}
	var limit int64
	var answer answerFunc
	switch path {
	case ValidatePath:
		limit, answer = maxAdmissionReview, h.validate
	case MutatePath:
		limit, answer = maxAdmissionReview, h.mutate
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
	if h.options.Client != nil && !h.options.Client(event.Cluster, r.TLS) {
		w.Header().Set("Connection", "close") // of a CA that was replaced, for example
		h.refused(w, event, refuse(http.StatusForbidden, "the client certificate is of no CA of this cluster"))
		return
	}
	r = r.WithContext(admission.InCluster(r.Context(), event.Cluster))
	response, refused := h.serve(w, r, limit, answer, &event)
	event.Took = time.Since(began)
	if refused != nil {
		h.refused(w, event, refused)
		return
	}
	h.options.Observe(event)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(response) //nolint:gosec // G705: JSON; an error means that the client has gone
}

func (h *Handler) refused(w http.ResponseWriter, event Event, r *refusal) {
	event.Outcome = Refused
	h.options.Observe(event)
	http.Error(w, r.text, r.status)
}

type refusal struct {
	status int
	text   string
}

func refuse(status int, text string) *refusal { return &refusal{status, "pullgate: " + text} }

type answerFunc func(ctx context.Context, b received, event *Event) (any, *refusal)

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, limit int64, answer answerFunc, event *Event) (
	response []byte, refused *refusal,
) {
	defer func() {
		if h.panicked(recover()) {
			response, refused = nil, refuse(http.StatusInternalServerError,
				"internal error, which is a defect of pullgate; see the log of pullgate-policyd")
		}
	}()
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return nil, refuse(http.StatusUnsupportedMediaType, "the content type must be application/json")
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout(r))
	defer cancel()
	began := time.Now()
	b, refused := h.receive(ctx, w, r, limit)
	b.began = began
	defer b.done()
	if refused != nil {
		return nil, refused
	}
	review, refused := answer(ctx, b, event)
	if refused != nil {
		return nil, refused
	}
	response, err = json.Marshal(review)
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, "the answer cannot be encoded")
	}
	return response, nil
}

type received struct {
	text []byte
	// denied says why the text, which can be cut, must not be decoded; "" if it may be. An error would leave the answer
	// to the failure policy, and the user chooses the size.
	denied string
	// done says that the text and what was decoded are not needed any more. It may be called several times.
	done  func()
	began time.Time // when the request came
}

func (h *Handler) receive(ctx context.Context, w http.ResponseWriter, r *http.Request, limit int64) (
	b received, refused *refusal,
) {
	b.done = func() {}
	enter := func(places *semaphore.Weighted) bool {
		if places.Acquire(ctx, 1) != nil {
			return false
		}
		before := b.done
		b.done = sync.OnceFunc(func() { places.Release(1); before() })
		return true
	}
	if (r.ContentLength < 0 || r.ContentLength > largeBody) && !enter(h.reading) {
		return b, refuse(http.StatusServiceUnavailable, "too many large requests at the same time")
	}
	var cut bool
	if b.text, cut, refused = read(ctx, w, r, limit); refused != nil {
		return b, refused
	}
	if n, _ := registry.Parts(b.text); cut || n > maxValues {
		b.denied = "is too large to be judged"
	} else if (len(b.text) > largeBody || n > largeValues) && !enter(h.decoding) {
		b.denied = "is large, and was not judged in time because of others that are large"
	}
	return b, nil
}

func (h *Handler) panicked(value any) bool {
	if value != nil {
		h.options.OnPanic(value, debug.Stack())
	}
	return value != nil
}

// timeout returns nine tenths of what the caller waits, because the answer has to arrive in time.
func timeout(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = defaultTimeout
	}
	return min(d, maxTimeout) / 10 * 9
}

// read reads a body. cut is true if it was longer than the limit; the first part of it is returned then.
func read(ctx context.Context, w http.ResponseWriter, r *http.Request, limit int64) (
	body []byte, cut bool, refused *refusal,
) {
	control := http.NewResponseController(w)
	deadline := time.Now().Add(readTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = control.SetReadDeadline(deadline) // not every ResponseWriter has deadlines; that of a server does
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	_, cut = errors.AsType[*http.MaxBytesError](err)
	switch {
	case cut:
		return body, true, nil
	case err != nil:
		return nil, false, refuse(http.StatusBadRequest, "the body was not received completely in time")
	}
	// Otherwise the server would take the end of the deadline for the end of the connection, and cancel the request.
	_ = control.SetReadDeadline(time.Time{})
	return body, false, nil
}
