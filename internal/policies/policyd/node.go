package policyd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// Limits of the node server. Its only client is pullgated, with one connection.
const (
	nodeMaxRequest  = 1 << 20
	nodeMaxHeader   = 16 << 10
	nodeConnections = 32
	// nodeStreams is how many reviews one connection may have at the same time. It is more than the pods of a node, so
	// that those that wait for a backend that does not answer delay no other.
	nodeStreams        = 4096
	nodeHandshakeLimit = 5 * time.Second
	// nodeCallLimit bounds a call, whatever deadline the caller gave it. It is below the 2 minutes of a kubelet.
	nodeCallLimit = 110 * time.Second
	// maxImages is how many images one request may have.
	maxImages = 256
	// maxTexts bounds the texts of an answer, in bytes.
	maxTexts = 64 << 10
)

// A nodeServer answers pullgated.
type nodeServer struct {
	policyv1.UnimplementedPolicyServer

	policies *policies
	metrics  *metrics
	log      klog.Logger
	grpc     *grpc.Server
	health   *health.Server
}

func newNodeServer(p *policies, m *metrics, log klog.Logger) *nodeServer {
	s := &nodeServer{policies: p, metrics: m, log: log, health: health.NewServer()}
	s.grpc = grpc.NewServer(
		grpc.Creds(sockets.PeerCredentials{}),
		grpc.InTapHandle(sockets.RootOrSelf(programName, "policy API")),
		grpc.ConnectionTimeout(nodeHandshakeLimit),
		grpc.MaxRecvMsgSize(nodeMaxRequest),
		grpc.MaxHeaderListSize(nodeMaxHeader),
		grpc.MaxConcurrentStreams(nodeStreams),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.guard),
	)
	policyv1.RegisterPolicyServer(s.grpc, s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	return s
}

// serve answers calls until ctx ends. It then accepts no new calls, waits for those in progress, at most stopLimit, and
// cancels the others. It closes the listener.
func (s *nodeServer) serve(ctx context.Context, l net.Listener) error {
	done := make(chan error, 1)
	go func() { done <- s.grpc.Serve(sockets.LimitConns(l, nodeConnections, false, s.log)) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve pullgated: %w", err)
	case <-ctx.Done():
	}
	s.health.Shutdown()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	sockets.DrainGRPC(limited, s.grpc)
	if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve pullgated: %w", err)
	}
	return nil
}

// guard bounds a call and recovers its panics.
func (s *nodeServer) guard(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (
	resp any, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, nodeCallLimit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.log.Error(fmt.Errorf("panic: %v", p), "A call of pullgated panicked, it is answered with Internal",
				"method", info.FullMethod, "stack", string(debug.Stack()))
			resp, err = nil, status.Error(codes.Internal, "internal error, see the log of "+programName)
		}
	}()
	return handler(ctx, req)
}

// Review implements policyv1.PolicyServer.
func (s *nodeServer) Review(ctx context.Context, r *policyv1.ReviewRequest) (*policyv1.ReviewResponse, error) {
	images := len(r.GetImages()) + len(r.GetVolumeImages())
	switch {
	case r.GetPolicyHash() == "":
		return nil, status.Error(codes.InvalidArgument, "policy_hash is empty")
	case r.GetNamespace() == "":
		return nil, status.Error(codes.InvalidArgument, "namespace is empty")
	case images > maxImages:
		return nil, status.Errorf(codes.InvalidArgument, "%d images; allowed are %d", images, maxImages)
	}
	set := s.policies.with(policyfiles.Version{Hash: r.GetPolicyHash()}, false)
	if set == nil {
		s.metrics.mismatches.Inc()
		return nil, status.Errorf(codes.FailedPrecondition, "%s: pullgated has %.12s", s.inUse(), r.GetPolicyHash())
	}
	if images == 0 { // the caller only compares the policy files
		return &policyv1.ReviewResponse{PolicyHash: set.Hash}, nil
	}
	results := s.ask(ctx, set.clients, r)
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	shorten(results)
	return &policyv1.ReviewResponse{PolicyHash: set.Hash, Results: results}, nil
}

// ask asks the backends about each image by itself, about all at the same time.
func (s *nodeServer) ask(ctx context.Context, clients review.Clients, r *policyv1.ReviewRequest) []*policyv1.ReviewResult {
	var subjects []review.Subject
	for i, images := range [][]string{r.GetImages(), r.GetVolumeImages()} {
		for _, image := range slices.Compact(slices.Sorted(slices.Values(images))) {
			about := review.Subject{Namespace: r.GetNamespace(), Annotations: r.GetAnnotations(), Images: []string{image}}
			if i > 0 {
				if slices.Contains(r.GetImages(), image) {
					continue // it is reviewed already, by more backends
				}
				about.Images, about.Volumes = nil, about.Images
			}
			subjects = append(subjects, about)
		}
	}
	answers := make([][]review.Result, len(subjects))
	var asked sync.WaitGroup
	for i, about := range subjects[1:] {
		asked.Go(func() { answers[1+i] = s.policies.review(ctx, clients, about) })
	}
	answers[0] = s.policies.review(ctx, clients, subjects[0])
	asked.Wait()
	var all []*policyv1.ReviewResult
	for i, results := range answers {
		image := slices.Concat(subjects[i].Images, subjects[i].Volumes)[0]
		for _, r := range results {
			all = append(all, &policyv1.ReviewResult{
				Backend: r.Backend, Image: image, Allowed: r.Allowed, Reason: safetext.Valid(cmp.Or(r.Failure, r.Reason)),
				AuditAnnotations: validUTF8(r.AuditAnnotations), Cached: r.Cached, Failed: r.Err != nil, FailedOpen: r.FailedOpen,
				Duration: durationpb.New(r.Took),
			})
		}
	}
	return all
}

// review asks all backends about a subject.
func (p *policies) review(ctx context.Context, clients review.Clients, about review.Subject) []review.Result {
	results := clients.Review(ctx, about)
	for _, r := range results {
		outcome := reviewDenied
		switch {
		case r.FailedOpen:
			outcome = reviewFailedOpen
		case r.Err != nil:
			outcome = reviewFailedClosed
		case r.Allowed:
			outcome = reviewAllowed
		}
		p.metrics.reviews.WithLabelValues(outcome, strconv.FormatBool(r.Cached)).Inc()
	}
	return results
}

// A budget is how many bytes of texts still fit into an answer. pullgated uses no larger answer, and a denial must
// arrive.
type budget int

func (b *budget) fits(n int) bool {
	if n > int(*b) {
		return false
	}
	*b -= budget(n)
	return true
}

// shorten drops texts of backends beyond maxTexts, annotations before reasons.
func shorten(results []*policyv1.ReviewResult) {
	left := budget(maxTexts)
	for _, r := range results {
		if !left.fits(len(r.GetReason())) {
			r.Reason = ""
		}
	}
	for _, r := range results {
		size := 0
		for k, v := range r.GetAuditAnnotations() {
			size += len(k) + len(v)
		}
		if !left.fits(size) {
			r.AuditAnnotations = nil
		}
	}
}

// inUse describes the policy files in use.
func (s *nodeServer) inUse() string {
	if set := s.policies.current.Load(); set != nil {
		return fmt.Sprintf("%s has the policy files %.12s", programName, set.Hash)
	}
	return programName + " has no policy files (policies: \"\")"
}

// validUTF8 returns texts that a message can hold: those of a backend are not ours.
func validUTF8(texts map[string]string) map[string]string {
	valid := make(map[string]string, len(texts))
	for k, v := range texts {
		valid[safetext.Valid(k)] = safetext.Valid(v)
	}
	return valid
}
