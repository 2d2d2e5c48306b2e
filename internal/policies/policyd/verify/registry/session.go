package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

const (
	maxRedirects = 5 // how many redirects of a blob are followed
	// maxDrain is how much of an answer that is not used is read, so that its connection can be used again.
	maxDrain = 64 << 10

	userAgent = "pullgate-policyd"
)

type session struct {
	host       *host
	repository *Repository

	scheme        string // the one that the host speaks
	authorization string // the header that the last challenge asked for, "" before the first
	noReferrers   bool   // the host does not have the API for referrers
}

// A request is a GET below the repository.
type request struct {
	what   string   // for errors: "manifest", …
	path   string   // "/manifests/latest"
	url    *url.URL // where the answer goes on, in place of path
	accept string
	limit  int64         // of the answer, in bytes
	digest digest.Digest // that the content must have; "" if there is none
	follow bool          // redirects are followed
}

type answer struct {
	header http.Header
	url    *url.URL
	data   []byte
}

func isJSON(h http.Header) bool {
	return strings.Contains(strings.ToLower(h.Get("Content-Type")), "json")
}

func (s *session) get(ctx context.Context, r request) (answer, error) {
	a, err := s.fetch(ctx, r)
	options := s.repository.client.options
	options.Count(Outcome(err))
	if err != nil {
		_, status := errors.AsType[*statusError](err)
		if absent := !r.follow && (status || errors.Is(err, ErrNotFound)); options.Untrusted && !absent {
			err = fmt.Errorf("%w: %v", ErrUnavailable, err) // %v: callers must not tell errors apart
		}
		object := r.path[strings.LastIndexByte(r.path, '/')+1:]
		return answer{}, fmt.Errorf("%w (%s %s of %s at %s)", err, r.what, object, s.repository.name, s.host.address)
	}
	return a, nil
}

func (s *session) fetch(ctx context.Context, r request) (answer, error) {
	resp, err := s.authorized(ctx, r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if err := checkStatus(resp.StatusCode); err != nil {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
		if errors.Is(err, ErrNotFound) && !isJSON(resp.Header) {
			return answer{}, errNoRoute
		}
		return answer{}, err
	}
	if resp.ContentLength > r.limit {
		return answer{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLarge, resp.ContentLength, r.limit)
	}
	data, err := readDocument(ctx, resp.Body, resp.ContentLength, r.limit)
	switch {
	case err != nil && ctx.Err() != nil:
		return answer{}, s.ended(ctx)
	case err != nil:
		return answer{}, malformed("the answer ended early")
	case int64(len(data)) > r.limit:
		return answer{}, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, r.limit)
	case r.digest != "" && r.digest.Algorithm().FromBytes(data) != r.digest:
		return answer{}, ErrMismatch
	}
	return answer{resp.Header, resp.Request.URL, data}, nil
}

func (s *session) authorized(ctx context.Context, r request) (*http.Response, error) {
	resp, err := s.send(ctx, r)
	if err != nil && s.fallBack(err) {
		resp, err = s.send(ctx, r)
	}
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !s.own(resp.Request.URL) {
		return resp, err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	_ = resp.Body.Close() // it was only read
	if s.authorization, err = s.authorize(ctx, resp); err != nil {
		return nil, err
	}
	return s.send(ctx, r)
}

// fallBack reports whether to repeat over http: the host is configured for http with settings for TLS, and has none.
func (s *session) fallBack(err error) bool {
	if s.host.scheme != "http" || !errors.Is(err, http.ErrSchemeMismatch) {
		return false
	}
	s.scheme = "http"
	return true
}

func (s *session) own(u *url.URL) bool { return u.Scheme == s.scheme && u.Host == s.host.address }

func (s *session) send(ctx context.Context, r request) (*http.Response, error) {
	u := r.url
	if u == nil {
		u = &url.URL{Scheme: s.scheme, Host: s.host.address, Path: s.host.path + "/" + s.repository.path + r.path}
		if s.host.mirror {
			u.RawQuery = url.Values{"ns": {s.repository.domain}}.Encode()
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, malformed("the name is not valid in a URL")
	}
	req.Header.Set("User-Agent", userAgent)
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	client := http.Client{Transport: roundTripper(s.roundTrip), CheckRedirect: r.checkRedirect}
	resp, err := client.Do(req)
	return resp, knownError(err)
}

func (r request) checkRedirect(req *http.Request, via []*http.Request) error {
	previous := via[len(via)-1].URL.Scheme
	switch {
	case !r.follow:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects:
		return malformed("more than %d redirects", maxRedirects)
	case req.URL.Scheme != "https" && req.URL.Scheme != "http":
		return malformed("a redirect to a URL that is neither https nor http")
	case previous == "https" && req.URL.Scheme == "http":
		return malformed("a redirect from https to http")
	}
	req.Header.Del("Referer") // the redirect need not know where it comes from
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// roundTrip adds the header of hosts.toml and the credential, so that they are sent to the host itself alone.
func (s *session) roundTrip(req *http.Request) (*http.Response, error) {
	if !s.own(req.URL) {
		return s.exchange(req)
	}
	req = req.Clone(req.Context())
	for key, values := range s.host.header {
		req.Header[key] = append(req.Header[key], values...)
	}
	if s.authorization != "" {
		req.Header.Set("Authorization", s.authorization)
	}
	return s.exchange(req)
}

// foreign marks a request to a server that no configuration names. A request through a proxy is not marked, because the
// address that it connects to is the proxy's; it is an error if the URL has a local address.
func foreign(req *http.Request) (*http.Request, error) {
	if proxy, err := http.ProxyFromEnvironment(req); err == nil && proxy != nil {
		if ip, err := netip.ParseAddr(req.URL.Hostname()); err == nil && isLocal(ip) {
			return nil, errLocalAddress
		}
		return req, nil
	}
	return req.WithContext(context.WithValue(req.Context(), foreignKey{}, true)), nil
}

func (s *session) exchange(req *http.Request) (resp *http.Response, err error) {
	ctx := req.Context()
	if !s.own(req.URL) || s.repository.client.options.Untrusted && !s.host.named {
		if req, err = foreign(req); err != nil {
			return nil, s.classify(ctx, err)
		}
	}
	resp, err = s.host.transport.RoundTrip(req)
	if err != nil {
		return nil, s.classify(ctx, err)
	}
	s.repository.answered = true
	return resp, nil
}

// classify returns the error of a request that was not answered. What is not known to be a failure of the network is
// malformed, so that no answer of a registry looks like a failure.
func (s *session) classify(ctx context.Context, err error) error {
	var (
		header      tls.RecordHeaderError
		certificate *tls.CertificateVerificationError
		alert       tls.AlertError
		network     net.Error
	)
	switch {
	case errors.Is(err, errLocalAddress):
		return malformed("a redirect, a token server or an image of a pod leads to a loopback, link-local or metadata " +
			"address")
	case ctx.Err() != nil:
		return s.ended(ctx)
	case errors.As(err, &header) && string(header.RecordHeader[:]) == "HTTP/":
		return fmt.Errorf("%w: %w", ErrUnavailable, http.ErrSchemeMismatch)
	case errors.As(err, &header), errors.As(err, &certificate), errors.As(err, &alert), errors.As(err, &network),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s", ErrUnavailable, safetext.Line(err.Error(), maxText))
	}
	return malformed("it is not HTTP, or its header is too large")
}

func (s *session) ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && s.repository.answered {
		return fmt.Errorf("%w: the time for all requests is over", ErrTooLarge)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
}

// maxText bounds what errors quote of a server or a name, in bytes.
const maxText = 300

// knownError returns the error of the package in an error of net/http, whose text is not used: it contains URLs.
func knownError(err error) error {
	if err == nil {
		return nil
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	for _, known := range []error{ErrNotFound, ErrDenied, ErrUnavailable, ErrTooLarge, ErrMalformed} {
		if errors.Is(err, known) {
			return err
		}
	}
	return malformed("a redirect or a header is not valid")
}

// errNoRoute is ErrNotFound without errors in JSON: the server does not know the path.
var errNoRoute = fmt.Errorf("%w: the server does not know the path", ErrNotFound)

func checkStatus(status int) error {
	switch {
	case status == http.StatusOK:
		return nil
	// A tenant can use up the requests that a credential, or this address, may send, so 429 is no failure.
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests:
		return fmt.Errorf("%w: status %d", ErrDenied, status)
	case status == http.StatusNotFound:
		return ErrNotFound
	case status >= 500 && status != http.StatusNotImplemented:
		return fmt.Errorf("%w: status %d", ErrUnavailable, status)
	}
	return &statusError{status}
}

// A statusError is a malformed answer because of its status.
type statusError struct{ status int }

func (e *statusError) Error() string { return fmt.Sprintf("%v: status %d", ErrMalformed, e.status) }
func (*statusError) Unwrap() error   { return ErrMalformed }

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

func (s *session) authorize(ctx context.Context, challenged *http.Response) (string, error) {
	var credential admission.Login
	if s.host.trusted {
		credential = s.repository.credential
	}
	registry, err := name.NewRegistry(s.host.address)
	if err != nil {
		return "", malformed("%q is not the address of a registry", s.host.address)
	}
	challenge, err := parseChallenge(ctx, registry, challenged)
	if err != nil {
		return "", malformed("unusable challenge")
	}
	scheme := strings.ToLower(challenge.Scheme)
	switch {
	case scheme != "basic" && scheme != "bearer":
		return "", fmt.Errorf("%w: neither a Basic nor a Bearer challenge", ErrDenied)
	case credential.RegistryToken != "":
		return "Bearer " + credential.RegistryToken, nil
	case scheme == "bearer":
		return s.token(ctx, registry, credential, challenge)
	case credential.Username == "" || credential.Password == "":
		return "", fmt.Errorf("%w: no user name and password for it", ErrDenied)
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credential.Username+":"+credential.Password)), nil
}

// parseChallenge parses the answer that was received: go-containerregistry would send a request of its own.
func parseChallenge(ctx context.Context, registry name.Registry, resp *http.Response) (*transport.Challenge, error) {
	return transport.Ping(ctx, registry, roundTripper(func(*http.Request) (*http.Response, error) {
		header := http.Header{"Www-Authenticate": resp.Header.Values("Www-Authenticate")}
		return &http.Response{StatusCode: resp.StatusCode, Header: header, Body: http.NoBody, Request: resp.Request}, nil
	}))
}

func (s *session) token(ctx context.Context, registry name.Registry, credential admission.Login,
	c *transport.Challenge,
) (string, error) {
	scope := c.Parameters["scope"]
	if scope == "" {
		scope = "repository:" + s.repository.path + ":pull"
	}
	as := authn.Anonymous
	if l := credential; !l.Anonymous() {
		as = authn.FromConfig(authn.AuthConfig{Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken})
	}
	token, err := transport.Exchange(ctx, registry, as, roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := s.exchange(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 300 && resp.StatusCode < 400 {
			_ = resp.Body.Close() // it was not read
			return nil, malformed("the token server redirects")
		}
		return resp, nil
	}), []string{scope}, c)
	if status, ok := errors.AsType[*transport.Error](err); ok {
		kind := ErrDenied // also 400 and 404, which are answers to a credential that is not valid
		if errors.Is(checkStatus(status.StatusCode), ErrUnavailable) {
			kind = ErrUnavailable
		}
		return "", fmt.Errorf("%w: the token server answered with status %d", kind, status.StatusCode)
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", s.ended(ctx)
		}
		if err = knownError(err); errors.Is(err, ErrMalformed) {
			err = malformed("the token server cannot be used, or its answer is invalid")
		}
		return "", fmt.Errorf("%w (token server)", err)
	}
	return "Bearer " + cmp.Or(token.Token, token.AccessToken), nil
}
