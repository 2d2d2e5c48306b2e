package hook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

const (
	// maxPerNamespace and outbound.MaxConnections are how many requests to a hook are sent at the same time for one
	// namespace, and for all.
	maxPerNamespace = 8
	maxBody         = 7 << 20 // bounds the objects of a request: two of 3 MiB, the limit of an API server

	maxCertificate = 1 << 20
	maxTexts       = 8 << 10 // bounds the audit annotations, and the warnings, of an answer, in bytes
	maxKey         = 63      // bytes of the key of an audit annotation

	openAfter = 5 // time-outs in a row, and namespaces with one
	openFor   = 30 * time.Second
	// maxNamespaces and maxNamespace bound what a circuit keeps.
	maxNamespaces, maxNamespace = 1024, 63 + 1 + 63 // with the name of a cluster
)

// Errors of answers that deny, whatever the failure policy is: a tenant could cause them.
var (
	ErrBusy     = errors.New("too many requests about pods, try again")
	ErrClosed   = errors.New("pullgate-policyd stops")
	ErrTooLarge = errors.New("the request or its patch is too large")
)

// errOpen is the failure of a request that was not sent.
var errOpen = fmt.Errorf("it timed out %d times in a row, and is not asked for %v", openAfter, openFor)

// A target is what files say about a hook beside its configuration.
type target struct {
	transport *http.Transport
	sum       [sha256.Size]byte // of the certificate and its key
}

// conditionsOf returns nil if there are none.
func conditionsOf(h policyfiles.Hook) (*condition.Compiled, error) {
	if h.Conditions == nil {
		return nil, nil //nolint:nilnil // conditions are optional
	}
	compiled, errs := condition.CompileValidation(&requirement.Validation{Program: h.Conditions})
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", h.File, errs.ToAggregate())
	}
	return compiled, nil
}

func targetOf(h policyfiles.Hook) (*target, error) {
	t := &target{transport: outbound.NewTransport()}
	config := t.transport.TLSClientConfig
	if h.CABundle != "" {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM([]byte(h.CABundle)) // it was checked when the file was loaded
	}
	if h.Socket != "" {
		t.transport.Proxy = nil
		t.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			if err := sockets.Check(h.Socket); err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, "unix", h.Socket)
		}
	}
	if h.Certificate == "" {
		return t, nil
	}
	certificate, err := disk.Read(filepath.Join(h.Certificate, "tls.crt"), maxCertificate)
	key, keyErr := disk.Read(filepath.Join(h.Certificate, "tls.key"), maxCertificate)
	if err = errors.Join(err, keyErr); err == nil {
		var pair tls.Certificate
		pair, err = tls.X509KeyPair(certificate, key)
		config.Certificates = []tls.Certificate{pair}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: client certificate of hook %s: %w", h.File, h.Name, safetext.OneLine(err))
	}
	t.sum = sha256.Sum256(slices.Concat(certificate, []byte{0}, key))
	return t, nil
}

// A Client asks one hook. It may be used concurrently.
type Client struct {
	policyfiles.Hook

	target     atomic.Pointer[target]
	conditions *condition.Compiled             // nil if there are none
	inFlight   *inflight.Group[uint64, []byte] // with the namespaces as tenants, and a new key for each request
	key        atomic.Uint64
	circuit    circuit
	shared     *shared
}

func newClient(h policyfiles.Hook, t *target, s *shared) *Client {
	c := &Client{Hook: h, shared: s, inFlight: inflight.New[uint64, []byte](inflight.Limits{
		PerTenant: maxPerNamespace, Total: outbound.MaxConnections, Wait: h.Timeout,
	}, nil)}
	c.target.Store(t)
	c.conditions, _ = conditionsOf(h) // checked has found no error
	return c
}

// Use makes further requests use another target.
func (c *Client) Use(t *target) {
	if before := c.target.Load(); t != nil && before.sum != t.sum {
		c.target.Store(t)
		before.transport.CloseIdleConnections()
	}
}

// CloseIdle closes connections that are not in use, and reports whether no request is in flight.
func (c *Client) CloseIdle() bool {
	c.target.Load().transport.CloseIdleConnections()
	return c.inFlight.Idle()
}

// Close ends all requests, which deny. It returns when all goroutines of the client have ended.
func (c *Client) Close() {
	c.inFlight.Close()
	c.CloseIdle()
}

// A circuit has the time-outs of each namespace since the last answer.
type circuit struct {
	mu       sync.Mutex
	timeouts map[string]timeouts
}

type timeouts struct {
	count int
	until time.Time // the hook is not asked before
}

func (c *circuit) open(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.timeouts[namespaceKey(namespace)].until)
}

func namespaceKey(name string) string { return strings.Clone(name[:min(len(name), maxNamespace)]) }

func (c *circuit) anyOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timeouts {
		if time.Now().Before(t.until) {
			return true
		}
	}
	return false
}

// note opens a circuit for a namespace after five time-outs of its own: a tenant opens it for no other. Where five
// namespaces have time-outs and none has an answer, the hook is down, and two are enough.
func (c *circuit) note(namespace string, timedOut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !timedOut {
		c.timeouts = nil
		return
	}
	if c.timeouts == nil {
		c.timeouts = map[string]timeouts{}
	}
	key := namespaceKey(namespace)
	t, known := c.timeouts[key]
	if !known && len(c.timeouts) == maxNamespaces {
		return
	}
	if t.count++; t.count >= openAfter || t.count > 1 && len(c.timeouts) >= openAfter {
		t.until = time.Now().Add(openFor)
	}
	c.timeouts[key] = t
}

// A Request is what hooks are asked about: one pod.
type Request struct {
	Admission admissionv1.AdmissionRequest // without a UID, which each call of Ask chooses
	// Unknown are the paths of the fields of the pod that are not known. Conditions on one of them count as met.
	Unknown []string
	Observe func(hook, outcome string, took time.Duration)
	// Apply applies the JSON patch of an initialiser that allows the pod, or returns why it cannot, which is then a
	// failure of the initialiser.
	Apply func(patch []byte) error
}

// The outcomes of Request.Observe.
const (
	Allowed      = "allowed"
	Denied       = "denied"
	FailedOpen   = "failed_open"
	FailedClosed = "failed_closed"
)

// Outcomes returns all outcomes.
func Outcomes() []string { return []string{Allowed, Denied, FailedOpen, FailedClosed} }

func outcomeOf(a policyfiles.HookAnswer) string {
	switch {
	case a.Failure != "" && a.Allowed:
		return FailedOpen
	case a.Failure != "":
		return FailedClosed
	case a.Allowed:
		return Allowed
	}
	return Denied
}

// Ask prepares a request and sends it; see Prepare and Prepared.Ask.
func Ask(ctx context.Context, clients []*Client, r Request) ([]policyfiles.HookAnswer, error) {
	p, err := Prepare(ctx, clients, r)
	if err != nil {
		return nil, err
	}
	return p.Ask(ctx), nil
}

// A Prepared is a request that can be sent.
type Prepared struct {
	Request // without the objects, which can be large

	clients []*Client
	tenant  string
	skipped []bool // by client: its conditions are not met
	body    []byte
	refused error  // why no client is asked; nil if they are
	release func() // gives back what the request takes of the budget
}

// Prepare encodes a request, and evaluates the conditions of the clients, of which there is at least one and which are
// of one set. Unless there is an error, the caller must call Ask.
func Prepare(ctx context.Context, clients []*Client, r Request) (*Prepared, error) {
	s, tenant := clients[0].shared, admission.Tenant(ctx, r.Admission.Namespace)
	p := &Prepared{clients: clients, tenant: tenant, skipped: make([]bool, len(clients)), release: func() {}}
	objects := len(r.Admission.Object.Raw) + len(r.Admission.OldObject.Raw)
	size := objects + len(clients)*perRequest
	switch {
	case objects > maxBody:
		p.refused = fmt.Errorf("%w: more than %d MiB", ErrTooLarge, maxBody>>20)
	case !s.waiting.take(tenant, size):
		p.refused = ErrBusy
	default:
		p.release = func() { s.waiting.give(tenant, size) }
		if err := p.fill(ctx, s, &r); err != nil {
			return nil, err
		}
	}
	r.Admission.Object.Raw, r.Admission.OldObject.Raw = nil, nil
	p.Request = r
	return p, nil
}

func (r *Prepared) fill(ctx context.Context, s *shared, request *Request) (err error) {
	filled := false
	defer func() {
		if !filled { // also after a panic
			r.release()
		}
	}()
	request.Admission.UID = uuid.NewUUID()
	if r.body, err = encode(&request.Admission); err == nil {
		err = r.evaluate(ctx, s, request.Unknown)
	}
	filled = err == nil
	return err
}

// encode escapes no characters for HTML: a tenant could make the request six times as large as its objects.
func encode(r *admissionv1.AdmissionRequest) ([]byte, error) {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	err := e.Encode(admissionv1.AdmissionReview{TypeMeta: typeMeta, Request: r})
	return body.Bytes(), err
}

func (r *Prepared) evaluate(ctx context.Context, s *shared, unknown []string) (err error) {
	decides := func(c *Client) bool { return c.conditions != nil && !c.conditions.Needs(unknown) }
	if !slices.ContainsFunc(r.clients, decides) {
		return nil
	}
	r.skipped, err = s.evaluating.Do(ctx, s.key.Add(1), inflight.Work[[]bool]{
		Tenant: r.tenant, Run: func(ctx context.Context, _ inflight.Turn[[]bool]) ([]bool, error) {
			skipped := make([]bool, len(r.clients))
			var document map[string]any // it can take many times the memory of the body
			// without a document, conditions cannot be evaluated
			_ = kjson.UnmarshalCaseSensitivePreserveInts(r.body, &document)
			for i, c := range r.clients {
				skipped[i] = decides(c) && !c.conditions.Selects(ctx, document)
			}
			return skipped, nil
		},
	})
	panicAgain(err)
	return err
}

func panicAgain(err error) {
	if p, ok := errors.AsType[*inflight.PanicError](err); ok {
		panic(p)
	}
}

// Ask asks all clients at the same time, and returns one answer of each in their order. After a denial by a hook that
// is not in audit mode the requests in progress are canceled, and there is no answer of them.
func (r *Prepared) Ask(ctx context.Context) []policyfiles.HookAnswer {
	defer r.release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make([]policyfiles.HookAnswer, len(r.clients))
	outbound.Together(len(r.clients), func(i int) {
		c, begun := r.clients[i], time.Now()
		if r.skipped[i] {
			answers[i] = policyfiles.HookAnswer{Hook: c.Name, Allowed: true, Message: "its matchConditions are not met"}
			return
		}
		a, err := policyfiles.HookAnswer{}, r.refused
		if err == nil {
			a, err = c.ask(ctx, r.tenant, r.Admission.UID, r.body)
		}
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return // the caller has left, or another hook denied
		}
		if err == nil && a.Allowed && len(a.Patch) > 0 {
			if err = r.Apply(a.Patch); err != nil {
				a = policyfiles.HookAnswer{Asked: a.Asked} // nothing of it stays
			}
		}
		if a.Hook, a.Took = c.Name, time.Since(begun); err != nil {
			a.Failure = safetext.Line(err.Error(), safetext.Event)
			a.Allowed = c.FailOpen && !slices.ContainsFunc([]error{ErrBusy, ErrClosed, ErrTooLarge}, func(e error) bool {
				return errors.Is(err, e)
			})
		}
		answers[i] = a
		if r.Observe != nil {
			r.Observe(c.Name, outcomeOf(a), a.Took)
		}
		if !a.Allowed && !c.Audit {
			cancel()
		}
	})
	return slices.DeleteFunc(answers, func(a policyfiles.HookAnswer) bool { return a.Hook == "" })
}

func (c *Client) ask(ctx context.Context, tenant string, uid types.UID, body []byte) (a policyfiles.HookAnswer,
	_ error,
) {
	if c.circuit.open(tenant) {
		return a, errOpen
	}
	limit := c.Timeout
	if deadline, ok := ctx.Deadline(); ok { // the caller needs time for the answer
		left := time.Until(deadline)
		limit = min(limit, left-min(left/10, time.Second))
	}
	begun := time.Now()
	late := false // it is read after the end of the work alone
	var asked atomic.Int64
	defer func() { a.Asked = time.Duration(asked.Load()) }()
	got, err := c.inFlight.Do(ctx, c.key.Add(1), inflight.Work[[]byte]{
		Tenant: tenant,
		Run: func(ctx context.Context, turn inflight.Turn[[]byte]) ([]byte, error) {
			late = turn.Waited
			limited, cancel := context.WithDeadline(ctx, begun.Add(limit))
			defer cancel()
			posted := time.Now()
			data, err := outbound.Post(limited, c.target.Load().transport, c.URL, body, nil)
			asked.Store(int64(time.Since(posted)))
			if errors.Is(context.Cause(ctx), inflight.ErrClosed) {
				return nil, ErrClosed
			}
			return data, err
		},
	})
	_, left := errors.AsType[*inflight.LeftError](err)
	timedOut := errors.Is(err, outbound.ErrTimedOut)
	switch {
	case left && errors.Is(err, context.Canceled):
		return a, context.Canceled
	case left, errors.Is(err, inflight.ErrNoTurn), timedOut && late:
		return a, ErrBusy // the hook had no time to answer
	case errors.Is(err, inflight.ErrClosed):
		return a, ErrClosed
	case timedOut:
		if limit >= c.Timeout/2 {
			c.circuit.note(tenant, true)
		}
		// the connection has a limit of its own
		return a, fmt.Errorf("%w after %v", outbound.ErrTimedOut, min(limit, time.Since(begun)).Round(time.Millisecond))
	case c.Mutating && errors.Is(err, outbound.ErrLargeAnswer): // a patch grows with the pod
		return a, fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err != nil:
		panicAgain(err)
		return a, ofTenant(err)
	}
	c.circuit.note(tenant, false)
	return c.decode(got, uid)
}

// ofTenant wraps an error that a tenant could cause.
func ofTenant(err error) error {
	if f, ok := errors.AsType[*outbound.RequestError](err); ok {
		switch f.Status {
		case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge:
			return fmt.Errorf("%w: %w", ErrTooLarge, err)
		case http.StatusTooManyRequests:
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
	}
	return err
}

// An answer has the fields of an AdmissionReview that are used: a hook chooses the others.
type answer struct {
	metav1.TypeMeta `json:",inline"`

	Response *struct {
		UID     types.UID `json:"uid"`
		Allowed bool      `json:"allowed"`
		Result  *struct {
			Message string              `json:"message"`
			Reason  metav1.StatusReason `json:"reason"`
			Code    int32               `json:"code"`
		} `json:"status"`
		Patch            []byte                 `json:"patch"`
		PatchType        *admissionv1.PatchType `json:"patchType"`
		AuditAnnotations map[string]string      `json:"auditAnnotations"`
		Warnings         []string               `json:"warnings"`
	} `json:"response"`
}

// decode returns a valid answer. Names of fields have one spelling, as for kube-apiserver: otherwise a document could
// have two answers.
func (c *Client) decode(data []byte, uid types.UID) (a policyfiles.HookAnswer, _ error) {
	var review answer
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &review); err != nil {
		return a, fmt.Errorf("the answer is not an AdmissionReview: %w", err)
	}
	r := review.Response
	switch {
	case review.TypeMeta != typeMeta:
		return a, fmt.Errorf("the answer is %.100q of %.100q; must be %s of %s", review.Kind, review.APIVersion,
			typeMeta.Kind, typeMeta.APIVersion)
	case r == nil:
		return a, errors.New("the answer has no response")
	case r.UID != uid:
		return a, fmt.Errorf("the answer has the UID %.100q; must be that of the request, %s", r.UID, uid)
	case !c.Mutating && (len(r.Patch) > 0 || r.PatchType != nil):
		return a, errors.New("the answer has a patch, and a validating hook must not change the pod")
	case (len(r.Patch) > 0) != (r.PatchType != nil):
		return a, errors.New("the answer has a patch without a patchType, or the other way round")
	case len(r.Patch) > 0 && *r.PatchType != admissionv1.PatchTypeJSONPatch:
		return a, fmt.Errorf("the answer has the patchType %.100q; must be %s", *r.PatchType, admissionv1.PatchTypeJSONPatch)
	case len(r.Patch) > requirement.MaxPatch:
		return a, fmt.Errorf("%w: it has more than %d KiB", ErrTooLarge, requirement.MaxPatch>>10)
	}
	a.Allowed, a.Patch = r.Allowed, r.Patch
	if s := r.Result; !r.Allowed && s != nil {
		a.Message, a.Code = safetext.Line(s.Message, safetext.Event), s.Code
		if a.Message == "" {
			a.Message = safetext.Line(string(s.Reason), safetext.Event)
		}
	}
	a.AuditAnnotations, a.Warnings = c.annotations(r.AuditAnnotations), warnings(r.Warnings)
	return a, nil
}

// annotations returns audit annotations with the name of the hook in their keys, as far as they fit.
func (c *Client) annotations(all map[string]string) map[string]string {
	var kept map[string]string
	size := 0
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name := strings.Map(func(r rune) rune {
			if r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
				strings.ContainsRune("-_.", r)) {
				return r
			}
			return '-'
		}, strings.ReplaceAll(c.Name, "/", ".")+"."+key[:min(len(key), 4*maxKey)])
		name = strings.TrimRight(name[:min(len(name), maxKey)], "-_.")
		value := safetext.Line(all[key], maxTexts)
		if size += len(name) + len(value); size > maxTexts {
			break
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[name] = value
	}
	return kept
}

func warnings(all []string) (kept []string) {
	size := 0
	for _, w := range all {
		w = safetext.Line(w, safetext.Event)
		if size += len(w) + 1; size > maxTexts {
			break
		}
		kept = append(kept, w)
	}
	return kept
}
