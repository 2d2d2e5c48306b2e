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
	_ "google.golang.org/grpc/encoding/gzip" // as runtimes have it: a call that is compressed has an answer
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Metrics counts what goes through a [Server]. Its methods may be called concurrently.
type Metrics interface {
	// ForwardedCall is called at the end of every call with the full method as it was called,
	// which may be any string, and the name of the status code.
	ForwardedCall(method, code string, judged bool, took time.Duration)
	// Panic is called for every call that panicked.
	Panic()
}

// Limits of messages. containerd's own, like that of kubelets, is 16 MiB, that of CRI-O 80 MiB: a runtime with a
// smaller one than the proxy refuses a request by itself.
const (
	maxRequest = 80 << 20
	maxHandled = 16 << 20
)

// handshakeLimit bounds the handshake of a connection. Kubelets give up after the same time.
const handshakeLimit = 5 * time.Second

// readBuffer is less than the default, 32 KiB, which would be most of the memory of an idle connection.
const readBuffer = 4 << 10

// Windows of a call and of a connection, in both directions. grpc enlarges its own to as much as a connection carries,
// up to 16 MiB for each call: a client that does not read what it has asked for, or a runtime that does not, would take
// that much memory with each call. A message that is larger than the window still comes without a pause, because grpc
// enlarges the window of its call while it is read.
const (
	callWindow       = 64 << 10
	connectionWindow = 1 << 20
)

// Config are the parts of a [Server]. Runtime, Image, Metrics and Log must be set.
type Config struct {
	// Runtime serves the RuntimeService, Image the ImageService; they may be the same.
	Runtime, Image *Upstream
	// Handlers answer calls by their full method. Every other call is forwarded unchanged.
	Handlers map[string]Handler
	// Called is called at the begin of each unary call, with its context and full method; nil is allowed. It may be called
	// concurrently and must not block.
	Called  func(ctx context.Context, method string)
	Metrics Metrics
	Log     klog.Logger
}

// A Server is the CRI as the kubelet sees it.
type Server struct {
	grpc     *grpc.Server
	services map[string]*Upstream // by the prefix of the full method
	unary    map[string]bool      // the known unary methods
	handlers map[string]Handler
	called   func(context.Context, string)
	metrics  Metrics
	log      klog.Logger

	stopping context.Context //nolint:containedctx // ends when Shutdown ends the open streams
	stop     context.CancelFunc
	requests sync.WaitGroup                // the directions from clients to the runtime of streams
	underWay callGroup                     // unary ones
	listener atomic.Pointer[drainListener] // nil until Serve, and from Shutdown on
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

// New returns a server that does not serve yet. It panics if there is a handler for a method that is not a unary method
// of the CRI: it would never be called.
func New(c Config) *Server {
	s := &Server{
		services: map[string]*Upstream{}, unary: map[string]bool{}, handlers: maps.Clone(c.Handlers), called: c.Called,
		metrics: c.Metrics, log: c.Log,
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.addService(&runtimeapi.RuntimeService_ServiceDesc, c.Runtime)
	s.addService(&runtimeapi.ImageService_ServiceDesc, c.Image)
	for method := range s.handlers {
		if !s.unary[method] {
			panic(fmt.Sprintf("criproxy: a handler for %q, which is not a unary method of the CRI", method))
		}
	}
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(s.serve),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.ReadBufferSize(readBuffer),
		grpc.StaticStreamWindowSize(callWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.WaitForHandlers(true),
		experimental.BufferPool(mem.DefaultBufferPool()), // the one that tests may have exchanged
	)
	return s
}

func (s *Server) addService(d *grpc.ServiceDesc, u *Upstream) {
	prefix := "/" + d.ServiceName + "/"
	s.services[prefix] = u
	for _, m := range d.Methods {
		s.unary[prefix+m.MethodName] = true
	}
}

// Serve answers calls until Shutdown, and returns nil then. It closes the listener. It is called once.
func (s *Server) Serve(l net.Listener) error {
	drained := newDrainListener(l)
	s.listener.Store(drained)
	if err := s.grpc.Serve(drained); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the CRI: %w", err)
	}
	return nil
}

func (s *Server) serve(_ any, stream grpc.ServerStream) error {
	began := time.Now()
	method, _ := grpc.MethodFromServerStream(stream)
	if method == pingMethod {
		return Refuse(codes.Unimplemented, pingReason, "pullgated serves the CRI of this node and no other service")
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

// dispatch answers a call by its method. Of the two services every method is forwarded whose name is an identifier: a
// runtime that decodes names before it looks them up must not find a method with a handler under another spelling.
func (s *Server) dispatch(stream grpc.ServerStream, method string) error {
	at := strings.LastIndexByte(method, '/') + 1
	u, ok := s.services[method[:at]]
	if !ok || !isIdentifier(method[at:]) {
		service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		return Refuse(codes.Unimplemented, "SERVICE_NOT_PASSED_ON", "unknown service "+service)
	}
	if !s.unary[method] {
		return s.stream(stream, method, u)
	}
	defer s.underWay.Begin()()
	if s.called != nil {
		s.called(stream.Context(), method)
	}
	if h := s.handlers[method]; h != nil {
		return handled(stream, method, u, h)
	}
	return unary(stream, method, u)
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

// guard limits a panic to its call: it is counted and logged, and the call is answered with Internal.
func (s *Server) guard(method string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.Panic()
			s.log.Error(fmt.Errorf("panic: %v", p), "A call panicked, it is answered with Internal",
				"method", method, "stack", string(debug.Stack()))
			err = Refuse(codes.Internal, "PANIC", "pullgate failed in this call; see the log of pullgated on this node")
		}
	}()
	return f()
}
