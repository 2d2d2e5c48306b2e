// Package outbound implements how programs of others are asked: image review backends and hooks. It sends a POST with a
// JSON document over HTTP/1.1, and bounds the time, the connections and the size of the answer.
package outbound

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const (
	connectTimeout = 10 * time.Second // bounds the dial, and again the TLS handshake
	maxAnswer      = 256 << 10        // bounds the body of an answer
	// MaxConnections bounds the connections to a program, and with maxAnswer the memory that it can use.
	MaxConnections = 256
	maxRetryAfter  = time.Hour
)

// ErrTimedOut is wrapped by the error of a request whose deadline, or limit to connect, has passed.
var ErrTimedOut = errors.New("timed out")

// ErrLargeAnswer is wrapped by the error of a request whose answer was not read to its end.
var ErrLargeAnswer = fmt.Errorf("the answer has more than %d KiB", maxAnswer>>10)

// NewTransport uses HTTP/1.1: with HTTP/2, one connection on which no packets arrive any more would delay all requests.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: connectTimeout,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		MaxConnsPerHost: MaxConnections, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second,
	}
}

// CloseIdle closes the connections of a transport that are not in use.
func CloseIdle(t http.RoundTripper) {
	if t, ok := t.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// A RequestError is why there is no answer.
type RequestError struct {
	Err    error
	Status int           // of the answer; 0 if it is not an error
	Again  bool          // whether another attempt may get an answer
	After  time.Duration // for how long the program asks not to be asked again
}

func (f *RequestError) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *RequestError) Unwrap() error { return f.Err }

// Failed returns a RequestError after which no other attempt is of use.
func Failed(format string, args ...any) error { return &RequestError{Err: fmt.Errorf(format, args...)} }

// Post sends a document before the deadline of ctx, and returns the body of an answer with a 2xx status, or a
// RequestError. authorize, or nil, adds a credential.
func Post(ctx context.Context, by http.RoundTripper, url string, body []byte, authorize func(*http.Request)) (
	[]byte, error,
) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, Failed("%w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "pullgate-policyd")
	// The header is not sent. It makes the transport use another connection if the program closes an idle one.
	req.Header["Idempotency-Key"] = nil
	if authorize != nil {
		authorize(req)
	}
	// A client would follow redirects and keep cookies.
	resp, err := by.RoundTrip(req)
	if err != nil {
		return nil, notAnswered(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // its content has been read, or is not used
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, refused(resp)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, notAnswered(ctx, err)
	case len(data) > maxAnswer:
		return nil, Failed("%w", ErrLargeAnswer)
	case len(data) == 0:
		return nil, Failed("status %d without a body", resp.StatusCode)
	}
	return data, nil
}

func notAnswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return Failed("%w", ErrTimedOut)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return Failed("%w: %w", ErrTimedOut, err)
	}
	closed := slices.ContainsFunc([]error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	}, func(target error) bool { return errors.Is(err, target) })
	return &RequestError{Err: err, Again: closed}
}

func refused(resp *http.Response) error {
	f := &RequestError{
		Err: fmt.Errorf("status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode)), Status: resp.StatusCode,
	}
	f.Again = slices.Contains([]int{429, 500, 504}, resp.StatusCode)
	if after := resp.Header.Get("Retry-After"); after != "" && resp.StatusCode >= 400 {
		f.Again = true
		if seconds, err := strconv.ParseUint(after, 10, 64); err == nil {
			f.After = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
		} else if at, err := http.ParseTime(after); err == nil {
			f.After = max(time.Until(at), 0)
		}
	}
	return f
}
