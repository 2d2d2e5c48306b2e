package gate

import (
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// manyLimit limits the time for judging all pods that may have sent one pre-check, for which the kubelet waits.
const manyLimit = 3 * time.Second

// absent is the answer of a runtime for an absent image: an empty message.
var absent = []byte{} //nolint:gochecknoglobals // the constant of its type

// isPrecheck reports whether an ImageStatus is judged. Only a kubelet that decides whether to pull sends both of its
// annotations. If its call for the image's user were hidden, the container would run as root.
func isPrecheck(r *runtimeapi.ImageStatusRequest) bool {
	a := r.GetImage().GetAnnotations()
	return !r.GetVerbose() && a[podindex.SeenAnnotation] != "" && a[podindex.SourceAnnotation] != ""
}

type precheck struct {
	*call

	name imageref.Ref
	seen string // the value of SeenAnnotation
	// uses are those of the pods of which one has sent it. If no pod is known, it is that of an unknown one, which may use
	// what every pod may use; the source annotation shows whether it is static.
	uses       []*use
	identified bool // the pod that sent it is known, or that no pod is
}

func (g *Gate) precheck(ctx context.Context, c *call, image *runtimeapi.ImageSpec) *precheck {
	annotations := image.GetAnnotations()
	p := &precheck{call: c, name: imageref.New(image.GetImage()), seen: annotations[podindex.SeenAnnotation]}
	who := g.c.Pods.BySeen(p.seen)
	p.identified = len(who) == 1
	if len(who) == 0 {
		who = g.candidates(annotations, p.name)
	}
	if len(who) == 0 {
		p.identified = true
		who = []tracker.Pod{{Static: podindex.StaticSource(annotations[podindex.SourceAnnotation])}}
	}
	for _, pod := range who {
		p.uses = append(p.uses, g.use(ctx, c, pod, p.name))
	}
	return p
}

func (p *precheck) pullPolicy() string {
	if len(p.uses) > 1 {
		return tracker.PullUnknown
	}
	return p.uses[0].pullPolicy
}

func (g *Gate) imageStatus(ctx context.Context, c *criproxy.Call, req *runtimeapi.ImageStatusRequest) ([]byte, error) {
	if !isPrecheck(req) {
		return c.Forward(ctx)
	}
	g.ready(ctx)
	p := g.precheck(ctx, g.newCall(ctx, "ImageStatus"), req.GetImage())
	g.skipsAlways.Store(p.skipsAlways)
	state, quiet := g.changes.quiet()
	raw, err := c.Forward(ctx)
	if len(p.uses) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, manyLimit)
		defer cancel()
	}
	if err != nil {
		return g.answerError(ctx, p, err)
	}
	var resp runtimeapi.ImageStatusResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		g.c.Log.Error(err, "Failed to decode the runtime's answer: hiding the image", "image", p.name.String())
		g.waitAsIfPresent(ctx, p)
		g.tell(p)
		return absent, nil
	}
	img := image(resp.GetImage())
	if img.ID == "" {
		g.pods.show(p.seen, p.name)
		g.waitAsIfPresent(ctx, p)
		g.tell(p)
		return raw, nil
	}
	if g.hides(ctx, p, img) {
		g.c.Metrics.Refused("ImageStatus")
		g.tell(p)
		return absent, nil
	}
	if p.identified {
		g.show(p.uses[0], req.GetImage(), img, state, quiet)
	}
	return raw, nil
}

func (g *Gate) hides(ctx context.Context, p *precheck, img tracker.Image) bool {
	v := g.judgePrecheck(ctx, p, img)
	if v.Allowed() {
		if p.pullPolicy() != tracker.PullAlways { // Always asks the registry in any case
			g.hit(p.pullPolicy(), v, p.began)
		}
	} else {
		added := g.pods.hide(p.seen, p.name, false)
		if !g.c.Shadow {
			return true
		}
		if added && p.pullPolicy() != tracker.PullAlways {
			g.c.Metrics.Recheck(p.pullPolicy(), unverified, time.Since(p.began))
		}
	}
	if g.lacksEndorsement(ctx, p, img, v) {
		g.pods.hide(p.seen, p.name, true)
		return true
	}
	if v.Allowed() {
		g.pods.show(p.seen, p.name)
	}
	return false
}

// judgePrecheck allows a pre-check if it allows each pod that may have sent it. With several it makes no grant: the
// creation of the container does, for the exact pod. It notes one decision, with the pod if there is only one.
func (g *Gate) judgePrecheck(ctx context.Context, p *precheck, img tracker.Image) tracker.Verdict {
	if p.identified {
		u := p.uses[0]
		v := g.judge(ctx, u, tracker.Request{Image: img})
		if g.pods.refused(u.pod.UID, u.name, v.Pair.ImageID, true) && v.Allowed() {
			v = overruled(v, ContainerRefused)
			g.note(u.decision(v))
		}
		return v
	}
	began := time.Now()
	var d decisionlog.Decision
	for i, u := range p.uses {
		one := g.decide(ctx, u, tracker.Request{Image: img}, g.explain)
		if one.Verdict.Allowed() && g.pods.refused(u.pod.UID, u.name, one.Verdict.Pair.ImageID, false) {
			one.Verdict = overruled(one.Verdict, ContainerRefused)
		}
		first := d.Verdict.First || one.Verdict.First
		if i == 0 || !one.Verdict.Allowed() {
			d = one
		}
		if !one.Verdict.Allowed() {
			break // the others do not change the answer
		}
		d.Verdict.First = first
	}
	if len(p.uses) > 1 {
		d.Pod, d.PullPolicy, d.Secret, d.Verdict.Credential = tracker.Pod{}, tracker.PullUnknown, records.SecretRef{}, ""
	}
	d.Took = time.Since(began)
	g.count(d)
	return d.Verdict
}

// waitAsIfPresent fetches Secrets as for a present image, so that the duration does not reveal which are present.
func (g *Gate) waitAsIfPresent(ctx context.Context, p *precheck) {
	if g.c.Shadow {
		return
	}
	for _, u := range p.uses {
		g.secrets(ctx, u)
	}
}

// answerError answers a pre-check that the runtime failed with an error that would reveal that images are present.
func (g *Gate) answerError(ctx context.Context, p *precheck, err error) ([]byte, error) {
	if g.c.Shadow || aborted(err) {
		return nil, err
	}
	for _, u := range p.uses {
		if d := g.c.Tracker.CheckID(u.pod, u.name); d.Verdict != policy.Allow {
			g.waitAsIfPresent(ctx, p)
			g.c.Metrics.Verdict("ImageStatus", d)
			g.c.Metrics.Refused("ImageStatus")
			g.note(u.decision(tracker.Verdict{Decision: d}))
			g.tell(p)
			return absent, nil
		}
	}
	return nil, err
}

func image(i *runtimeapi.Image) tracker.Image {
	if i.GetId() == "" {
		return tracker.Image{}
	}
	return tracker.NewImage(i.GetId(), slices.Concat(i.GetRepoTags(), i.GetRepoDigests())...)
}

// PodFacts are those of one pod.
type PodFacts interface {
	// PullPolicies returns the imagePullPolicy of each use of an image by the pod, if the source has the pod.
	PullPolicies(uid string, image imageref.Ref) (policies []string, known bool)
	// ServiceAccount returns the name of the service account of a pod in a namespace, "" if it is not known. It may wait a
	// second.
	ServiceAccount(ctx context.Context, uid, namespace string) string
}

// A PodSource has facts about pods that the CRI does not have. A missing one makes verdicts stricter.
type PodSource interface {
	PodFacts
	// Secrets returns the known credentials of the pod's pull secrets for an image, in a kubelet's order. The first
	// credential.MaxOffers are considered; one more says that there are more. Before them is that of the pod's service
	// account, if it is known and any account may have proved access. Secrets may wait a few seconds.
	Secrets(ctx context.Context, uid string, image imageref.Ref) (secrets []tracker.Secret, complete bool)
	// Candidates returns the UIDs of the pods that may have sent a pre-check; ok is false if there may be others.
	Candidates(annotations map[string]string, image imageref.Ref) (uids []string, ok bool)
}

// SkipsAlways reports whether the kubelet sends no pre-check for Always, by the configuration or the last pre-check.
func (g *Gate) SkipsAlways() bool { return g.skipsAlways.Load() }

// Refusal returns the decision on the next pre-check of a pod if it overrules the tracker. It has no effect.
func (g *Gate) Refusal(uid string, image imageref.Ref, imageID string) (d policy.Decision, ok bool) {
	if !g.pods.refused(uid, image, imageID, false) {
		return d, false
	}
	return overruled(tracker.Verdict{}, ContainerRefused).Decision, true
}

// candidates returns the pods that may have sent a pre-check with an unknown config.seen, for example after a restart
// of the kubelet; nil if that is not certain. Only a pod with a sandbox, which the source must have, can have sent it.
func (g *Gate) candidates(annotations map[string]string, image imageref.Ref) (who []tracker.Pod) {
	if g.c.PodSource == nil || podindex.StaticSource(annotations[podindex.SourceAnnotation]) {
		return nil
	}
	uids, ok := g.c.PodSource.Candidates(annotations, image)
	if !ok {
		return nil
	}
	for _, p := range g.c.Pods.All() {
		if p.Static {
			continue
		}
		if _, known := g.c.PodSource.PullPolicies(p.UID, image); !known {
			return nil
		}
		if slices.Contains(uids, p.UID) {
			who = append(who, p)
		}
	}
	return who
}
