package adminapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Limits of the server, whose few callers belong to root: they bound what these leave open by mistake.
const (
	maxRequest     = 1 << 20 // 256 credentials of a provider's report, each with patterns
	maxConnections = 64
	maxStreams     = 64 // of one connection
	// callLimit bounds a unary call, whatever deadline the caller gave it.
	callLimit = time.Minute
	// verifyLimit is the limit for VerifyStore, which reads the whole file.
	verifyLimit = 10 * time.Minute
	// signaturesLimit is the limit for VerifyImage, which waits for registries.
	signaturesLimit = 90 * time.Second
	// handshakeLimit is for connections that send nothing. grpc's stop waits for them, whatever else its limit is.
	handshakeLimit = 2 * time.Second
)

// A Runtime lists the images on the node.
type Runtime interface {
	// Images returns all images, or an error; never an incomplete list.
	Images(ctx context.Context) ([]tracker.Image, error)
	// Image returns the image that a name refers to, the zero value for none.
	Image(ctx context.Context, name string) (tracker.Image, error)
}

// Pods returns which pods have a sandbox.
type Pods interface {
	All() []tracker.Pod
}

// A PodSource has facts about a pod that the CRI does not provide, and reports which facts it does not have.
type PodSource interface { //nolint:interfacebloat // one source has five kinds of facts
	// Find returns the pods with the UID or, if it is "", with the namespace and name.
	Find(uid, namespace, name string) []tracker.Pod
	// Pods returns all pods, with the images that they use.
	Pods() []podsource.Listed
	// Uses returns each use of an image by the pod; known is false for a pod that the source does not have.
	Uses(uid string, image imageref.Ref) (uses []podsource.Use, known bool)
	// ServiceAccount returns the name of the pod's service account, "" if it is not known.
	ServiceAccount(ctx context.Context, uid, namespace string) string
	// Secrets returns the credentials for an image, and whether the list is complete. It may wait a few seconds.
	Secrets(ctx context.Context, uid string, image imageref.Ref) (secrets []tracker.Secret, complete bool)
}

// A Gate reports how calls are judged.
type Gate interface {
	// SkipsAlways reports whether the kubelet sends no pre-check for containers with imagePullPolicy Always.
	SkipsAlways() bool
	// Refusal returns the gate's decision on the next pre-check of a pod for an image, if that does not depend on what the
	// tracker allows; ok is false if the gate follows the tracker.
	Refusal(uid string, image imageref.Ref, imageID string) (d policy.Decision, ok bool)
	// ExplainPolicies returns what the policies say about the sandbox of a pod, and about containers with an image that
	// its spec names so; nothing if there are no policies. A container with the name "" is one that is not known. It has
	// no effect.
	ExplainPolicies(ctx context.Context, who tracker.Pod, containers []string, image admission.Image, name string,
		ask bool) []admission.Explanation
}

// Config contains the parts of a [Server]. Every field except PodSource must be set.
type Config struct {
	Tracker   *tracker.Tracker
	Store     *records.Store
	Runtime   Runtime
	Pods      Pods
	PodSource PodSource // nil if there is none
	Gate      Gate
	// NodeCredentials accepts reports. Their IDs must be made with the key of KeyFingerprint.
	NodeCredentials NodeCredentials
	KeyFingerprint  string
	Decisions       *Feed  // the feed of WatchDecisions
	StorePath       string // the path of the file of the store
	// Status returns a new answer of GetStatus, without what is from the tracker and the store.
	Status func(ctx context.Context) *adminv1.GetStatusResponse
	// Policies returns all policies in use, by kind and name; nil if there are none.
	Policies   func() *adminv1.ListPoliciesResponse
	Signatures Signatures
	// Access returns the files of kind ImageAccess in use, nil if there are none.
	Access func() *imageaccess.Set
	// EndorsementValidity returns how long an endorsement counts, 0 for without limit.
	EndorsementValidity func() time.Duration
	// Drift returns the endorsements whose images no longer meet the requirement, as far as images are rechecked.
	Drift func() []policyclient.Drift
	// RevokingEndorsements is called before endorsements are revoked.
	RevokingEndorsements func()
	// Trusted is called when an operator has ended the distrust of the store.
	Trusted func()
	// Panic is called for every call that panicked.
	Panic    func()
	Settings Settings
	Log      klog.Logger
}

// A Server serves the admin API, gRPC's health service and reflection.
type Server struct {
	adminv1.UnimplementedPullRecordsServer

	c      Config
	grpc   *grpc.Server
	health *health.Server

	stopping context.Context //nolint:containedctx // ends when Shutdown begins; every open stream hangs on it
	stop     context.CancelFunc
}

// New returns a server that does not serve yet, and whose health is NOT_SERVING.
func New(c Config) *Server {
	s := &Server{c: c, health: health.NewServer()}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(grpc.Creds(sockets.PeerCredentials{}),
		grpc.InTapHandle(sockets.RootOrSelf("pullgated", "admin API")), grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	adminv1.RegisterPullRecordsServer(s.grpc, s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.Serving(false)
	return s
}

// Serving sets whether the CRI is served, which is the health of the daemon.
func (s *Server) Serving(yes bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if yes {
		state = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"", adminv1.PullRecords_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, state)
	}
}

// Serve answers calls on a Unix socket until Shutdown, and then returns nil. It closes the listener.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(sockets.LimitConns(l, maxConnections, false, s.c.Log))
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the admin API: %w", err)
	}
	return nil
}

// Shutdown ends open streams with Unavailable and accepts no new calls. Unary calls in progress, and streams that wait
// for their client, may continue until ctx ends; then Shutdown cancels them. It returns when all calls have ended.
func (s *Server) Shutdown(ctx context.Context) {
	s.health.Shutdown()
	s.stop()
	sockets.DrainGRPC(ctx, s.grpc)
}

func (s *Server) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (resp any, err error) {
	limit := callLimit
	switch info.FullMethod {
	case adminv1.PullRecords_VerifyStore_FullMethodName:
		limit = verifyLimit
	case adminv1.PullRecords_VerifyImage_FullMethodName:
		limit = signaturesLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = s.guard(info.FullMethod, func() error {
		resp, err = handler(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// stream ends a stream when the server stops, through the context of the stream: the handler itself returns, so that no
// code uses the stream afterwards. A stream that waits for its client, to read or to write, ends when Shutdown closes
// the connection.
func (s *Server) stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	return s.guard(info.FullMethod, func() error {
		err := handler(srv, stoppable{stream, ctx})
		if err != nil && errors.Is(context.Cause(ctx), errStopping) {
			return errStopping
		}
		return err
	})
}

type stoppable struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // it is that of the stream
}

// Context returns the context of the stream.
func (s stoppable) Context() context.Context { return s.ctx }

func (s *Server) guard(method string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.c.Panic()
			s.c.Log.Error(fmt.Errorf("panic: %v", p), "A call panicked, it is answered with Internal",
				"method", method, "stack", string(debug.Stack()))
			_, err = answer(errors.New("panic"))
		}
	}()
	cause := f()
	explain, err := answer(cause)
	if explain {
		s.c.Log.Error(cause, "Failed to answer a call of the admin API", "method", method)
	}
	return err
}

var (
	// errUnasked is the beginning of an error that says for what the runtime was to be asked.
	errUnasked  = errors.New("the runtime cannot be asked")
	errStopping = status.Error(codes.Unavailable, "pullgated is stopping; try again when it is back")
)

const seeRuntime = "see that the runtime runs, and the log of pullgated"

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// answer makes the status of an error that ended a call, and reports whether the log should explain it. Errors that the
// table does not list are Internal.
func answer(err error) (explain bool, answered error) {
	if err == nil {
		return false, nil
	}
	for _, row := range []struct {
		is   error
		code codes.Code
		todo string
	}{
		{tracker.ErrNothingSelected, codes.InvalidArgument, "name what is meant"},
		{tracker.ErrNotPresent, codes.NotFound, "see what is there with ListImages"},
		{
			tracker.ErrDistrusted, codes.FailedPrecondition,
			"accept single images by image_id or repository, or end distrust first",
		},
		{tracker.ErrProved, codes.FailedPrecondition, "set including_proved if every pod is to use it"},
		{tracker.ErrChanged, codes.Aborted, "ask for a dry run again"},
		{tracker.ErrRivals, codes.FailedPrecondition, "give image_id as well if every pod is to use it"},
		{tracker.ErrTrusted, codes.FailedPrecondition, ""},
		{errUnasked, codes.Unavailable, seeRuntime},
		{tracker.ErrRuntime, codes.Unavailable, seeRuntime},
		{tracker.ErrBusy, codes.Unavailable, ""},
		{tracker.ErrStore, codes.Unavailable, "see the disk that holds stateDir, and the log of pullgated"},
		{records.ErrNoRoom, codes.ResourceExhausted, "free space"},
		// Last, because the errors above may wrap one of them.
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if !errors.Is(err, row.is) {
			continue
		}
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tracker: "), "back up records: ")
		if row.todo != "" {
			text += "; " + row.todo
		}
		return false, status.Error(row.code, text)
	}
	if _, ok := status.FromError(err); ok { // from gRPC itself, for example when a stream is broken
		return false, err
	}
	return true, status.Error(codes.Internal, "internal error, see the log of pullgated")
}
