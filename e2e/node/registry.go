package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Login is what a pull secret holds.
type Login struct{ Username, Password string }

// A Registry is Debian's docker-registry behind a small reverse proxy. The registry requires credentials and
// writes the access log from which requests are counted; the proxy makes requests fail on demand.
type Registry struct {
	*host.Process
	dir    string
	behind string // where the registry itself listens
	front  *http.Server
	addr   string

	mu    sync.Mutex
	fault func(w http.ResponseWriter, r *http.Request) (handled bool)
	down  bool

	passed atomic.Int64 // requests that the registry gets
	// lines is how many requests are in the access log up to the byte read.
	lines int64
	read  int
}

const registryConfig = `version: 0.1
log: {level: info, accesslog: {disabled: false}}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http: {addr: "127.0.0.1:0"}
`

const registryAuth = `auth: {htpasswd: {realm: test, path: %q}}
`

// StartRegistry starts a registry below dir. Without logins it needs no credential.
func StartRegistry(ctx context.Context, dir string, logins ...Login) (*Registry, error) {
	r := &Registry{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(registryConfig, filepath.Join(dir, "data"))
	if len(logins) > 0 {
		var users strings.Builder
		for _, l := range logins {
			line, err := host.Run(ctx, "htpasswd", "-nbB", l.Username, l.Password)
			if err != nil {
				return nil, err
			}
			users.WriteString(strings.TrimSpace(line) + "\n")
		}
		if err := os.WriteFile(r.path("htpasswd"), []byte(users.String()), 0o600); err != nil {
			return nil, err
		}
		config += fmt.Sprintf(registryAuth, r.path("htpasswd"))
	}
	if err := os.WriteFile(r.path("config.yml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	var err error
	const program = "docker-registry"
	r.Process, err = host.Start(ctx, program, r.path("registry.log"), r.listens, program, "serve", r.path("config.yml"))
	if err != nil {
		return nil, err
	}
	return r, r.openFront("127.0.0.1:0")
}

var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)

// listens reads from the registry's log which port it was given.
func (r *Registry) listens() error {
	text, err := os.ReadFile(r.path("registry.log"))
	if err != nil {
		return err
	}
	m := listening.FindSubmatch(text)
	if m == nil {
		return errors.New("it does not listen yet")
	}
	r.behind = string(m[1])
	return nil
}

func (r *Registry) path(name string) string { return filepath.Join(r.dir, name) }

func (r *Registry) openFront(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(req *httputil.ProxyRequest) {
		req.SetURL(&url.URL{Scheme: "http", Host: r.behind})
		req.Out.Host = req.In.Host // so that redirects come back here
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
		r.passed.Add(-1)
		w.WriteHeader(http.StatusBadGateway) // mostly, the client has gone
	}}
	r.addr = l.Addr().String()
	serve := func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		fault := r.fault
		r.mu.Unlock()
		if fault == nil || !fault(w, req) {
			r.passed.Add(1)
			proxy.ServeHTTP(w, req)
		}
	}
	r.front = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(serve)}
	go func() { _ = r.front.Serve(l) }() // ends with Down or Close
	return nil
}

// Host is how images name the registry.
func (r *Registry) Host() string { return r.addr }

// Down closes the port that images name: connections are refused.
func (r *Registry) Down() error {
	r.down = true
	return r.front.Close()
}

// Up opens the port again, if it is closed.
func (r *Registry) Up() error {
	if !r.down {
		return nil
	}
	r.down = false
	return r.openFront(r.addr)
}

// Answer makes every request fail with an HTTP status; 0 ends that.
func (r *Registry) Answer(status int) {
	if status == 0 {
		r.Fault(nil)
		return
	}
	r.Fault(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(status)
		return true
	})
}

// Fault puts a function before the registry; nil removes it.
func (r *Registry) Fault(f func(w http.ResponseWriter, req *http.Request) (handled bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// HoldBlobs lets manifests through and holds every blob back until release is called. asked is closed
// when the first blob has been asked for.
func (r *Registry) HoldBlobs() (asked <-chan struct{}, release func()) {
	held, seen := make(chan struct{}), make(chan struct{})
	see := sync.OnceFunc(func() { close(seen) })
	r.Fault(func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		see()
		select {
		case <-held:
			return false
		case <-req.Context().Done():
			return true
		}
	})
	return seen, sync.OnceFunc(func() {
		close(held)
		r.Fault(nil)
	})
}

// A Request is one line of the registry's own access log.
type Request struct {
	Method, Path string
	Status       string
}

var accessLine = regexp.MustCompile(`"(HEAD|GET|POST|PUT|PATCH|DELETE) (/v2/\S*) HTTP/1\.[01]" (\d{3})`)

// Requests returns the requests in the registry's access log for a repository since a Mark; "" is any.
func (r *Registry) Requests(since Mark, repository string) []Request {
	text := r.Log()
	var all []Request
	for _, m := range accessLine.FindAllStringSubmatch(text[min(int(since), len(text)):], -1) {
		if repository == "" || strings.HasPrefix(m[2], "/v2/"+repository+"/") {
			all = append(all, Request{Method: m[1], Path: m[2], Status: m[3]})
		}
	}
	return all
}

// A Mark is a place in the access log.
type Mark int

// Mark returns the end of the access log once it has all requests that the registry got. It writes a line after it has
// answered.
func (r *Registry) Mark() Mark {
	want := r.passed.Load()
	if !host.Within(5*time.Second, func() bool { return r.logged() >= want }) {
		r.passed.Store(r.logged()) // a client that went away may leave no line
	}
	return Mark(len(r.Log()))
}

func (r *Registry) logged() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.Log()
	end := strings.LastIndexByte(text, '\n') + 1
	r.lines += int64(len(accessLine.FindAllStringIndex(text[r.read:end], -1)))
	r.read = end
	return r.lines
}

// Close ends proxy and registry.
func (r *Registry) Close() error {
	var err error
	if !r.down {
		err = r.front.Close()
	}
	return errors.Join(err, r.Stop())
}
