package gate

import (
	"context"
	"iter"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// lacksEndorsement reports whether an image has to be hidden from a pre-check, because one of the pods that may have
// sent it needs a verification that a pull can bring. v is the verdict about credentials.
func (g *Gate) lacksEndorsement(ctx context.Context, p *precheck, img tracker.Image, v tracker.Verdict) bool {
	a := p.signing()
	if a == nil {
		return false
	}
	uses := p.uses
	if all := g.c.Pods.All(); len(uses) == 1 && uses[0].pod.UID == "" && len(all) > 0 {
		// Each pod with a sandbox may have sent it, and no other pod.
		static := uses[0].pod.Static
		uses = nil
		for _, pod := range all {
			if pod.Static == static {
				uses = append(uses, g.useOfAny(p.call, pod, p.name))
			}
		}
	}
	for _, u := range uses {
		// A container that the pod has started may be restarted, unless the pod was denied another one on the image.
		denied := v.Reason == ContainerRefused || g.pods.refused(u.pod.UID, u.name, img.ID, false)
		if u.pullPolicy == tracker.PullNever || !denied && a.Chain.HasStarted(u.pod.UID, img.ID) {
			continue
		}
		d := a.Chain.Ask(ctx, admission.Named{Name: admission.SignatureValidator, Validator: a.Endorser}, admission.Subject{
			Pod: identityOf(admission.Pod{}, u.pod), Container: &admission.Container{Image: admission.Set(u.name.String())},
			Image: admissionImage(img, u.name),
		})
		if d.Answer != admission.Unverified {
			continue // what a pull cannot bring is denied when the container is created
		}
		u.judged = img
		decided := u.decision(overruled(v, AdmissionDenied))
		if len(uses) > 1 {
			decided.Pod, decided.PullPolicy, decided.Secret = tracker.Pod{}, tracker.PullUnknown, records.SecretRef{}
		}
		decided.Admission = d
		g.c.Metrics.Admission("ImageStatus", d)
		g.note(decided)
		return true
	}
	return false
}

// verifySignatures has the missing signatures of a pulled image verified, with the credential of the pull. The error is
// the answer to the pull if the pod may not use the image without them. A pull for no pod has none, nor has that of a
// pod that has started a container from the image: restarts are not judged, and new containers are denied later.
func (g *Gate) verifySignatures(ctx context.Context, p *pullCall, img tracker.Image) (admission.Decision, error) {
	a := p.signing()
	if a == nil {
		return admission.Decision{}, nil
	}
	started := a.Chain.HasStarted(p.pod.UID, img.ID)
	if started && !p.hidden && !g.pods.refused(p.pod.UID, p.name, img.ID, false) {
		return admission.Decision{}, nil // a restart
	}
	verifier := a.Endorser.PullVerifier(admission.Pull{
		Login:   p.login,
		Digests: func(context.Context) []string { return digestsOf(p.name, img) },
	})
	d := a.Chain.Ask(ctx, admission.Named{Name: admission.SignatureValidator, Validator: verifier}, admission.Subject{
		Pod: identityOf(admission.Pod{}, p.pod), Image: admission.Image{ID: img.ID, Requested: p.name},
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

// digestsOf returns the digests of a pulled image, those of the repository of the name first.
func digestsOf(name imageref.Ref, img tracker.Image) (digests []string) {
	for digest := range eachDigest(name, img) {
		if !slices.Contains(digests, digest) {
			digests = append(digests, digest)
		}
	}
	return digests
}

// ImagesInUse returns the images with these IDs that containers of pods have or mount: one for each namespace and name.
// The names are those of the pods. The image of a restored container is not known.
func (g *Gate) ImagesInUse(ctx context.Context, wanted map[string]bool) (used []admission.UsedImage, err error) {
	running, images, err := g.started(ctx)
	seen := map[string]bool{}
	for _, r := range running {
		for _, u := range r.uses {
			img, names := images[u.image], []imageref.Ref{u.name}
			if u.name.Empty() {
				names = g.usedNames(r.pod, img.Names)
			}
			for _, name := range names {
				key := joined(r.pod.Namespace, name.String(), img.ID)
				if wanted[img.ID] && !seen[key] && !r.restored {
					seen[key] = true
					used = append(used, admission.UsedImage{
						Image: admissionImage(img, name), Namespace: r.pod.Namespace, Digests: digestsOf(name, img),
					})
				}
			}
		}
	}
	return used, err
}

func eachDigest(name imageref.Ref, img tracker.Image) iter.Seq[string] {
	return func(yield func(string) bool) {
		if digest := name.Name().Digest(); digest != "" && !yield(digest) {
			return
		}
		for _, own := range []bool{true, false} {
			for _, n := range img.Names {
				digest := n.Name().Digest()
				if digest != "" && own == (n.Repository() == name.Repository()) && !yield(digest) {
					return
				}
			}
		}
	}
}

// leadToPull hides the image of a denied container from the next pre-check, so that a pull brings the endorsement.
func (g *Gate) leadToPull(c *candidate) {
	for _, image := range append([]admission.Image{c.subjectImage()}, c.mounts...) {
		if g.useOfAny(c.call, c.pod, image.Requested).pullPolicy != tracker.PullNever {
			g.pods.refuse(c.pod.UID, image.Requested, image.ID)
		}
	}
}

// endorsedLate denies a container at its start if its image lacks an endorsement. Other policies judged it before.
func (g *Gate) endorsedLate(ctx context.Context, c *candidate) error {
	a := c.signing()
	if a == nil || !c.late {
		return nil
	}
	s := admission.Subject{
		Pod: identityOf(admission.Pod{}, c.pod), Mounted: c.mounts,
		Container: &admission.Container{Name: c.reported.GetMetadata().GetName()},
	}
	if !c.substituted() {
		s.Image = admissionImage(c.image, c.name)
		if !c.name.Empty() {
			s.Container.Image = admission.Set(c.name.String())
		}
	}
	d := a.Chain.Ask(ctx, admission.Named{Name: admission.SignatureValidator, Validator: a.Endorser}, s)
	if d.Admitted() {
		return nil
	}
	g.c.Metrics.Admission(c.method, d)
	c.asked, c.admitted = true, d
	return refusal(c.pod, d, "")
}

func admissionImage(img tracker.Image, name imageref.Ref) admission.Image {
	return admission.Image{ID: img.ID, Names: img.Names, Requested: name}
}

// loginOf returns the credential of a pull as the runtime uses it: none if it is for another registry.
func loginOf(l credential.Login, name imageref.Ref) admission.Login {
	if server := l.ServerAddress; server != "" {
		if _, rest, ok := strings.Cut(server, "://"); ok {
			server = rest
		}
		host, _, _ := strings.Cut(server, "/")
		registry, _, _ := strings.Cut(name.Repository(), "/")
		if imageref.CanonicalRegistry(host) != imageref.CanonicalRegistry(registry) {
			return admission.Login{}
		}
	}
	return admission.Login{
		Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken,
	}
}
