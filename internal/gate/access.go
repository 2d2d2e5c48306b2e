package gate

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Rights by files of kind ImageAccess (docs/design/0043). The tracker judges by them; here are the two things that need
// no image on the node: a pull by a pod outside of a Fence ends here, and a pull may get a lent credential.

// A Lender has the files that the tracker judges by. It is immutable.
type Lender interface {
	// NeedsServiceAccounts reports whether a file selects pods by their service account.
	NeedsServiceAccounts() bool
	// Lend returns the credential for a pull that brings none, and the file that lends it; "" if none does. In the login
	// are user name and password, and the server address to which alone the runtime gives them.
	Lend(name imageref.Ref, namespace, account string) (file string, l credential.Login, err error)
}

// SetAccess sets the files that the tracker got before. It affects calls that begin afterwards.
func (g *Gate) SetAccess(a Lender) { g.access.Store(&a) }

// lender returns the files, nil if there are none.
//
//nolint:ireturn // as it was set
func (g *Gate) lender() Lender {
	if a := g.access.Load(); a != nil {
		return *a
	}
	return nil
}

// serviceAccount returns the name of a pod's service account, "" if it is not known or no file needs it.
func (g *Gate) serviceAccount(ctx context.Context, p tracker.Pod) string {
	if a := g.lender(); a == nil || g.c.PodSource == nil || p.UID == "" || p.Static || !a.NeedsServiceAccounts() {
		return ""
	}
	return g.c.PodSource.ServiceAccount(ctx, p.UID, p.Namespace)
}

// fencedPull refuses a pull of a pod outside of a Fence, whether the image is present or absent, and every name that
// does not parse. With mode Audit the decision on the pull has the file.
func (g *Gate) fencedPull(p *pullCall) error {
	if p.noPod {
		return nil // no pod can use what it brings
	}
	file, audited := g.c.Tracker.Fences(p.pod, p.name.Repository(), p.account)
	if file == "" {
		p.accessAudit = audited
		return nil
	}
	v := tracker.Verdict{Decision: policy.Decision{Reason: policy.Fenced}, Access: file}
	v.Pair.Repository = p.name.Repository()
	g.count(p.decision(v))
	if g.c.Shadow {
		return nil
	}
	g.c.Metrics.Refused(p.method)
	return refuse(codes.PermissionDenied, fenced, "pullgate: %s", reserved(v.Pair.Repository))
}

// fenced is the ErrorInfo.reason of a call that a Fence denies.
const fenced = "FENCED"

// reserved is the sentence for pods outside of a Fence. It names no other tenant.
func reserved(repository string) string {
	if repository == "" {
		return "the name of the image is not valid, and repositories on this node are reserved for other namespaces"
	}
	return "repository " + repository + " is reserved for other namespaces on this node; ask its operator"
}

// A loan is the lent credential of one pull.
type loan struct {
	file string // "" if nothing is lent
	auth *runtimeapi.AuthConfig
	sent tracker.Sent
}

// lend returns the loan for a pull that brings no credential, or one of the node that is for other pods. The pod's own
// credential is never replaced.
func (g *Gate) lend(ctx context.Context, p *pullCall) (l loan) {
	files := g.lender()
	if files == nil || p.noPod || !p.anonymous && !p.withheld {
		return l
	}
	file, login, err := files.Lend(p.name, p.pod.Namespace, p.account)
	if file != "" {
		if of := g.runtime(ctx).name; of != containerd {
			file, err = "", fmt.Errorf("the container runtime is %q; only containerd gives a credential to no mirror", of)
		}
	}
	if err != nil {
		g.c.Log.Error(err, "Failed to lend a credential: nothing is lent for this pull", p.keys()...)
	}
	if file == "" {
		return l
	}
	// A Secret with the same user name and password has the same ID.
	cred := credential.New(credential.Login{Username: login.Username, Password: login.Password})
	return loan{
		file: file, sent: g.c.Tracker.Sent(cred, p.pod),
		auth: &runtimeapi.AuthConfig{
			Username: login.Username, Password: login.Password, ServerAddress: login.ServerAddress,
		},
	}
}

// add replaces the credential of a call. What pullgate does not know in the request stays as it came.
func (l *loan) add(c *criproxy.Call) error {
	if l.file == "" {
		return nil
	}
	field, err := proto.Marshal(&runtimeapi.PullImageRequest{Auth: l.auth})
	request := make([]byte, 0, len(c.Request)+len(field))
	for rest := c.Request; len(rest) > 0 && err == nil; {
		number, _, n := protowire.ConsumeField(rest)
		if err = protowire.ParseError(min(n, 0)); err != nil {
			break
		}
		if number != authField {
			request = append(request, rest[:n]...)
		}
		rest = rest[n:]
	}
	if err != nil {
		return refuse(codes.Internal, "LOAN_NOT_ENCODED", "pullgate cannot add the lent credential to this pull")
	}
	c.Request, l.auth = append(request, field...), nil
	return nil
}

// authField is the number of PullImageRequest.auth.
const authField = 2

// lentProof records the access that a lent credential has proved, for it alone, and judges the pod by what is recorded.
func (g *Gate) lentProof(
	ctx context.Context, pull *tracker.Pull, p *pullCall, pulled tracker.Image,
) (tracker.Verdict, error) {
	_, err := pull.Proved(tracker.Proof{ImageID: pulled.ID, Sent: p.loan.sent})
	return g.decide(ctx, p.use, tracker.Request{Image: pulled, Sent: p.sent}, g.c.Tracker.Check).Verdict, err
}

// failed returns the error of a pull with a lent credential. The runtime's own may quote what the registry said, and
// so the credential.
func (l *loan) failed(p *pullCall, out outcome, err error) error {
	why, code, prefix := "the pull with the credential that this node lends for it failed", codes.Unknown, ""
	switch {
	case aborted(err):
		code = status.Code(err)
	case out == pullDenied:
		why = "the registry denied the credential that this node lends for it"
	case out.registryDown():
		prefix, why = "RegistryUnavailable: ", "the registry is unavailable"
	}
	return refuse(code, "LOAN_FAILED", "%spullgate: image %q: %s; ask the operator of this node", prefix,
		p.name.String(), why)
}
