package gate

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/decisionlog"
	"github.com/pullgate/pullgate/internal/gate/hidden"
	"github.com/pullgate/pullgate/internal/gate/kubelet"
	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A Gate acts on the verdicts of the tracker: it hides images, denies calls and answers pulls. handlers.go lists its handlers.
type Gate struct {
	tracker   *tracker.Tracker
	pods      *podindex.Index
	runtime   *Runtime
	source    PodSource // nil if there is none
	metrics   Metrics
	log       klog.Logger
	decisions decisionlog.Recorder
	shadow    bool
	fallback  bool
	always    kubelet.AlwaysPrecheck
	// skipsAlways is what the last pre-check showed of the kubelet.
	skipsAlways atomic.Bool

	hidden        hidden.Set
	warned        hidden.PerPod // images for which it was logged that the pod has too many credentials
	repeats       repeats
	cleared       cleared
	synced        synced
	restoring     restoring
	allowRestores atomic.Bool
}

// Metrics counts what a [Gate] decides. Its methods may be called concurrently.
//
//nolint:interfacebloat // one method for each thing that is counted, of one implementation
type Metrics interface {
	// Verdict is called for every judgement, with the CRI call that asked.
	Verdict(call string, d policy.Decision)
	// Refused is called for every ImageStatus that was answered as if the image were absent, and
	// for every other call that was answered with PermissionDenied.
	Refused(call string)
	// Recheck is called when a pod was let use a present image, or was not: outcome is Hit or the
	// label of the KEP's miss. took is the time of the handling, for a miss that of the pull too.
	Recheck(pullPolicy, outcome string, took time.Duration)
	// CredentialsIgnored is called when a pod has more credentials for an image than are considered.
	CredentialsIgnored()
	// PullUnresolved is called for every successful pull that was not recorded, because the runtime did not
	// report which image it pulled.
	PullUnresolved()
	// CreationRefused is called for every CreateContainer, StartContainer and RestorePod that was refused although its images
	// were allowed: CreationRestored or CreationFailed.
	CreationRefused(reason string)
}

// Config are the parts and the settings of a [Gate].
type Config struct {
	Tracker *tracker.Tracker
	Pods    *podindex.Index
	Runtime *Runtime
	// PodSource has facts about pods that the CRI does not have; nil is none.
	PodSource PodSource
	Metrics   Metrics
	Log       klog.Logger
	// Decisions records every decision but a repeated Allow; nil records none. Log gets a line for each, and for a denial that is
	// repeated one a minute.
	Decisions decisionlog.Recorder
	// Shadow is noPullImageSecretRecheck: judge and count, enforce nothing.
	Shadow bool
	// OutageFallback is registryOutageFallback.
	OutageFallback bool
	// AlwaysPrecheck is kubeletSkipsAlwaysPrecheck.
	AlwaysPrecheck kubelet.AlwaysPrecheck
	// AllowRestores is allowRestores; SetAllowRestores changes it.
	AllowRestores bool
}

// New returns a gate. Every field of the configuration but PodSource, Decisions and the switches must be set.
func New(c Config) *Gate {
	g := &Gate{
		tracker:   c.Tracker,
		pods:      c.Pods,
		runtime:   c.Runtime,
		source:    c.PodSource,
		metrics:   c.Metrics,
		log:       c.Log,
		decisions: c.Decisions,
		shadow:    c.Shadow,
		fallback:  c.OutageFallback,
		always:    c.AlwaysPrecheck,
	}
	g.skipsAlways.Store(c.AlwaysPrecheck == kubelet.Skipped)
	g.allowRestores.Store(c.AllowRestores)
	return g
}

// Hit is the outcome of a recheck that needed no registry.
const Hit = "hit"

// unverified is the outcome of a recheck that the shadow mode let pass.
const unverified = "unverified"

// identify returns the pod of a sandbox configuration. The kubelet writes the configuration and its annotations, so
// they can be trusted.
func identify(c *runtimeapi.PodSandboxConfig) tracker.Pod {
	m := c.GetMetadata()
	return tracker.Pod{
		UID:       m.GetUid(),
		Namespace: m.GetNamespace(),
		Name:      m.GetName(),
		Static:    podindex.StaticSource(c.GetAnnotations()[podindex.SourceAnnotation]),
	}
}

// decode reads a request. A call that cannot be read cannot be judged, so it is refused.
func decode(c *criproxy.Call, into proto.Message) error {
	if err := proto.Unmarshal(c.Request, into); err != nil {
		return criproxy.Refuse(codes.InvalidArgument, "UNDECODABLE_REQUEST",
			"pullgate cannot read this request, which it has to judge; kubelet and pullgate may differ in their CRI version")
	}
	return nil
}

// judge asks the tracker, counts the verdict and notes it, unless it is a repeated Allow. A request without credentials is
// judged by those of the pod's Secrets if nothing else allows it: to get them may take a while. They are requested before
// every refusal, so that its duration does not reveal the reason.
func (g *Gate) judge(ctx context.Context, callName string, p tracker.Pod, r tracker.Request) tracker.Verdict {
	d := g.decide(ctx, callName, p, r, g.tracker.Check)
	if d.Verdict.Reason != policy.Absent {
		g.count(r.Name, d)
	}
	return d.Verdict
}

// decide judges by a check of the tracker. It neither counts nor logs what it decided.
func (g *Gate) decide(ctx context.Context, callName string, p tracker.Pod, r tracker.Request, check func(context.Context, tracker.Request) tracker.Verdict) decisionlog.Decision {
	began := time.Now()
	r.Pod = p
	pullPolicy := g.policyFor(ctx, callName, p, r.Name)
	r.Unasked = r.Unasked || pullPolicy == tracker.PullNever // the registry will not be asked
	v := check(ctx, r)
	if !v.Allowed() && v.Reason != policy.Absent && r.Credentials == nil {
		r.Secrets = g.secrets(ctx, p, r.Name)
		if v.Reason == policy.NotProved && len(r.Secrets) > 0 {
			v = check(ctx, r)
		}
	}
	return decisionlog.Decision{
		Call: callName, Pod: p, Verdict: v, Secret: holder(v, r.Secrets),
		PullPolicy: pullPolicy, Took: time.Since(began),
	}
}

// count counts a verdict and notes it, unless it is a repeated Allow.
func (g *Gate) count(name imageref.Ref, d decisionlog.Decision) {
	g.metrics.Verdict(d.Call, d.Verdict.Decision)
	if !d.Verdict.Allowed() || d.Verdict.First || d.Pod.UID == "" { // whether an unknown pod was allowed before is not known
		g.note(name, d)
	} else {
		g.noteRepeatedAllow(name, d)
	}
}

// hit counts a present image that was allowed by an earlier proof: once for each pod and pair, when the pod gets
// its grant.
func (g *Gate) hit(pullPolicy string, v tracker.Verdict, began time.Time) {
	if v.First && (v.Reason == policy.Proved || v.Reason == policy.ProvedInGrace || v.Reason == policy.Open) {
		g.metrics.Recheck(pullPolicy, Hit, time.Since(began))
	}
}

// deny returns the error for a container that may not be created or started. It says what is missing
// and what to do, and contains no name that is not in the request.
func (g *Gate) deny(callName string, p tracker.Pod, name imageref.Ref, v tracker.Verdict) error {
	g.metrics.Refused(callName)
	what := fmt.Sprintf("image %q", name.String())
	if name.Empty() {
		what = "its image"
	}
	missing := "no credential of this pod has proved access to it"
	todo := "set imagePullSecrets that can pull it; with imagePullPolicy Never an image must have been proved before"
	switch v.Reason {
	case policy.ImageIDName:
		missing, todo = unnamed(name)
	case policy.RecordUnreadable:
		missing, todo = "the record of who proved access cannot be read", "see the log of pullgated on this node"
	case policy.ProofExpired:
		missing, todo = "its proof of access has expired", "the next pull renews it; imagePullPolicy Never has none, use IfNotPresent"
	default:
	}
	return criproxy.Refuse(codes.PermissionDenied, "ACCESS_NOT_PROVED",
		fmt.Sprintf("pullgate: pod %s/%s may not use %s: %s; %s", p.Namespace, p.Name, what, missing, todo))
}

// unnamed says why access cannot be proved for a name that the runtime resolves to an image without that name. It
// depends on the name alone, so that it reveals nothing about the images on the node.
func unnamed(name imageref.Ref) (missing, todo string) {
	switch {
	case name.IsShort():
		return "it names no registry, and the runtime resolved the short name to another registry than docker.io",
			fmt.Sprintf("write the registry in the name of the image, as in REGISTRY/%s", name)
	case strings.Contains(name.String(), "/"): // which no image ID has
		return "the image that the runtime resolved it to does not have this name", "pull it by this name, with imagePullPolicy IfNotPresent or Always"
	default:
		return "an image ID is not a name that access can be proved for", "use the image's repository with a tag or digest"
	}
}

// aborted reports whether an error only says that the call itself did not complete, so that it reveals
// nothing about an image.
func aborted(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	default:
		return false
	}
}
