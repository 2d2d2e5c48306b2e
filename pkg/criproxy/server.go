package criproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/criproxy/drain"
	"github.com/pullgate/pullgate/pkg/criproxy/ping"
)

// Metrics counts what goes through a [Server]. Its methods may be called concurrently.
type Metrics interface {
	// ForwardedCall is called at the end of every call with the full method as it was called,
	// which may be anything, and the name of the status code.
	ForwardedCall(method, code string, judged bool, took time.Duration)
	// Panic is called for every call that panicked.
	Panic()
}

// greetLimit bounds how long a connection may stay silent before its first call. A stop waits for it; kubelets give
// up on a silent server after the same time.
const greetLimit = 5 * time.Second

// Config are the parts of a [Server]. Runtime, Image, Metrics and Log must be set.
type Config struct {
	// Runtime serves the RuntimeService, Image the ImageService; they may be the same.
	Runtime, Image *Upstream
	// Handlers answer calls by their full method. Every other call is forwarded as it is.
	Handlers map[string]Handler
	Metrics  Metrics
	Log      klog.Logger
	// Options are given to gRPC beside the server's own.
	Options []grpc.ServerOption
}

// A Server is the CRI as the kubelet sees it.
type Server struct {
	grpc     *grpc.Server
	services map[string]*Upstream // by the prefix of the full method
	unary    map[string]bool
	handlers map[string]Handler
	metrics  Metrics
	log      klog.Logger

	stopping context.Context //nolint:containedctx // ends when Shutdown begins; every open stream hangs on it
	stop     context.CancelCauseFunc
	pumps    sync.WaitGroup
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

// New returns a server that does not serve yet. It panics if there is a handler for what is no unary method of the CRI: the calls that
// it is meant for would pass by it.
func New(c Config) *Server {
	s := &Server{
		services: map[string]*Upstream{
			"/" + runtimeapi.RuntimeService_ServiceDesc.ServiceName + "/": c.Runtime,
			"/" + runtimeapi.ImageService_ServiceDesc.ServiceName + "/":   c.Image,
		},
		unary:    map[string]bool{},
		handlers: maps.Clone(c.Handlers),
		metrics:  c.Metrics,
		log:      c.Log,
	}
	for _, d := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, m := range d.Methods {
			s.unary["/"+d.ServiceName+"/"+m.MethodName] = true
		}
	}
	for method := range s.handlers {
		if !s.unary[method] {
			panic(fmt.Sprintf("criproxy: a handler for %q, which is not a unary method of the CRI", method))
		}
	}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	s.grpc = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(s.handle),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(greetLimit),
	}, c.Options...)...)
	return s
}

// Serve answers calls until Shutdown, and returns nil then. It closes the listener. It is called once.
func (s *Server) Serve(l net.Listener) error {
	drained := drain.NewListener(l)
	s.listener.Store(drained)
	if err := s.grpc.Serve(drained); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the CRI: %w", err)
	}
	return nil
}

// handle takes every call: no service is registered, so to grpc all of them are unknown.
func (s *Server) handle(_ any, stream grpc.ServerStream) error {
	began := time.Now()
	method, _ := grpc.MethodFromServerStream(stream)
	if method == ping.Method {
		return Refuse(codes.Unimplemented, ping.Reason, "pullgated serves the CRI of this node and no other service")
	}
	err := s.guard(method, func() error { return s.dispatch(stream, method) })
	_, judged := s.handlers[method]
	code, took := status.Code(err).String(), time.Since(began)
	s.metrics.ForwardedCall(method, code, judged, took)
	if log := s.log.V(4); log.Enabled() {
		log.Info("Call ended", "method", method, "code", code, "judged", judged, "took", took)
	}
	return err
}

// guard keeps a panic within its call: it is counted and logged, and the call answered with Internal.
func (s *Server) guard(method string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.Panic()
			s.log.Error(fmt.Errorf("panic: %v", p), "A call panicked, it is answered with Internal", "method", method, "stack", string(debug.Stack()))
			err = Refuse(codes.Internal, "PANIC", "pullgate failed in this call; see the log of pullgated on this node")
		}
	}()
	return f()
}

// dispatch finds out who answers a call.
func (s *Server) dispatch(stream grpc.ServerStream, method string) error {
	u := s.route(method)
	handler, judged := s.handlers[method]
	switch {
	case u == nil:
		service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		return Refuse(codes.Unimplemented, "SERVICE_NOT_PASSED_ON", "unknown service "+service)
	case judged:
		defer s.underWay.Begin()()
		return s.handled(stream, method, u, handler)
	case s.unary[method]:
		defer s.underWay.Begin()()
		return s.forward(stream, method, u)
	default:
		return s.pump(stream, method, u)
	}
}

// route returns the upstream that serves a method, nil for a service that is not passed on.
func (s *Server) route(method string) *Upstream {
	for prefix, u := range s.services {
		if strings.HasPrefix(method, prefix) {
			return u
		}
	}
	return nil
}
