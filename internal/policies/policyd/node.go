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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// Limits of the node server. Its only client is pullgated, with one connection.
const (
	nodeMaxRequest  = 1 << 20
	nodeConnections = 32
	// nodeStreams is how many reviews one connection may have at the same time. It is more than the pods of a node, so
	// that those that wait for a backend that does not answer delay no other.
	nodeStreams = 4096
	// nodeCallLimit bounds a call, whatever deadline the caller gave it. It is below the 2 minutes of a kubelet.
	nodeCallLimit = 110 * time.Second
	maxImages     = 256      // how many images one request may have
	maxTexts      = 64 << 10 // bounds the texts of an answer, in bytes
)

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
		grpc.ConnectionTimeout(5*time.Second),
		grpc.MaxRecvMsgSize(nodeMaxRequest),
		grpc.MaxHeaderListSize(16<<10),
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

func (s *nodeServer) ask(ctx context.Context, c review.Clients,
	r *policyv1.ReviewRequest,
) (all []*policyv1.ReviewResult) {
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
	outbound.Together(len(subjects), func(i int) { answers[i] = s.policies.review(ctx, c, subjects[i]) })
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

// Admit implements policyv1.PolicyServer.
func (s *nodeServer) Admit(ctx context.Context, r *policyv1.AdmitRequest) (*policyv1.AdmitResponse, error) {
	switch {
	case r.GetPolicyHash() == "":
		return nil, status.Error(codes.InvalidArgument, "policy_hash is empty")
	case r.GetNamespace() == "" || len(r.GetPod()) == 0:
		return nil, status.Error(codes.InvalidArgument, "namespace or pod is empty")
	}
	set := s.policies.with(policyfiles.Version{Hash: r.GetPolicyHash()}, false)
	if set == nil {
		s.metrics.mismatches.Inc()
		return nil, status.Errorf(codes.FailedPrecondition, "%s: pullgated has %.12s", s.inUse(), r.GetPolicyHash())
	}
	var clients []*hook.Client
	for _, c := range set.hooks {
		if slices.Contains(r.GetHooks(), c.Name) && c.AtNode() {
			clients = append(clients, c)
		}
	}
	if len(clients) == 0 || len(clients) != len(r.GetHooks()) {
		return nil, status.Errorf(codes.InvalidArgument, "hooks %.200q are not all in the policy files", r.GetHooks())
	}
	answers, err := hook.Ask(ctx, clients, hook.Request{
		Observe: s.metrics.hookAnswered, Unknown: r.GetUnknownFields(),
		Admission: hook.Creation(admissionv1.AdmissionRequest{
			Namespace: r.GetNamespace(), Name: r.GetName(), DryRun: new(r.GetDryRun()),
			UserInfo: authenticationv1.UserInfo{Username: "system:node:" + r.GetNode(), Groups: []string{"system:nodes"}},
			Object:   k8sruntime.RawExtension{Raw: r.GetPod()},
		}),
	})
	if err := cmp.Or(ctx.Err(), err); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	response, left := &policyv1.AdmitResponse{PolicyHash: set.Hash}, budget(maxTexts)
	for _, a := range answers {
		result := &policyv1.HookResult{
			Hook: a.Hook, Allowed: a.Allowed, Failed: a.Failure != "", Duration: durationpb.New(a.Took),
			Message: left.clean(cmp.Or(a.Failure, a.Message), maxMessage),
		}
		response.Results = append(response.Results, result)
	}
	for i, a := range answers {
		size := 0
		for k, v := range a.AuditAnnotations {
			size += len(k) + len(v)
		}
		if left.fits(size) {
			response.Results[i].AuditAnnotations = validUTF8(a.AuditAnnotations)
		}
	}
	return response, nil
}

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

// A budget is how many bytes of texts still fit into an answer: pullgated uses no larger one, and a denial must arrive.
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

func (s *nodeServer) inUse() string {
	if set := s.policies.current.Load(); set != nil {
		return fmt.Sprintf("%s has the policy files %.12s", programName, set.Hash)
	}
	return programName + " has no policy files (policies: \"\")"
}

func validUTF8(texts map[string]string) map[string]string {
	valid := make(map[string]string, len(texts))
	for k, v := range texts {
		valid[safetext.Valid(k)] = safetext.Valid(v)
	}
	return valid
}

// Limits of a request for a verification, and of its answer. pullgated uses no larger answer.
const (
	maxRequirements, maxDigests, maxName = 256, 64, 4 << 10
	// maxMessage, maxSigner and maxSigners bound the texts of a result.
	maxMessage, maxSigner, maxSigners = 1 << 10, 512, 32
	maxSignatures                     = 200 // how many signatures an answer lists
)

func newSignatures(o Options, m *metrics) (*verify.Service, error) {
	log := o.Log.WithName("signatures")
	return verify.NewService(verify.ServiceOptions{
		Config: o.Config, Log: log, Verify: o.Verify,
		Requested: func(outcome string) { m.requests.WithLabelValues(outcome).Inc() },
		Verified:  func(outcome string) { m.verified.WithLabelValues(outcome).Inc() },
		OnPanic: func(value any, stack []byte) {
			m.panics.Inc()
			log.Error(fmt.Errorf("panic: %v", value), "A verification panicked, the image still needs its signatures",
				"stack", string(stack))
		},
	})
}

// Verify implements policyv1.PolicyServer.
func (s *nodeServer) Verify(ctx context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse, error) {
	name := imageref.New(r.GetName())
	if err := checkVerify(r, name); err != nil {
		return nil, err
	}
	set := s.policies.with(policyfiles.Version{Hash: r.GetPolicyHash(), TrustedRoot: r.GetTrustedRoot()}, true)
	if set == nil {
		s.metrics.mismatches.Inc()
		return nil, status.Errorf(codes.FailedPrecondition, "%s: pullgated has %.12s and the trusted root %.12q",
			s.inUse(), r.GetPolicyHash(), r.GetTrustedRoot())
	}
	c, background := r.GetCredential(), len(r.GetBackgroundRequirements()) > 0
	report, err := s.policies.signatures.Verify(ctx, set.rules, verify.Request{
		Image: verify.Image{
			Name: name, ID: r.GetImageId(), Digests: r.GetDigests(), Background: background,
		},
		Requirements: requirementsOf(r), List: r.GetListSignatures(),
		Credential: admission.Login{
			Username: c.GetUsername(), Password: c.GetPassword(),
			IdentityToken: c.GetIdentityToken(), RegistryToken: c.GetRegistryToken(),
		},
	})
	if err != nil {
		return nil, s.notVerified(ctx, name, err)
	}
	return responseOf(set.version, report), nil
}

func requirementsOf(r *policyv1.VerifyRequest) []string {
	return append(slices.Clip(r.GetRequirements()), r.GetBackgroundRequirements()...)
}

func checkVerify(r *policyv1.VerifyRequest, name imageref.Ref) error {
	seen := map[string]bool{}
	for _, hash := range requirementsOf(r) {
		if seen[hash] {
			return status.Errorf(codes.InvalidArgument, "requirement %.80q is there twice", hash)
		}
		seen[hash] = true
	}
	switch {
	case r.GetPolicyHash() == "":
		return status.Error(codes.InvalidArgument, "policy_hash is empty")
	case len(r.GetName()) > maxName || !name.Parsed() || name.MayBeImageID():
		return status.Errorf(codes.InvalidArgument, "name %.80q is not a repository with a tag or digest", r.GetName())
	case len(seen) == 0 || len(seen) > maxRequirements:
		return status.Errorf(codes.InvalidArgument, "%d requirements; allowed are 1 to %d", len(seen), maxRequirements)
	case len(r.GetDigests()) > maxDigests:
		return status.Errorf(codes.InvalidArgument, "%d digests; allowed are %d", len(r.GetDigests()), maxDigests)
	}
	return nil
}

func (s *nodeServer) notVerified(ctx context.Context, name imageref.Ref, err error) error {
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, verify.ErrUnknownRequirement), errors.Is(err, verify.ErrName):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, verify.ErrBusy):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.Canceled): // the process stops
		return status.Error(codes.Unavailable, programName+" stops")
	case errors.Is(err, verify.ErrPanic): // it is logged
	default:
		s.log.Error(err, "Failed to verify an image: it still needs its signatures", "image", name.String())
	}
	return status.Error(codes.Internal, "internal error, see the log of "+programName)
}

func responseOf(v policyfiles.Version, report requirement.Report) *policyv1.VerifyResponse {
	response := &policyv1.VerifyResponse{PolicyHash: v.Hash, TrustedRoot: v.TrustedRoot}
	left := budget(maxTexts)
	for _, r := range report.Results {
		result := &policyv1.VerifyResult{Requirement: r.Requirement, Met: r.Met, Digest: r.Digest, ReadsClock: r.ReadsClock}
		if !r.Until.IsZero() {
			result.Until = timestamppb.New(r.Until)
		}
		for _, a := range r.Attestations[:min(len(r.Attestations), maxSigners)] {
			result.Attestations = append(result.Attestations,
				&policyv1.Attestation{PredicateType: left.clean(a.PredicateType, maxSigner), Digest: a.Digest})
		}
		if !r.Met {
			result.Reason, result.Message = r.Reason, left.clean(r.Message, maxMessage)
		}
		response.Results = append(response.Results, result)
	}
	for i, r := range report.Results {
		for _, signer := range r.Signers[:min(len(r.Signers), maxSigners)] {
			if text := left.clean(signer, maxSigner); text != "" {
				response.Results[i].Signers = append(response.Results[i].Signers, text)
			}
		}
	}
	texts := func(all []string) (fit []string) {
		for _, c := range all {
			if text := left.clean(c, maxSigner); text != "" {
				fit = append(fit, text)
			}
		}
		return fit
	}
	for i, r := range report.Results {
		response.Results[i].Conditions = texts(r.Conditions)
	}
	for _, f := range report.Signatures[:min(len(report.Signatures), maxSignatures)] {
		found := &policyv1.FoundSignature{
			Repository: f.Repository, FoundBy: f.FoundBy, Digest: f.Digest, Subject: f.Subject, Counts: f.Counts,
			Signer: left.clean(f.Signer, maxSigner), Reason: left.clean(f.Reason, maxSigner),
			PredicateType: left.clean(f.PredicateType, maxSigner), Conditions: texts(f.Conditions),
		}
		response.Signatures = append(response.Signatures, found)
	}
	return response
}

// clean returns the beginning of a text, and "" if it does not fit into what is left.
func (b *budget) clean(text string, limit int) string {
	text = safetext.Line(text, limit)
	if !b.fits(len(text)) {
		return ""
	}
	return text
}
