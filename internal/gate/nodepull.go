package gate

import (
	"cmp"
	"context"

	"google.golang.org/grpc/codes"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// withhold takes a credential of the node that is for other pods from a pull: the pod has presented nothing, and the
// registry does not get it. The kubelet adds such credentials to the pulls of all pods.
func (g *Gate) withhold(ctx context.Context, p *pullCall) {
	if p.noPod || p.anonymous || !g.c.Tracker.Withholds(ctx, p.pod, p.name, p.sent, func() []tracker.Secret {
		return g.secrets(ctx, p.use)
	}) {
		return
	}
	if g.c.Shadow {
		g.count(p.decision(nodeCredential(p)))
		return
	}
	// A kubelet must not record that the credential is good, so no image on the node answers the pull.
	p.withheld, p.sent, p.revalidation = true, tracker.Sent{}, false
	p.login = admission.Login{}
}

func nodeCredential(p *pullCall) tracker.Verdict {
	v := tracker.Verdict{Decision: policy.Decision{Reason: policy.NodeCredentials}}
	v.Pair.Repository = p.name.Repository()
	return v
}

// refuseNodeCredential refuses a pull that the registry would have to judge by a withheld credential, whether the image
// is present or absent.
func (g *Gate) refuseNodeCredential(p *pullCall) error {
	v := nodeCredential(p)
	g.count(p.decision(v))
	g.c.Metrics.Refused(p.method)
	return refuse(codes.PermissionDenied, "NODE_CREDENTIALS", "pullgate: repository %s: the registry credentials of this "+
		"node are for other namespaces; set imagePullSecrets, or ask the operator of this node",
		cmp.Or(v.Pair.Repository, "of an invalid name"))
}
