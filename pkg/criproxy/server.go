package criproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/criproxy/drain"
	"github.com/pullgate/pullgate/pkg/criproxy/internal/pair"
	"github.com/pullgate/pullgate/pkg/criproxy/ping"
)

// Metrics counts what goes through a [Server]. Its methods may be called concurrently.
type Metrics interface {
	// ForwardedCall is called at the end of every call with the full method as it was called,
	// which may be any string, and the name of the status code.
	ForwardedCall(method, code string, judged bool, took time.Duration)
	// Panic is called for every call that panicked.
	Panic()
}

// Config are the parts of a [Server]. Runtime, Image, Metrics and Log must be set.
type Config struct {
	// Runtime serves the RuntimeService, Image the ImageService; they may be the same. If they are not, calls of the
	// ImageService are made on Image, and a request of them is one message.
	Runtime, Image *Upstream
	// Handlers answer calls by their full method. Every other call is forwarded unchanged.
	Handlers map[string]Handler
	// Bypasses forward calls of methods with a handler without it.
	Bypasses map[string]Bypass
	Metrics  Metrics
	Log      klog.Logger
}

// A Bypass decides by the request how a call is answered. It must not block. If observe is not nil, it is called with the message of a
// successful answer of a call that is [Forwarded], before the client gets the status; it must not block either, and must not keep the
// message. A call is [Handled] without calling the Bypass if its request comes in several pieces, or if its service has an endpoint of
// its own.
type Bypass func(request []byte) (way Way, observe func(response []byte))

// A Way is how a call is answered whose method has a handler.
type Way int

// The ways of a call.
const (
	// Handled is by the handler.
	Handled = Way(pair.Handled)
	// Forwarded is by the runtime, without the handler.
	Forwarded = Way(pair.Forwarded)
	// HandledAhead is by the handler, and saves time: the call is forwarded before the handler runs, and the first [Call.Forward]
	// of the handler returns the answer. It is meant for calls that change nothing at the runtime: the call
	// is forwarded even if the handler does not forward it, and once more if the answer is not successful.
	HandledAhead = Way(pair.HandledAhead)
)

// A Server is the CRI as the kubelet sees it.
type Server struct {
	pairs    *pair.Server
	known    map[string]*pair.Route // by full method
	other    map[string]*pair.Route // of unknown methods, by the prefix of their service
	handlers map[string]Handler
	metrics  Metrics
	log      klog.Logger

	underWay drain.Calls                    // unary ones
	listener atomic.Pointer[drain.Listener] // nil until Serve, and from Shutdown on
}

// Methods returns the full names of the CRI's methods as far as they are known here.
func Methods() (all []string) {
	for _, d := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, m := range d.Methods {
			all = append(all, "/"+d.ServiceName+"/"+m.MethodName)
		}
		for _, m := range d.Streams {
			all = append(all, "/"+d.ServiceName+"/"+m.StreamName)
		}
	}
	return all
}

// New returns a server that does not serve yet. It panics if there is a handler for a method that is not a unary method of the CRI, or
// a bypass without a handler: it would never be called.
func New(c Config) *Server {
	s := &Server{
		known:    map[string]*pair.Route{ping.Method: {Refuse: Refuse(codes.Unimplemented, ping.Reason, "pullgated serves the CRI of this node and no other service")}},
		other:    map[string]*pair.Route{},
		handlers: maps.Clone(c.Handlers),
		metrics:  c.Metrics,
		log:      c.Log,
	}
	s.addService(&runtimeapi.RuntimeService_ServiceDesc, c, c.Runtime)
	s.addService(&runtimeapi.ImageService_ServiceDesc, c, c.Image)
	for method := range s.handlers {
		if route := s.known[method]; route == nil || !route.Unary {
			panic(fmt.Sprintf("criproxy: a handler for %q, which is not a unary method of the CRI", method))
		}
	}
	for method := range c.Bypasses {
		if s.handlers[method] == nil {
			panic(fmt.Sprintf("criproxy: a bypass for %q, which has no handler", method))
		}
	}
	dial := func(context.Context) (net.Conn, error) { return nil, errors.New("criproxy: no runtime") }
	if c.Runtime != nil && c.Runtime.dial != nil {
		dial = c.Runtime.dial
	}
	s.pairs = pair.NewServer(pair.Config{
		Dial:     dial,
		Route:    s.route,
		Ended:    s.ended,
		Panicked: s.panicked,
		Away:     away,
		Lost:     Refuse(codes.Unavailable, "RUNTIME_CONNECTION_LOST", "the connection to the container runtime was lost"),
		Stopping: Refuse(codes.Unavailable, "STOPPING", "pullgated is stopping"),
		Calls:    &s.underWay,
		Log:      c.Log,
	})
	return s
}

// addService adds the routes of a service. Calls are made on u if they cannot be forwarded on the connection that is paired with the
// client's.
func (s *Server) addService(d *grpc.ServiceDesc, c Config, u *Upstream) {
	paired := u == c.Runtime && u != nil && u.dial != nil
	prefix := "/" + d.ServiceName + "/"
	s.other[prefix] = &pair.Route{}
	if !paired {
		s.other[prefix].Handle = s.stream(u)
	}
	for i := range d.Streams {
		s.known[prefix+d.Streams[i].StreamName] = s.other[prefix]
	}
	for i := range d.Methods {
		method := prefix + d.Methods[i].MethodName
		route := &pair.Route{Unary: true}
		switch h := s.handlers[method]; {
		case h != nil:
			route.Handle = handled(u, h)
			if bypass := c.Bypasses[method]; paired && bypass != nil {
				route.Bypass = func(request []byte) (pair.Way, func([]byte)) {
					way, observe := bypass(request)
					return pair.Way(way), observe
				}
			}
		case !paired:
			route.Handle = s.stream(u)
		}
		s.known[method] = route
	}
}

// route returns the route of a method. Of the two services every method is forwarded whose name is an identifier: a runtime that
// decodes names before it looks them up must not find a method with a handler under another spelling.
func (s *Server) route(method string) *pair.Route {
	if route := s.known[method]; route != nil {
		return route
	}
	at := strings.LastIndexByte(method, '/') + 1
	if route := s.other[method[:at]]; route != nil && isIdentifier(method[at:]) {
		return route
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return &pair.Route{Refuse: Refuse(codes.Unimplemented, "SERVICE_NOT_PASSED_ON", "unknown service "+service)}
}

func isIdentifier(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != ""
}

// away returns the status of forwarded calls while the runtime is absent.
func away(err error) error {
	text := "the container runtime does not serve"
	if err != nil {
		text = fmt.Sprintf("no connection to the container runtime: %v", err)
	}
	return Refuse(codes.Unavailable, "RUNTIME_UNAVAILABLE", text)
}

// Serve answers calls until Shutdown, and returns nil then. It closes the listener. It is called once.
func (s *Server) Serve(l net.Listener) error {
	drained := drain.NewListener(l)
	s.listener.Store(drained)
	if err := s.pairs.Serve(drained); err != nil {
		return fmt.Errorf("serve the CRI: %w", err)
	}
	return nil
}

// ended counts a call.
func (s *Server) ended(method string, code codes.Code, took time.Duration) {
	if method == ping.Method {
		return
	}
	_, judged := s.handlers[method]
	s.metrics.ForwardedCall(method, code.String(), judged, took)
	if log := s.log.V(4); log.Enabled() {
		log.Info("Call ended", "method", method, "code", code.String(), "judged", judged, "took", took)
	}
}

// panicked counts and logs a panic in a call.
func (s *Server) panicked(method string, value any, stack []byte) error {
	s.metrics.Panic()
	s.log.Error(fmt.Errorf("panic: %v", value), "A call panicked, it is answered with Internal", "method", method, "stack", string(stack))
	return Refuse(codes.Internal, "PANIC", "pullgate failed in this call; see the log of pullgated on this node")
}
