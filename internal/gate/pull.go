package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

type pullCall struct {
	*use

	image      *runtimeapi.ImageSpec // as the client sent it
	sent       tracker.Sent          // with the credential of the call
	anonymous  bool                  // that is empty
	login      admission.Login       // what the runtime uses of it; only if there are policies about signatures
	seen       string                // the value of SeenAnnotation
	present    tracker.Image         // the image that has the name on the node before the pull
	hidden     bool                  // a pre-check of this pod for this name is hidden
	state      uint64                // of the images on the node when it was read, see imageChanges
	quiet      bool                  // that state is known
	unendorsed bool                  // it is hidden because the image lacked an endorsement
	noPod      bool                  // crictl, kubeadm
	withheld   bool                  // the credential is one of the node that is for other pods; sent is without it
	loan       loan                  // a lent credential; sent is without it
	// accessAudit is the file by which the pull would be refused if it were enforced.
	accessAudit string

	exact        bool     // it is known whether the registry must be asked
	revalidation bool     // the registry need not be asked if the credential is proved
	renewal      *renewal // for which equal pulls wait; nil if they do not
}

func (g *Gate) pullCall(ctx context.Context, c *call, req *runtimeapi.PullImageRequest) *pullCall {
	a, config := req.GetAuth(), req.GetSandboxConfig()
	var pod tracker.Pod
	if config != nil {
		pod = identify(config)
	}
	login := credential.Login{
		Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(), ServerAddress: a.GetServerAddress(),
		IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken(),
	}.Decoded()
	cred := credential.New(login)
	p := &pullCall{
		use: g.use(ctx, c, pod, imageref.New(req.GetImage().GetImage())), image: req.GetImage(),
		sent: g.c.Tracker.Sent(cred, pod), anonymous: cred.Anonymous(),
		seen: config.GetAnnotations()[podindex.SeenAnnotation], noPod: config == nil,
	}
	if c.signing() != nil {
		p.login = loginOf(login, p.name)
	}
	if config != nil {
		g.c.Pods.Learn(p.seen, pod)
	}
	if p.seen != "" {
		p.hidden, p.unendorsed = g.pods.isHidden(p.seen, p.name)
		p.hidden = p.hidden && (!g.c.Shadow || p.unendorsed)
	}
	p.exact, p.revalidation = g.isRevalidation(p)
	return p
}

// isRevalidation reports whether it is known if a pull must reach the registry, and whether it need not.
func (g *Gate) isRevalidation(p *pullCall) (exact, revalidation bool) {
	switch p.pullPolicy {
	case tracker.PullAlways:
		return true, false
	case tracker.PullIfNotPresent:
		return true, !g.c.Shadow || p.unendorsed
	case tracker.PullMixed: // may be for a container with Always
		return false, false
	default:
		return p.skipsAlways, p.skipsAlways && p.hidden
	}
}

// pullImage answers a request to prove access for a proved credential, and forwards every other pull.
func (g *Gate) pullImage(ctx context.Context, c *criproxy.Call, req *runtimeapi.PullImageRequest) ([]byte, error) {
	g.ready(ctx)
	p := g.pullCall(ctx, g.newCall(ctx, "PullImage"), req)
	if err := g.fencedPull(p); err != nil {
		return nil, err
	}
	g.bind(ctx, p)
	g.withhold(ctx, p)
	g.readPresent(ctx, p)
	d := g.judgeRevalidation(ctx, p, false)
	if d.Verdict.Reason == policy.ProofExpired {
		unasked, err := g.renewals.begin(ctx, p)
		if err != nil {
			return nil, err
		}
		defer g.renewals.end(p, false)
		if p.renewal == nil { // it has waited
			g.readPresent(ctx, p)
		}
		d = g.judgeRevalidation(ctx, p, unasked) // also if none was in flight: one may have ended a moment ago
	}
	if p.revalidation {
		if g.count(d); p.answered(d.Verdict) {
			g.hit(p.pullPolicy, d.Verdict, p.began)
			return g.answerFromNode(ctx, p)
		}
	}
	return g.realPull(ctx, c, p)
}

// readPresent reads which image is on the node.
func (g *Gate) readPresent(ctx context.Context, p *pullCall) {
	p.state, p.quiet = g.changes.quiet()
	p.present, _ = g.c.Runtime.imageOf(ctx, p.image) // after an error the pull must reach the registry
	p.revalidation = p.revalidation && p.present.ID != ""
}

// judgeRevalidation judges the pull if the registry need not be asked. It neither counts nor notes the decision.
func (g *Gate) judgeRevalidation(ctx context.Context, p *pullCall, unasked bool) (d decisionlog.Decision) {
	if p.revalidation {
		r := tracker.Request{Image: p.present, Sent: p.sent, Unasked: unasked}
		d = g.decide(ctx, p.use, r, g.c.Tracker.Check)
	}
	return d
}

// judgePull judges by the credential of the pull; unasked says that the registry was not reached.
func (g *Gate) judgePull(ctx context.Context, p *pullCall, unasked bool) tracker.Verdict {
	return g.judge(ctx, p.use, tracker.Request{Image: p.present, Sent: p.sent, Unasked: unasked})
}

func (p *pullCall) answered(v tracker.Verdict) bool { return p.answers(v) && (p.hidden || v.Proved) }

// answers reports whether a verdict answers a pull. A grant does not, nor does a file for a pull with a credential: a
// kubelet must not record an untried credential.
func (p *pullCall) answers(v tracker.Verdict) bool {
	switch v.Reason {
	case policy.Granted:
		return v.Proved
	case policy.Shared, policy.Lent:
		return v.Proved || p.anonymous
	default:
		return v.Allowed()
	}
}

// answerFromNode answers a pull with the image on the node, once it has the endorsements that it needs.
func (g *Gate) answerFromNode(ctx context.Context, p *pullCall) ([]byte, error) {
	if d, err := g.verifySignatures(ctx, p, p.present); err != nil {
		v, out := overruled(tracker.Verdict{}, AdmissionDenied), pullUnavailable
		v.Pair.ImageID, p.judged = p.present.ID, p.present
		if d.Answer == admission.Deny {
			out = pullDenied
		}
		g.pullEnded(p, v, out, d)
		return nil, err
	}
	g.pods.show(p.seen, p.name)
	g.show(p.use, p.image, p.present, p.state, p.quiet)
	raw, err := proto.Marshal(&runtimeapi.PullImageResponse{ImageRef: p.present.ID})
	if err != nil {
		return nil, fmt.Errorf("answer a pull with the image on the node: %w", err)
	}
	return raw, nil
}

// realPull forwards a pull: intent on disk, runtime, record on disk, grant, answer.
func (g *Gate) realPull(ctx context.Context, c *criproxy.Call, p *pullCall) ([]byte, error) {
	proved := g.c.Shadow && p.present.ID != "" && g.judgePull(ctx, p, false).Allowed()

	// Before the intent, because it may take a while, and before the client may disconnect.
	if !p.anonymous {
		g.secrets(ctx, p.use)
	}
	if p.loan = g.lend(ctx, p); p.withheld && p.loan.file == "" {
		return nil, g.refuseNodeCredential(p)
	}
	pull, err := g.c.Tracker.BeginPull(ctx, p.name, p.present)
	if err != nil {
		if errors.Is(err, tracker.ErrRuntime) {
			g.c.Log.Error(err, "Denied a pull: failed to list the images of the runtime", p.keys()...)
			g.pullEnded(p, tracker.Verdict{}, pullError, admission.Decision{})
			return nil, refuse(codes.Unavailable, "RUNTIME_NOT_LISTING",
				"pullgate cannot list the images of the container runtime, which it needs before a pull of a repository with "+
					"preloaded images; see the logs of pullgated and of the runtime")
		}
		if !errors.Is(err, tracker.ErrNoIntent) {
			return nil, err
		}
		if p.present.ID != "" && !g.c.Shadow && p.mayServeWithoutStore(g.judgePull(ctx, p, false)) {
			g.c.Log.Error(err, "Failed to write the store of pull records: answering a pull with the image on the node",
				p.keys()...)
			return g.answerFromNode(ctx, p)
		}
		g.c.Log.Error(err, "Denied a pull: failed to write the store of pull records", p.keys()...)
		g.pullEnded(p, tracker.Verdict{}, pullError, admission.Decision{})
		// The kubelet gives the pod the reason with which the text begins; with code Unknown it shows only the text.
		return nil, refuse(codes.Unknown, "STORE_NOT_WRITABLE",
			"RegistryUnavailable: pullgate cannot write its store of pull records on this node; see the log of pullgated and "+
				"the disk that holds its state directory")
	}
	defer g.ended(pull.Lost) // for every return, or panic, that reports no other end

	if err := p.loan.add(c); err != nil {
		return nil, err
	}
	raw, err := g.changes.forward(ctx, c)
	out, v := outcomeOf(err), tracker.Verdict{}
	var (
		pulled   tracker.Image
		decision admission.Decision
		unsigned error // the pull succeeded, and its image lacks an endorsement
	)
	if out == pullVerified {
		crashpoint.Hit(crashpoint.Pulled)
		v, out, pulled = g.verified(ctx, pull, p, raw)
		crashpoint.Hit(crashpoint.Recorded)
	} else if out.definite(err) {
		end := pull.Refused
		if out == pullDenied {
			end = func() error { return pull.Denied(p.present, cmp.Or(p.loan.sent, p.sent)) }
		}
		g.ended(end)
	}
	g.renewals.end(p, out.registryDown() && !fromMirror(err))
	g.countPull(p, proved, out)
	if err == nil && pulled.ID != "" {
		p.judged = pulled
		decision, unsigned = g.verifySignatures(ctx, p, pulled)
		crashpoint.Hit(crashpoint.Endorsed)
	}
	if unsigned != nil {
		v = overruled(v, AdmissionDenied)
	}
	g.pullEnded(p, v, out, decision)
	if unsigned != nil {
		return nil, unsigned
	}
	if err == nil {
		return raw, nil
	}
	if v, ok := g.serveLocalImage(ctx, p, out, err); ok {
		g.c.Log.Info("Pull answered with the image on the node",
			append(p.keys(), "outcome", out.label(), "inGrace", v.InGrace)...)
		return g.answerFromNode(ctx, p)
	}
	if p.loan.file != "" {
		return nil, p.loan.failed(p, out, err)
	}
	return nil, g.explained(p, out, err)
}

// mayServeWithoutStore reports whether the image on the node may answer a pull without a writable intent. A pull that
// must reach the registry is answered only for a pod that is exempt or has a grant.
func (p *pullCall) mayServeWithoutStore(v tracker.Verdict) bool {
	if p.pullPolicy != tracker.PullAlways {
		return p.answers(v)
	}
	switch v.Reason {
	case policy.ExemptStaticPod, policy.ExemptNamespace, policy.Granted:
		return true
	default:
		return false
	}
}

// verified writes the record of a successful pull. If the image ID is not known, the intent stays on disk.
func (g *Gate) verified(
	ctx context.Context, pull *tracker.Pull, p *pullCall, raw []byte,
) (v tracker.Verdict, out outcome, pulled tracker.Image) {
	pulled, err := g.pulledImage(ctx, p, raw)
	if err != nil {
		g.c.Metrics.PullUnresolved()
		g.c.Log.Error(err, "Failed to record a pull, the runtime did not return the ID of the image: the image needs proof",
			p.keys()...)
		return tracker.Verdict{}, pullError, tracker.Image{}
	}
	if p.loan.file != "" {
		v, err = g.lentProof(ctx, pull, p, pulled)
	} else {
		v, err = pull.Proved(tracker.Proof{ImageID: pulled.ID, Sent: p.sent, Secrets: p.known, Pod: p.pod})
	}
	if err != nil {
		g.c.Log.Error(err, "Failed to write a pull record: the image needs proof from every other pod",
			"image", p.name.String())
	}
	g.pods.show(p.seen, p.name)
	return v, pullVerified, pulled
}

// pulledImage returns the image that a pull brought. The image_ref of the answer may be a digest (before CRI 0.36), so
// the requested name and image_ref must both be on the node, as one image.
func (g *Gate) pulledImage(ctx context.Context, p *pullCall, raw []byte) (tracker.Image, error) {
	var resp runtimeapi.PullImageResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		return tracker.Image{}, fmt.Errorf("decode the answer to PullImage: %w", err)
	}
	ref := resp.GetImageRef()
	if ref == "" {
		return tracker.Image{}, errors.New("the answer to PullImage has no image_ref")
	}
	// The runtime has pulled, so the record is written even if the client has disconnected.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownCallLimit)
	defer cancel()
	requested, err := g.c.Runtime.imageOf(ctx, p.image)
	if err != nil {
		return tracker.Image{}, err
	}
	if requested.ID == "" {
		return tracker.Image{}, fmt.Errorf("image %q is not on the node after its pull (image_ref %q)", p.name.String(), ref)
	}
	if requested.ID == ref {
		return requested, nil
	}
	answered, err := g.c.Runtime.imageOf(ctx, &runtimeapi.ImageSpec{
		Image: ref, Annotations: p.image.GetAnnotations(), RuntimeHandler: p.image.GetRuntimeHandler(),
	})
	if err != nil {
		return tracker.Image{}, err
	}
	if answered.ID != requested.ID {
		return tracker.Image{}, fmt.Errorf("image %q is %s on the node, image_ref %q of its pull is %q",
			p.name.String(), requested.ID, ref, answered.ID)
	}
	return requested, nil
}

func (g *Gate) pullEnded(p *pullCall, v tracker.Verdict, out outcome, signed admission.Decision) {
	v.AccessAudit = cmp.Or(p.accessAudit, v.AccessAudit)
	d := p.decision(v)
	d.Hidden = p.hidden && p.present.ID != ""
	if d.Outcome, d.Admission = out.label(), signed; v.First {
		g.c.Metrics.Use(v.Reason)
	}
	if p.accessAudit != "" {
		g.c.Metrics.Audited(policy.Reverify)
	}
	g.note(d)
}

// countPull counts a pull of a present image, unless only an endorsement is missing. In shadow mode a pull with an
// earlier proof is a hit: an enforcing gate would not have asked the registry.
func (g *Gate) countPull(p *pullCall, proved bool, out outcome) {
	switch {
	case p.present.ID == "", p.unendorsed:
	case g.c.Shadow && proved:
		g.c.Metrics.Recheck(p.pullPolicy, Hit, time.Since(p.began))
	default:
		g.c.Metrics.Recheck(p.pullPolicy, out.label(), time.Since(p.began))
	}
}

// serveLocalImage reports whether the image on the node may answer a failed pull. A known request to prove access was
// forwarded because its proof is expired or missing; if the registry is down, an expired proof counts during its grace.
// The error of a mirror does not show that. If it is unknown whether the pull had to reach the registry, a pod with a
// proof must not depend on the registry, nor an exempt pod on pullgate.
func (g *Gate) serveLocalImage(
	ctx context.Context, p *pullCall, out outcome, err error,
) (v tracker.Verdict, ok bool) {
	down, unasked := out.registryDown(), !fromMirror(err)
	revalidates, unknown := p.revalidation && down, !p.exact && p.hidden
	if p.present.ID == "" || ctx.Err() != nil || !revalidates && !unknown {
		return v, false
	}
	// The name may have lost its image, or have got another one, during the pull.
	if g.readPresent(ctx, p); p.present.ID == "" {
		return v, false
	}
	if revalidates {
		v = g.judgePull(ctx, p, unasked)
		return v, p.answered(v)
	}
	if down && g.c.OutageFallback {
		v = g.judgePull(ctx, p, unasked)
		return v, p.answers(v)
	}
	// Without its UID, so that a pull that the registry has just refused leaves no grant for the next pre-check.
	unnamed := tracker.Pod{Namespace: p.pod.Namespace, Name: p.pod.Name, Static: p.pod.Static}
	anonymous := g.use(ctx, p.call, unnamed, p.name)
	nothing := g.c.Tracker.Sent(credential.Credential{}, tracker.Pod{})
	v = g.judge(ctx, anonymous, tracker.Request{Image: p.present, Sent: nothing})
	return v, v.Reason == policy.ExemptStaticPod || v.Reason == policy.ExemptNamespace
}

// ended reports the end of a pull to the tracker; after a failure the intent stays on disk, which is safe.
func (g *Gate) ended(end func() error) {
	if err := end(); err != nil {
		g.c.Log.Error(err, "Failed to write the end of a pull: keeping its intent")
	}
}
