// Package hookserver has hooks of tests on a Unix socket, which allow everything and remember what they were asked.
package hookserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
)

// A Server serves hooks, each at a path with its name.
type Server struct {
	socket string
	server *httptest.Server

	mu    sync.Mutex
	asked map[string][]string // names of hooks by pod
}

// New serves hooks on a socket until the test ends.
func New(tb testing.TB, socket string) *Server {
	tb.Helper()
	s := &Server{socket: socket, asked: map[string][]string{}}
	s.Start(tb)
	tb.Cleanup(s.Stop)
	return s
}

// Start starts it again after Stop.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	s.server = httptest.NewUnstartedServer(s)
	s.server.Listener = testkit.Value((&net.ListenConfig{}).Listen(tb.Context(), "unix", s.socket))(tb)
	s.server.Start()
}

// Stop ends it; it may be called again.
func (s *Server) Stop() { s.server.Close() }

// ServeHTTP allows a pod.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review struct{ Request struct{ UID, Name string } }
	if json.NewDecoder(r.Body).Decode(&review) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.asked[review.Request.Name] = append(s.asked[review.Request.Name], strings.TrimPrefix(r.URL.Path, "/"))
	s.mu.Unlock()
	_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":`+
		`{"uid":%q,"allowed":true}}`, review.Request.UID)
}

// Taken returns which hooks were asked about a pod since the latest call, as in "a b".
func (s *Server) Taken(pod string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Sorted(slices.Values(s.asked[pod]))
	delete(s.asked, pod)
	return strings.Join(names, " ")
}

// A Hook is one of a file, with fields of YAML that each begin with a comma.
type Hook struct{ Name, Fields string }

// File returns a policy file with hooks of the server. annotations are those of YAML with commas between them.
func (s *Server) File(name, annotations string, hooks ...Hook) []byte {
	text := fmt.Appendf(nil, "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n"+
		"metadata: {name: %s, annotations: {%s}}\nwebhooks:\n", name, annotations)
	for _, h := range hooks {
		text = fmt.Appendf(text, "- {name: %s, admissionReviewVersions: [v1], clientConfig: {url: 'unix://%s?path=/%s'}, "+
			"sideEffects: None, rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]%s}\n",
			h.Name, s.socket, h.Name, h.Fields)
	}
	return text
}

// Only returns the field of a hook that is asked about pods of these namespaces alone, and Except that of one that is
// not asked about them.
func Only(namespaces ...string) string { return selector("In", namespaces) }

// Except is the opposite of Only.
func Except(namespaces ...string) string { return selector("NotIn", namespaces) }

func selector(operator string, namespaces []string) string {
	return fmt.Sprintf(", namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: %s, "+
		"values: [%s]}]}", operator, strings.Join(namespaces, ", "))
}
