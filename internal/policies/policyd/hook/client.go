package hook

import (
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

const (
	// maxPerNamespace and outbound.MaxConnections are how many requests to a hook are sent at the same time for one
	// namespace, and for all.
	maxPerNamespace = 8
	// maxWaiting and maxWaitingPerNamespace bound the bytes of requests; perRequest is what one takes beside its body.
	maxWaiting, maxWaitingPerNamespace = 64 << 20, 16 << 20
	perRequest                         = 16 << 10
	maxBody                            = 7 << 20 // bounds a request: two objects of 3 MiB, the limit of an API server

	maxCertificate = 1 << 20
	maxTexts       = 8 << 10 // bounds the audit annotations, and the warnings, of an answer, in bytes
	maxKey         = 63      // bytes of the key of an audit annotation

	openAfter = 5 // time-outs in a row
	openFor   = 30 * time.Second
)

// Errors of answers that deny, whatever the failure policy is: a tenant could cause them.
var (
	ErrBusy     = errors.New("too many requests about pods of the namespace are in progress, try again")
	ErrClosed   = errors.New("pullgate-policyd stops")
	ErrTooLarge = fmt.Errorf("the request has more than %d MiB", maxBody>>20)
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
}

func newClient(h policyfiles.Hook, t *target) *Client {
	c := &Client{Hook: h, inFlight: inflight.New[uint64, []byte](inflight.Limits{
		PerTenant: maxPerNamespace, Total: outbound.MaxConnections,
		TenantSize: maxWaitingPerNamespace, TotalSize: maxWaiting, Wait: h.Timeout,
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

// A circuit counts time-outs in a row.
type circuit struct {
	mu         sync.Mutex
	timeouts   int
	namespaces map[string]bool // of the requests that timed out
	until      time.Time
}

func (c *circuit) open(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.namespaces[namespace] && time.Now().Before(c.until)
}

func (c *circuit) anyOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.until)
}

func (c *circuit) note(namespace string, timedOut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !timedOut {
		c.timeouts, c.namespaces, c.until = 0, nil, time.Time{}
		return
	}
	if c.namespaces == nil {
		c.namespaces = map[string]bool{}
	}
	c.namespaces[namespace] = true
	if c.timeouts++; c.timeouts >= openAfter {
		c.until = time.Now().Add(openFor)
	}
}

// A Request is what hooks are asked about: one pod.
type Request struct {
	Admission admissionv1.AdmissionRequest // without a UID, which each call of Ask chooses
	// Unknown are the paths of the fields of the pod that are not known. Conditions on one of them count as met.
	Unknown []string
	Observe func(hook, outcome string, took time.Duration)
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

// Ask asks clients at the same time, and returns one answer of each in their order. After a denial by a hook that is
// not in audit mode the requests in progress are canceled, and there is no answer of them.
func Ask(ctx context.Context, clients []*Client, r Request) ([]policyfiles.HookAnswer, error) {
	uid := uuid.NewUUID()
	r.Admission.UID = uid
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: typeMeta, Request: &r.Admission})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.Admission.Object.Raw, r.Admission.OldObject.Raw = nil, nil // they can be large
	document := sync.OnceValue(func() map[string]any {
		var d struct {
			Request map[string]any `json:"request"`
		}
		_ = kjson.UnmarshalCaseSensitivePreserveInts(body, &d) // without a document, conditions cannot be evaluated
		return map[string]any{"request": d.Request}
	})
	answers := make([]policyfiles.HookAnswer, len(clients))
	ask := func(i int) {
		c, begun := clients[i], time.Now()
		unknown := c.conditions != nil && slices.ContainsFunc(r.Unknown, func(path string) bool {
			return slices.Contains(c.Conditions.Known, path)
		})
		if c.conditions != nil && !unknown && !c.conditions.Selects(ctx, document()) {
			answers[i] = policyfiles.HookAnswer{Hook: c.Name, Allowed: true, Message: "its matchConditions are not met"}
			return
		}
		a, err := c.ask(ctx, r.Admission.Namespace, uid, body)
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return // the caller has left, or another hook denied
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
	}
	var asked sync.WaitGroup
	for i := 1; i < len(clients); i++ {
		asked.Go(func() { ask(i) })
	}
	if len(clients) > 0 {
		ask(0)
	}
	asked.Wait()
	return slices.DeleteFunc(answers, func(a policyfiles.HookAnswer) bool { return a.Hook == "" }), nil
}

func (c *Client) ask(ctx context.Context, namespace string, uid types.UID, body []byte) (a policyfiles.HookAnswer,
	_ error,
) {
	if len(body) > maxBody {
		return a, ErrTooLarge
	}
	if c.circuit.open(namespace) {
		return a, errOpen
	}
	limit, whole := c.Timeout, true
	if deadline, ok := ctx.Deadline(); ok { // the caller needs time for the answer
		if left := time.Until(deadline); left-min(left/10, time.Second) < limit {
			limit, whole = left-min(left/10, time.Second), false
		}
	}
	begun := time.Now()
	late := false // it is read after the end of the work alone
	got, err := c.inFlight.Do(ctx, c.key.Add(1), inflight.Work[[]byte]{
		Tenant: namespace, Size: int64(len(body) + perRequest),
		Run: func(ctx context.Context, turn inflight.Turn[[]byte]) ([]byte, error) {
			late = turn.Waited
			limited, cancel := context.WithDeadline(ctx, begun.Add(limit))
			defer cancel()
			data, err := outbound.Post(limited, c.target.Load().transport, c.URL, body, nil)
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
	case left, errors.Is(err, inflight.ErrFull), errors.Is(err, inflight.ErrNoTurn), timedOut && late:
		return a, ErrBusy // the hook had no time to answer
	case errors.Is(err, inflight.ErrClosed):
		return a, ErrClosed
	case timedOut && whole:
		c.circuit.note(namespace, true)
		return a, fmt.Errorf("%w after %v", outbound.ErrTimedOut, c.Timeout)
	case err != nil:
		return a, err
	}
	c.circuit.note(namespace, false)
	return c.decode(got, uid)
}

// decode returns a valid answer. Names of fields have one spelling, as for kube-apiserver: otherwise a document could
// have two answers.
func (c *Client) decode(data []byte, uid types.UID) (a policyfiles.HookAnswer, _ error) {
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &review); err != nil {
		return a, fmt.Errorf("the answer is not an AdmissionReview: %w", err)
	}
	r := review.Response
	switch {
	case review.TypeMeta != typeMeta:
		return a, fmt.Errorf("the answer is %.100q of %.100q; must be %s of %s", review.Kind, review.APIVersion,
			typeMeta.Kind,
			typeMeta.APIVersion)
	case r == nil:
		return a, errors.New("the answer has no response")
	case r.UID != uid:
		return a, fmt.Errorf("the answer has the UID %.100q; must be that of the request, %s", r.UID, uid)
	case len(r.Patch) > 0 || r.PatchType != nil:
		return a, errors.New("the answer has a patch, and a validating hook must not change the pod")
	}
	a.Allowed = r.Allowed
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
