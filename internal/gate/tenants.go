package gate

import (
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// seeSecrets is what a tenant reads who has no access. It is the same whether or not the image is on the node, and
// whoever has proved access to it.
const seeSecrets = "this node checks pull credentials for each pod; see imagePullSecrets"

// explained adds the sentence to the error of a pull that the registry denied, and keeps its code and details. It comes
// last, because a kubelet takes the reason of a pod from the beginning. In shadow mode, and where the policy requires
// no proof of this pod, pullgate is not why the pod waits.
func (g *Gate) explained(p *pullCall, out outcome, err error) error {
	if out != pullDenied || g.c.Shadow || p.noPod || !g.c.Tracker.Verifies(p.pod, p.name) {
		return err
	}
	s := status.Convert(err).Proto()
	s.Message += "; " + seeSecrets
	return status.ErrorProto(s)
}

// maxToldImage is how many bytes of a name are in an Event: the sentence comes after it.
const maxToldImage = 512

// Reasons of Events.
const (
	pullCredentialsRequired = "PullCredentialsRequired"
	imageFenced             = "ImageFenced"
)

// tell sends an Event for an image with imagePullPolicy Never that was answered as not present, whether or not it is on
// the node: for the kubelet this is the end, and an Event for hidden images only would tell which images are present.
func (g *Gate) tell(p *precheck) {
	u := p.uses[0]
	if g.c.Event == nil || g.c.Shadow || !p.identified || !g.neverPulled(u) {
		return
	}
	image, repository := u.name.String(), u.name.Repository()
	reason := pullCredentialsRequired
	message := fmt.Sprintf("image %s: %s", image[:min(len(image), maxToldImage)], seeSecrets)
	file, _ := g.c.Tracker.Fences(u.pod, repository, u.account)
	switch {
	case file != "":
		reason, message = imageFenced, "pullgate: "+reserved(repository[:min(len(repository), maxToldImage)])
	case !g.c.Tracker.Verifies(u.pod, u.name):
		return
	}
	g.c.Event(u.pod, image, reason, message)
}

// neverPulled reports whether the kubelet sends this pre-check for imagePullPolicy Never. The source may have got the
// pod after the call began.
func (g *Gate) neverPulled(u *use) bool {
	if u.pullPolicy == tracker.PullUnknown && g.c.PodSource != nil {
		policies, _ := g.c.PodSource.PullPolicies(u.pod.UID, u.name)
		u.pullPolicy = tracker.PrecheckPolicy(policies, u.skipsAlways)
	}
	return u.pullPolicy == tracker.PullNever
}
