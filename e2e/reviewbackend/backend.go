// Package reviewbackend is an image review backend of tests: an HTTPS server with an authority of its own, which
// answers and fails as it is instructed for each image, and records all requests.
package reviewbackend

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/e2e/host"
)

const maxBody = 4 << 20

// A Backend is an image review backend. Its methods may be called concurrently.
type Backend struct {
	address     string
	authority   *testkit.Authority
	certificate tls.Certificate

	mu       sync.Mutex
	answers  map[string]Answer // by image
	requests []Request
	server   *http.Server // nil while it is stopped
	served   chan error   // the result of server
}

// A Request is one that the backend was sent, including those that it failed or refused.
type Request struct {
	Client string // the name in Kubeconfig; "" if the request had no such credential
	Method string
	URI    string   // with the query
	Header []string // the names, sorted
	Agent  string   // the value of User-Agent
	Body   []byte
	Review v1alpha1.ImageReview // the decoded body
}

// Images returns the images of the review.
func (r *Request) Images() []string {
	var all []string
	for _, c := range r.Review.Spec.Containers {
		all = append(all, c.Image)
	}
	return all
}

// New starts a backend on the loopback address until the test ends. It allows all images until Set is called.
func New(tb testing.TB) *Backend {
	tb.Helper()
	b := &Backend{answers: map[string]Answer{}, address: "127.0.0.1:0"}
	b.authority = testkit.Value(testkit.NewAuthority("authority of the backend"))(tb)
	pair := testkit.Value(b.authority.Issue(pkix.Name{CommonName: "backend"}, time.Time{}))(tb)
	b.certificate = testkit.Value(pair.TLS())(tb)
	testkit.Must(tb, b.Restart())
	host.AtEnd(tb, b.Stop)
	return b
}

// Address is the host and port of the backend, the same after each Restart.
func (b *Backend) Address() string { return b.address }

// Authority is that of its certificate, with which a pullgate-policyd can take its place at its address and path.
func (b *Backend) Authority() *testkit.Authority { return b.authority }

// Kubeconfig writes a kubeconfig by which a client, such as a cluster, uses the backend with a token of its own.
func (b *Backend) Kubeconfig(path, client string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: backend, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: client, user: {token: %q}}]
contexts: [{name: context, context: {cluster: backend, user: client}}]
current-context: context
`, "https://"+b.address+"/imagereview", base64.StdEncoding.EncodeToString(b.authority.PEM()), Token(client)), 0o600)
}

// Token is the token of a client.
func Token(client string) string {
	sum := sha256.Sum256([]byte("token of " + client))
	return client + "." + hex.EncodeToString(sum[:8])
}

// PolicyFile writes a policy file with fields of imagePolicy, for pods of namespaces or all, and the kubeconfig in it.
func (b *Backend) PolicyFile(path, kubeconfig, client, fields string, namespaces ...string) error {
	text := fmt.Sprintf("imagePolicy: {kubeConfigFile: %s, retryBackoff: 1, %s}\n", kubeconfig, fields)
	if len(namespaces) > 0 {
		text += `match: {namespaces: ["` + strings.Join(namespaces, `", "`) + `"]}` + "\n"
	}
	return errors.Join(b.Kubeconfig(kubeconfig, client), os.WriteFile(path, []byte(text), 0o644))
}

// Set determines the answer for an image; for "" that for all images that have none.
func (b *Backend) Set(image string, a Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[image] = a
}

// Requests returns all requests so far, those about an image if one is given.
func (b *Backend) Requests(image ...string) []Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	about := func(r Request) bool { return len(image) == 0 || slices.Contains(r.Images(), image[0]) }
	return slices.Collect(func(yield func(Request) bool) {
		for _, r := range b.requests {
			if about(r) && !yield(r) {
				return
			}
		}
	})
}

// Stop closes the listener and all connections. Recorded requests and answers are kept.
func (b *Backend) Stop() error {
	b.mu.Lock()
	server, served := b.server, b.served
	b.server = nil
	b.mu.Unlock()
	if server == nil {
		return nil
	}
	err := server.Close()
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// Restart serves again after Stop, at the same address.
func (b *Backend) Restart() error {
	l, err := net.Listen("tcp", b.address)
	if err == nil {
		b.address = l.Addr().String()
		b.serve(l)
	}
	return err
}

func (b *Backend) serve(l net.Listener) {
	server := &http.Server{
		Handler: http.HandlerFunc(b.answer), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo), // failed handshakes are what tests want
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{b.certificate},
		},
	}
	served := make(chan error, 1)
	b.mu.Lock()
	b.server, b.served = server, served
	b.mu.Unlock()
	go func() { served <- server.ServeTLS(l, "", "") }()
}

func (b *Backend) answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return // the client has gone
	}
	request := Request{
		Client: clientOf(r), Method: r.Method, URI: r.RequestURI, Header: slices.Sorted(maps.Keys(r.Header)),
		Agent: r.UserAgent(), Body: body,
	}
	err = json.Unmarshal(body, &request.Review)
	b.mu.Lock()
	b.requests = append(b.requests, request)
	answer := b.answerLocked(&request)
	b.mu.Unlock()
	switch {
	case request.Client == "":
		w.WriteHeader(http.StatusUnauthorized)
	case err != nil || r.Method != http.MethodPost:
		w.WriteHeader(http.StatusBadRequest)
	default:
		answer.send(w, r)
	}
}

func clientOf(r *http.Request) string {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if client, _, ok := strings.Cut(token, "."); ok && token == Token(client) {
		return client
	}
	return ""
}
