package gate

import (
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/hidden"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// manyLimit limits the time for judging all pods that may have sent one pre-check: getting the Secrets of each may take a while, and the kubelet
// waits for the answer.
const manyLimit = 3 * time.Second

// absent is the answer of a runtime for an absent image: an empty message.
var absent = []byte{} //nolint:gochecknoglobals // the constant of its type

// isPrecheck reports whether an ImageStatus is judged. Only a kubelet that decides whether to pull sends both of its own annotations. Its call
// for the image's user has none: if that call were hidden, the container would run as root.
func isPrecheck(r *runtimeapi.ImageStatusRequest) bool {
	a := r.GetImage().GetAnnotations()
	return !r.GetVerbose() && a[podindex.SeenAnnotation] != "" && a[podindex.SourceAnnotation] != ""
}

// imageStatus hides an image if the pod has to prove access to it.
func (g *Gate) imageStatus(ctx context.Context, c *criproxy.Call, req *runtimeapi.ImageStatusRequest) ([]byte, error) {
	if !isPrecheck(req) {
		return c.Forward(ctx)
	}
	g.skipsAlways.Store(g.c.AlwaysPrecheck.Skips(ctx))
	g.ready(ctx)
	began := time.Now()
	name, seen := imageref.New(req.GetImage().GetImage()), req.GetImage().GetAnnotations()[podindex.SeenAnnotation]
	who := g.c.Pods.BySeen(seen)
	known := len(who) == 1 // the pod that sent it is known
	if len(who) == 0 {
		who = g.candidates(req.GetImage().GetAnnotations(), name)
	}
	if len(who) == 0 {
		// The pod is unknown: it may use what every pod may use, and the source annotation shows whether it is static.
		who = []tracker.Pod{{Static: podindex.StaticSource(req.GetImage().GetAnnotations()[podindex.SourceAnnotation])}}
	}

	raw, err := c.Forward(ctx)
	if len(who) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, manyLimit)
		defer cancel()
	}
	if err != nil {
		return g.answerError(ctx, name, who, err)
	}
	var resp runtimeapi.ImageStatusResponse
	if err := criproxy.DecodeAnswer(raw, &resp); err != nil {
		g.c.Log.Error(err, "Answer of the runtime cannot be read, the image is hidden", "image", name.String())
		return absent, nil
	}
	key := hidden.KeyOf(seen, name)
	if resp.GetImage().GetId() == "" {
		g.shown(key)
		g.waitAsIfPresent(ctx, name, who)
		return raw, nil
	}

	pullPolicy := tracker.PullUnknown
	if len(who) == 1 {
		pullPolicy = g.precheckPolicy(ctx, who[0], name)
	}
	r := tracker.Request{Name: name, Image: image(resp.GetImage())}
	var v tracker.Verdict
	if known || who[0].UID == "" {
		v = g.judgeAsking(ctx, who[0], r, pullPolicy, began)
	} else {
		v = g.judgeCandidates(ctx, who, r)
	}
	switch {
	case v.Allowed():
		if pullPolicy != tracker.PullAlways { // Always asks the registry in any case
			g.hit(pullPolicy, v, began)
		}
	case g.hidden.Add(key) && g.c.Shadow && pullPolicy != tracker.PullAlways:
		g.c.Metrics.Recheck(pullPolicy, unverified, time.Since(began))
	}
	if !v.Allowed() && !g.c.Shadow {
		g.c.Metrics.Refused("ImageStatus")
		return absent, nil
	}
	if g.lacksEndorsement(ctx, who, r, v, began) {
		g.hidden.Add(key)
		g.unendorsed.Add(key)
		g.c.Metrics.Refused("ImageStatus")
		return absent, nil
	}
	if v.Allowed() {
		g.hidden.Remove(key)
	}
	g.unendorsed.Remove(key)
	return raw, nil
}

// shown notes that the pre-check with a key is not hidden any more.
func (g *Gate) shown(k hidden.Key) {
	g.hidden.Remove(k)
	g.unendorsed.Remove(k)
}

// judgeAsking judges the pre-check of a pod.
func (g *Gate) judgeAsking(ctx context.Context, p tracker.Pod, r tracker.Request, pullPolicy string, began time.Time) tracker.Verdict {
	v := g.judge(ctx, "ImageStatus", p, r)
	if !g.refusals.Refused(p.UID, r.Name, v.Pair.ImageID) || !v.Allowed() {
		return v
	}
	v = overruled(v, ContainerRefused)
	g.note(r.Name, decisionlog.Decision{Call: "ImageStatus", Pod: p, Verdict: v, PullPolicy: pullPolicy, Took: time.Since(began)})
	return v
}

// judgeCandidates judges a pre-check that one of several pods has sent; it allows the pre-check if it allows each of them. It has no effect on
// them: at the creation of a container it is known which pod uses the image, and the gate makes the grant and its decision then. It logs one
// decision, which names the pod if there is only one.
func (g *Gate) judgeCandidates(ctx context.Context, who []tracker.Pod, r tracker.Request) tracker.Verdict {
	began := time.Now()
	explain := func(ctx context.Context, r tracker.Request) tracker.Verdict {
		return g.c.Tracker.Explain(ctx, r).Verdict
	}
	var d decisionlog.Decision
	for i, p := range who {
		one := g.decide(ctx, "ImageStatus", p, r, explain)
		if one.Verdict.Allowed() && g.refusals.WillRefuse(p.UID, r.Name, one.Verdict.Pair.ImageID) {
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
	if len(who) > 1 {
		d.Pod, d.PullPolicy, d.Secret, d.Verdict.Credential = tracker.Pod{}, tracker.PullUnknown, records.SecretRef{}, ""
	}
	d.Took = time.Since(began)
	g.count(r.Name, d)
	return d.Verdict
}

// waitAsIfPresent takes as long as the judgement of a present image. Otherwise a tenant that names Secrets that are slow to get could learn from
// the duration which images are present.
func (g *Gate) waitAsIfPresent(ctx context.Context, name imageref.Ref, who []tracker.Pod) {
	if g.c.Shadow {
		return
	}
	for _, p := range who {
		g.secrets(ctx, p, name)
	}
}

// answerError answers a pre-check for which the runtime returned an error, such as for an ambiguous prefix of an image ID. That error would reveal
// that such images are present.
func (g *Gate) answerError(ctx context.Context, name imageref.Ref, who []tracker.Pod, err error) ([]byte, error) {
	if g.c.Shadow || aborted(err) {
		return nil, err
	}
	began := time.Now()
	for _, p := range who {
		if d := g.c.Tracker.CheckID(p, name); d.Verdict != policy.Allow {
			g.waitAsIfPresent(ctx, name, who)
			g.c.Metrics.Verdict("ImageStatus", d)
			g.c.Metrics.Refused("ImageStatus")
			g.note(name, decisionlog.Decision{Call: "ImageStatus", Pod: p, Verdict: tracker.Verdict{Decision: d}, PullPolicy: g.precheckPolicy(ctx, p, name), Took: time.Since(began)})
			return absent, nil
		}
	}
	return nil, err
}

// image converts an image of the runtime.
func image(i *runtimeapi.Image) tracker.Image {
	if i.GetId() == "" {
		return tracker.Image{}
	}
	return tracker.NewImage(i.GetId(), slices.Concat(i.GetRepoTags(), i.GetRepoDigests())...)
}
