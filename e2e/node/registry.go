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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Login is what a pull secret holds.
type Login struct{ Username, Password string }

// A Registry is Debian's docker-registry behind a small reverse proxy. The registry requires credentials; the proxy
// notes the requests that the registry answers, and makes requests fail on demand.
type Registry struct {
	*host.Process
	dir    string
	behind string // where the registry itself listens
	front  *http.Server
	addr   string

	down bool

	mu       sync.Mutex
	fault    func(w http.ResponseWriter, r *http.Request) (handled bool)
	requests []Request
}

const registryConfig = `version: 0.1
log: {level: info, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http: {addr: "127.0.0.1:0"}
`

const registryAuth = `auth: {htpasswd: {realm: test, path: %q}}
`

// StartRegistry starts a registry below dir. Without logins it needs no credential.
func StartRegistry(ctx context.Context, dir string, logins ...Login) (r *Registry, err error) {
	defer host.Catch(&err)
	r = &Registry{dir: dir}
	host.Check(os.MkdirAll(dir, 0o700))
	config := fmt.Sprintf(registryConfig, filepath.Join(dir, "data"))
	if len(logins) > 0 {
		var users strings.Builder
		for _, l := range logins {
			line := host.Must(host.Run(ctx, "htpasswd", "-nbB", l.Username, l.Password))
			users.WriteString(strings.TrimSpace(line) + "\n")
		}
		host.Check(os.WriteFile(r.path("htpasswd"), []byte(users.String()), 0o600))
		config += fmt.Sprintf(registryAuth, r.path("htpasswd"))
	}
	host.Check(os.WriteFile(r.path("config.yml"), []byte(config), 0o600))
	const program = "docker-registry"
	log := r.path("registry.log")
	r.Process = host.Must(host.Start(ctx, program, log, r.listens, program, "serve", r.path("config.yml")))
	return r, r.openFront("127.0.0.1:0")
}

var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)

// listens reads from the registry's log which port it was given.
func (r *Registry) listens() (err error) {
	defer host.Catch(&err)
	text := host.Must(os.ReadFile(r.path("registry.log")))
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
	}, ModifyResponse: func(answer *http.Response) error { // before the client has a byte of the answer
		req := Request{answer.Request.Method, answer.Request.URL.Path, strconv.Itoa(answer.StatusCode)}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.requests = append(r.requests, req)
		return nil
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusBadGateway) // mostly, the client has gone
	}}
	r.addr = l.Addr().String()
	serve := func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		fault := r.fault
		r.mu.Unlock()
		if fault == nil || !fault(w, req) {
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

// HoldBlobs holds every blob back until release is called. asked is closed when the first one was asked for.
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

// A Request is one that the registry has answered.
type Request struct {
	Method, Path string
	Status       string
}

// Requests returns the requests for a repository after the first so many.
func (r *Registry) Requests(since int, repository string) (all []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.requests[since:] {
		if strings.HasPrefix(q.Path, "/v2/"+repository+"/") {
			all = append(all, q)
		}
	}
	return all
}

// Mark returns how many requests the registry has answered.
func (r *Registry) Mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

// Close ends proxy and registry.
func (r *Registry) Close() error {
	var err error
	if !r.down {
		err = r.front.Close()
	}
	return errors.Join(err, r.Stop())
}
