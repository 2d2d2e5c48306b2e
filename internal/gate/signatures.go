package gate

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/outcome"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// signing returns the admission if there are policies about signatures, else nil.
func (g *Gate) signing() *Admission {
	if a := g.admitting.Load(); a != nil && a.Endorser != nil {
		return a
	}
	return nil
}

// lacksEndorsement reports whether an image has to be hidden from a pre-check, because the image needs verification for one of the pods that may
// have sent it, and a pull can bring that. v is the verdict about the credentials of the pre-check.
func (g *Gate) lacksEndorsement(ctx context.Context, who []tracker.Pod, r tracker.Request, v tracker.Verdict, began time.Time) bool {
	a := g.signing()
	if a == nil {
		return false
	}
	if all := g.c.Pods.All(); len(who) == 1 && who[0].UID == "" && len(all) > 0 {
		// Each pod with a sandbox may have sent it, and no other pod.
		static := who[0].Static
		who = slices.DeleteFunc(slices.Clone(all), func(p tracker.Pod) bool { return p.Static != static })
	}
	for _, p := range who {
		pullPolicy := g.precheckPolicy(ctx, p, r.Name)
		// A container that the pod has started may be restarted, unless the pod was denied another one on the image.
		denied := v.Reason == ContainerRefused || g.refusals.WillRefuse(p.UID, r.Name, r.Image.ID)
		if pullPolicy == tracker.PullNever || !denied && a.Chain.HasStarted(p.UID, r.Image.ID) {
			continue
		}
		d := a.Chain.Ask(ctx, admission.Named{Name: admission.SignatureValidator, Validator: a.Endorser}, admission.Subject{
			Pod: identityOf(admission.Pod{}, p), Container: &admission.Container{Image: admission.Set(r.Name.String())},
			Image: admission.Image{ID: r.Image.ID, Names: r.Image.Names, Requested: r.Name},
		})
		if d.Answer != admission.Unverified {
			continue // what a pull cannot bring is denied when the container is created
		}
		if len(who) > 1 {
			p, pullPolicy = tracker.Pod{}, tracker.PullUnknown
		}
		g.c.Metrics.Admission("ImageStatus", d)
		g.note(r.Name, decisionlog.Decision{
			Call: "ImageStatus", Pod: p, Verdict: overruled(v, AdmissionDenied), PullPolicy: pullPolicy, Took: time.Since(began), Admission: d,
		})
		return true
	}
	return false
}

// verifySignatures asks pullgate-policyd to verify the signatures of the image of a pull that have no endorsement, with the credential of the pull.
// The error is the answer to the pull if the pod may not use the image without them. A pull for no pod has none. Nor has that of a pod that has
// started a container from the image: its restarts are not judged, and another container is denied when it is created.
func (g *Gate) verifySignatures(ctx context.Context, p *pullCall, imageID string) (admission.Decision, error) {
	a := g.signing()
	if a == nil {
		return admission.Decision{}, nil
	}
	started := a.Chain.HasStarted(p.pod.UID, imageID)
	if started && !p.hidden && !g.refusals.WillRefuse(p.pod.UID, p.name, imageID) {
		return admission.Decision{}, nil // a restart
	}
	verifier := a.Endorser.PullVerifier(admission.Pull{
		Login:   p.login,
		Digests: func(ctx context.Context) []string { return g.digestsOf(ctx, p, imageID) },
	})
	d := a.Chain.Ask(ctx, admission.Named{Name: admission.SignatureValidator, Validator: verifier}, admission.Subject{
		Pod: identityOf(admission.Pod{}, p.pod), Image: admission.Image{ID: imageID, Requested: p.name},
	})
	if d.Exemption != "" {
		return d, nil
	}
	g.c.Metrics.Admission("PullImage", d)
	if d.Admitted() || p.noPod || started {
		return d, nil
	}
	// The kubelet gives the pod the reason with which the text begins; with code Unknown it shows only the text.
	begins := "RegistryUnavailable: "
	if d.Answer == admission.Deny {
		begins = "SignatureValidationFailed: "
	}
	reason, text := d.Refusal()
	return d, criproxy.Refuse(codes.Unknown, string(reason), begins+text)
}

// digestsOf returns the digests that the runtime has for an image that was pulled: those of the repository of the pull come first.
func (g *Gate) digestsOf(ctx context.Context, p *pullCall, imageID string) (digests []string) {
	img, err := g.c.Runtime.Image(ctx, imageID)
	if err != nil {
		g.c.Log.Info("Digests of an image not read, its signatures are looked for by its name", "image", p.name.String(), "imageID", imageID, "err", err)
	}
	names := append([]imageref.Ref{p.name}, img.Names...)
	for _, own := range []bool{true, false} {
		for _, n := range names {
			digest := n.Name().Digest()
			if digest != "" && own == (n.Repository() == p.name.Repository()) && !slices.Contains(digests, digest) {
				digests = append(digests, digest)
			}
		}
	}
	return digests
}

// noteUnverified notes a pull that was not answered with the image on the node, because the image lacks an endorsement.
func (g *Gate) noteUnverified(p *pullCall, d admission.Decision) {
	out := outcome.Unavailable
	if d.Answer == admission.Deny {
		out = outcome.Denied
	}
	v := overruled(tracker.Verdict{}, AdmissionDenied)
	v.Pair.ImageID = p.present.ID
	g.pullEnded(p, nil, v, out, d)
}

// leadToPull hides the image of a denied container from the next pre-check, so that a pull brings the endorsement. With imagePullPolicy Never
// there is none.
func (g *Gate) leadToPull(ctx context.Context, c *candidate) {
	for _, image := range append([]admission.Image{c.image}, c.mounts...) {
		if g.policyFor(ctx, c.call, c.who, image.Requested) != tracker.PullNever {
			g.refusals.Refuse(c.who.UID, image.Requested, image.ID)
		}
	}
}

// lateEndorsed returns the denial of a container without the endorsement of the image that it has. Other policies judged the container when it
// was created; this image may have been read back only now.
func (g *Gate) lateEndorsed(ctx context.Context, callName string, who tracker.Pod, c *runtimeapi.Container, on tracker.Image, restored bool, j judgement) error {
	a := g.signing()
	if a == nil {
		return nil
	}
	s := admission.Subject{
		Pod: identityOf(admission.Pod{}, who), Container: &admission.Container{Name: c.GetMetadata().GetName()}, Mounted: j.mounted,
	}
	if !restored && (j.image.ID == "" || j.image.ID == on.ID) {
		s.Image = admissionImage(on, j.name)
		if !j.name.Empty() {
			s.Container.Image = admission.Set(j.name.String())
		}
	}
	d := a.Chain.Ask(ctx, admission.Named{Name: admission.SignatureValidator, Validator: a.Endorser}, s)
	if d.Admitted() {
		return nil
	}
	g.c.Metrics.Admission(callName, d)
	v := overruled(tracker.Verdict{}, AdmissionDenied)
	v.Pair.ImageID = on.ID
	g.note(j.name, decisionlog.Decision{Call: callName, Pod: who, Verdict: v, PullPolicy: tracker.PullUnknown, Container: s.Container.Name, Admission: d})
	return refusal(who, d, "")
}

// admissionImage returns an image that a pod uses under a name, which is empty if the call does not have it.
func admissionImage(img tracker.Image, name imageref.Ref) admission.Image {
	return admission.Image{ID: img.ID, Names: img.Names, Requested: name}
}

// loginOf returns the credential of a pull as the runtime uses it: none if it is for another registry.
func loginOf(a *runtimeapi.AuthConfig, name imageref.Ref) admission.Login {
	if server := a.GetServerAddress(); server != "" {
		if _, rest, ok := strings.Cut(server, "://"); ok {
			server = rest
		}
		host, _, _ := strings.Cut(server, "/")
		registry, _, _ := strings.Cut(name.Repository(), "/")
		if imageref.CanonicalRegistry(host) != imageref.CanonicalRegistry(registry) {
			return admission.Login{}
		}
	}
	c := admission.Login{Username: a.GetUsername(), Password: a.GetPassword(), IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken()}
	if user, password, ok := credential.DecodeAuth(a.GetAuth()); ok && c.Username == "" && c.Password == "" {
		c.Username, c.Password = user, password
	}
	return c
}
