// Package gate implements the judged calls of the CRI, by which a pod gets to use an image: it decodes them, gets a
// verdict from the tracker and acts on it.
//
//	criproxy.Server ──▶ Gate ──▶ tracker: may this pod use this image?
//	                      └────▶ podindex: which pod is asking?
//
// [Gate.Handlers] is the table of these calls. For a pod that has to prove access, ImageStatus is answered as if the
// image were absent, so that the kubelet pulls it with the pod's credentials. A PullImage is recorded, or answered
// without the registry. A container on an image that its pod may not use is denied.
package gate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A Gate acts on the verdicts of the tracker: it hides images, denies calls and answers pulls.
type Gate struct {
	c           Config      // AllowRestores and Admission in it are only those that New got
	skipsAlways atomic.Bool // the result of the last pre-check about the kubelet

	pods          podStates
	synced        synced
	kind          atomic.Pointer[runtimeKind] // nil is unknown
	allowRestores atomic.Bool

	admitting atomic.Pointer[Admission] // nil if there are no policies
	access    atomic.Pointer[Lender]    // nil if there are no files
	held      heldRequests
	changes   imageChanges
	renewals  renewals
	later     sync.WaitGroup // read-backs after the answer
	kubelets  kubelets

	containers containers
}

// Metrics counts the decisions of a [Gate]. Its methods may be called concurrently.
//
//nolint:interfacebloat // one method for each thing that is counted, of one implementation
type Metrics interface {
	// Verdict is called for every judgement, with the name of the CRI call.
	Verdict(call string, d policy.Decision)
	// Use is called for the first Allow of a pod for an image.
	Use(why policy.Reason)
	// Audited is called for every judgement that a file with mode Audit would turn into the verdict.
	Audited(would policy.Verdict)
	// Refused is called for every hidden ImageStatus, and every PermissionDenied for another reason than a policy.
	Refused(call string)
	// Recheck is called when a present image is allowed (outcome Hit) or pulled (the label of the KEP's miss).
	Recheck(pullPolicy, outcome string, took time.Duration)
	// CredentialsIgnored is called when a pod has more credentials for an image than the gate considers.
	CredentialsIgnored()
	// PullUnresolved is called for every pull that was not recorded because the runtime did not report the image.
	PullUnresolved()
	// CreationRefused is called for what is refused although its images were allowed: CreationRestored or CreationFailed.
	CreationRefused(reason string)
	// Admission is called for each decision of the chain for which it asked validators, with the CRI call.
	Admission(call string, d admission.Decision)
	// ViewConflict is called for each field in which the CRI and the API server differed about a pod.
	ViewConflict(field string)
}

// Config holds the parts and the settings of a [Gate].
type Config struct {
	Tracker   *tracker.Tracker
	Pods      *podindex.Index
	Runtime   *Runtime
	PodSource PodSource // has facts about pods that the CRI does not have; nil if there is none
	Metrics   Metrics
	Log       klog.Logger
	// Decisions records every decision except a repeated Allow; nil records none.
	Decisions      decisionlog.Recorder
	Shadow         bool           // noPullImageSecretRecheck: verdicts are not enforced, policies are
	OutageFallback bool           // registryOutageFallback
	AlwaysPrecheck AlwaysPrecheck // kubeletSkipsAlwaysPrecheck
	AllowRestores  bool           // allowRestores; SetAllowRestores changes it
	Admission      *Admission     // has the policies, nil if there are none; SetAdmission changes it
	// Event tells who reads a pod why it waits, by an Event of the API server. It must not block; nil tells nobody.
	Event func(p tracker.Pod, image, reason, message string)
}

// New returns a gate. Every field except PodSource, Decisions, Event, Admission and the switches must be set.
func New(c Config) *Gate {
	g := &Gate{c: c}
	g.skipsAlways.Store(c.AlwaysPrecheck == AlwaysSkipped)
	g.allowRestores.Store(c.AllowRestores)
	g.admitting.Store(c.Admission)
	g.pods.has = func(k podKey) bool {
		if k.uid != "" {
			return c.Pods.Has(k.uid)
		}
		return len(c.Pods.BySeen(k.seen)) > 0
	}
	return g
}

// Outcomes of a recheck beside those of a pull.
const (
	Hit        = "hit"        // needed no registry
	unverified = "unverified" // was allowed by shadow mode
)

type described interface {
	GetMetadata() *runtimeapi.PodSandboxMetadata
	GetAnnotations() map[string]string
}

func identify(c described) tracker.Pod {
	m := c.GetMetadata()
	return tracker.Pod{
		UID:       m.GetUid(),
		Namespace: m.GetNamespace(),
		Name:      m.GetName(),
		Static:    podindex.StaticSource(c.GetAnnotations()[podindex.SourceAnnotation]),
	}
}

func refuse(code codes.Code, reason, format string, args ...any) error {
	return criproxy.Refuse(code, reason, fmt.Sprintf(format, args...))
}

func errUndecodableAnswer(method string) error {
	return refuse(codes.Internal, "UNDECODABLE_ANSWER", "pullgate cannot read the runtime's answer to %s", method)
}

func (g *Gate) measure(d decisionlog.Decision) {
	g.c.Metrics.Verdict(d.Call, d.Verdict.Decision)
	if d.Verdict.First {
		g.c.Metrics.Use(d.Verdict.Reason)
	}
	if d.Verdict.AccessAudit != "" {
		g.c.Metrics.Audited(map[bool]policy.Verdict{false: policy.Allow}[d.Verdict.Allowed()])
	}
}

// count counts a verdict and notes it, unless it is a repeated Allow.
func (g *Gate) count(d decisionlog.Decision) {
	g.measure(d)
	g.noteVerdict(d)
}

func (g *Gate) noteVerdict(d decisionlog.Decision) {
	// it is unknown whether an unknown pod was allowed before
	audited := d.Verdict.AccessAudit != "" && g.pods.once(d.Pod.UID, "accessAudit "+d.Verdict.AccessAudit, d.Repository)
	if !d.Verdict.Allowed() || d.Verdict.First || d.Pod.UID == "" || audited {
		g.note(d)
	} else {
		g.noteRepeatedAllow(d)
	}
}

// hit counts a present image that an earlier proof allowed: once for each pod and pair, when the pod gets its grant.
func (g *Gate) hit(pullPolicy string, v tracker.Verdict, began time.Time) {
	if v.First && (v.Reason == policy.Proved || v.Reason == policy.ProvedInGrace || v.Reason == policy.Open) {
		g.c.Metrics.Recheck(pullPolicy, Hit, time.Since(began))
	}
}

// deny returns the error for a denied container: what is missing and what to do, with names from the request alone.
func (g *Gate) deny(u *use, v tracker.Verdict) error {
	g.c.Metrics.Refused(u.method)
	what := fmt.Sprintf("image %q", u.name.String())
	if u.name.Empty() {
		what = "its image"
	}
	missing := "no credential of this pod has proved access to it"
	todo := "set imagePullSecrets that can pull it; with imagePullPolicy Never an image must have been proved before"
	switch v.Reason {
	case policy.Fenced:
		return refuse(codes.PermissionDenied, fenced, "pullgate: pod %s/%s may not use %s: %s",
			u.pod.Namespace, u.pod.Name, what, reserved(v.Pair.Repository))
	case policy.ImageIDName:
		missing, todo = unnamed(u.name)
	case policy.RecordUnreadable:
		missing, todo = "the record of who proved access cannot be read", "see the log of pullgated on this node"
	case policy.ProofExpired:
		missing = "its proof of access has expired"
		todo = "the next pull renews it; imagePullPolicy Never has none, use IfNotPresent"
	default:
	}
	return refuse(codes.PermissionDenied, "ACCESS_NOT_PROVED", "pullgate: pod %s/%s may not use %s: %s; %s",
		u.pod.Namespace, u.pod.Name, what, missing, todo)
}

// unnamed says why access cannot be proved for a name that the resolved image does not have. It depends only on the
// name, so that it reveals nothing about the images on the node.
func unnamed(name imageref.Ref) (missing, todo string) {
	switch {
	case name.IsShort():
		return "it names no registry, and the runtime resolved the short name to another registry than docker.io",
			fmt.Sprintf("write the registry in the name of the image, as in REGISTRY/%s", name)
	case strings.Contains(name.String(), "/"): // image IDs have no slash
		return "the image that the runtime resolved it to does not have this name",
			"pull it by this name, with imagePullPolicy IfNotPresent or Always"
	default:
		return "an image ID is not a name that access can be proved for", "use the image's repository with a tag or digest"
	}
}

// aborted reports whether an error only says that the call did not complete, and so reveals nothing about an image.
func aborted(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	default:
		return false
	}
}

// Handlers returns the calls that the gate judges or reads, by full method. Every other call is forwarded unchanged.
func (g *Gate) Handlers() map[string]criproxy.Handler {
	return map[string]criproxy.Handler{
		runtimeapi.ImageService_ImageStatus_FullMethodName:        decoded(g, g.imageStatus),
		runtimeapi.ImageService_PullImage_FullMethodName:          decoded(g, g.pullImage),
		runtimeapi.RuntimeService_CreateContainer_FullMethodName:  decoded(g, g.noteCreate),
		runtimeapi.RuntimeService_StartContainer_FullMethodName:   decoded(g, g.startContainer),
		runtimeapi.RuntimeService_RestorePod_FullMethodName:       decoded(g, g.restorePod),
		runtimeapi.ImageService_RemoveImage_FullMethodName:        decoded(g, g.removeImage),
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    decoded(g, g.runPodSandbox),
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: decoded(g, g.removePodSandbox),
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName:   decoded(g, g.listPodSandbox),
	}
}

// decoded returns a handler that decodes and holds the request for f. What cannot be decoded is refused.
func decoded[M any, P interface {
	*M
	proto.Message
}](g *Gate, f func(ctx context.Context, c *criproxy.Call, request P) ([]byte, error)) criproxy.Handler {
	return func(ctx context.Context, c *criproxy.Call) ([]byte, error) {
		request := P(new(M))
		if proto.Unmarshal(c.Request, request) != nil {
			return nil, refuse(codes.InvalidArgument, "UNDECODABLE_REQUEST", "pullgate cannot read this request, "+
				"which it has to judge; kubelet and pullgate may differ in their CRI version")
		}
		release, ok := g.held.hold(holderOf(request), len(c.Request))
		if !ok {
			return nil, refuse(codes.ResourceExhausted, "TOO_MANY_BYTES_OF_REQUESTS", "pullgate: the requests of this pod "+
				"that have no answer yet take too much memory; the kubelet tries again")
		}
		defer release()
		return f(ctx, c, request)
	}
}
