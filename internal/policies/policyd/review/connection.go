package review

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"k8s.io/api/imagepolicy/v1alpha1"
	kjson "sigs.k8s.io/json"
)

const (
	// attemptTimeout bounds an attempt, from the dial to the end of the answer.
	attemptTimeout = 30 * time.Second
	// connectTimeout bounds the dial, and again the TLS handshake.
	connectTimeout = 10 * time.Second
	// maxAnswer bounds the body of an answer.
	maxAnswer = 256 << 10
	// maxConnections bounds the connections to a backend, and with maxAnswer the memory that a backend can use.
	maxConnections = 256
)

// The header of an ImageReview.
const (
	apiVersion = "imagepolicy.k8s.io/v1alpha1"
	kind       = "ImageReview"
)

// A connection sends reviews to a target.
type connection struct {
	*target
	transport http.RoundTripper
}

// connect returns a connection to a target. It is HTTP/1.1: with HTTP/2, one connection on which no packets arrive any
// more would delay all reviews.
func connect(t *target) *connection {
	return &connection{t, &http.Transport{
		Proxy: t.proxy, DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig: t.tls, TLSHandshakeTimeout: connectTimeout,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		MaxConnsPerHost: maxConnections, MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second,
	}}
}

// closeIdle closes the connections that are not in use. Those in use are closed afterwards if no further review is
// sent.
func (c *connection) closeIdle() {
	if t, ok := c.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// A failure is an attempt without an answer.
type failure struct {
	err   error
	again bool          // whether another attempt may get an answer
	after time.Duration // for how long the backend asks not to be asked again
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

func failed(format string, args ...any) error { return &failure{err: fmt.Errorf(format, args...)} }

// send makes one attempt. Every error is a failure.
func (c *connection) send(ctx context.Context, body []byte) (v1alpha1.ImageReviewStatus, error) {
	var none v1alpha1.ImageReviewStatus
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return none, failed("%w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "pullgate-policyd")
	c.authorize(req)
	// A client would follow redirects and keep cookies.
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return none, notAnswered(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // its content has been read, or is not used
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return none, refused(resp)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return none, notAnswered(ctx, err)
	case len(data) > maxAnswer:
		return none, failed("the answer has more than %d KiB", maxAnswer>>10)
	case len(data) == 0:
		return none, failed("status %d without a body", resp.StatusCode)
	}
	return decode(data)
}

// notAnswered returns the failure of an attempt whose request or answer was not transferred.
func notAnswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return failed("timed out")
	}
	reset := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	return &failure{err: err, again: reset}
}

// refused returns the failure of an attempt with an answer that is an error or a redirect.
func refused(resp *http.Response) error {
	f := &failure{err: fmt.Errorf("status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusGatewayTimeout:
		f.again = true
	}
	if after := resp.Header.Get("Retry-After"); after != "" && resp.StatusCode >= 400 {
		f.again = true
		if seconds, err := strconv.ParseUint(after, 10, 64); err == nil {
			f.after = time.Duration(min(seconds, uint64(maxReview/time.Second)+1)) * time.Second
		} else if at, err := http.ParseTime(after); err == nil {
			f.after = max(time.Until(at), 0)
		}
	}
	return f
}

// decode reads an answer. Names of fields have one spelling, as for kube-apiserver: otherwise a document could have two
// answers.
func decode(data []byte) (v1alpha1.ImageReviewStatus, error) {
	var answer struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Status     json.RawMessage `json:"status"`
	}
	var status v1alpha1.ImageReviewStatus
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &answer); err != nil {
		return status, failed("the answer is not an ImageReview: %w", err)
	}
	if answer.Kind != "" && answer.Kind != kind || answer.APIVersion != "" && answer.APIVersion != apiVersion {
		return status, failed("the answer is %.100q of %.100q; must be %s of %s", answer.Kind, answer.APIVersion, kind, apiVersion)
	}
	if answer.Status != nil {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(answer.Status, &status); err != nil {
			return v1alpha1.ImageReviewStatus{}, failed("the answer has an invalid status: %w", err)
		}
	}
	return status, nil
}
