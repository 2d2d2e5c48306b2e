package gate

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A call is one judged call. It holds what is the same for everything that is judged in it.
type call struct {
	method      string // of the CRI, without its service
	began       time.Time
	skipsAlways bool       // the kubelet sends no pre-check for imagePullPolicy Always
	policies    *Admission // nil if there are none

	sent     map[string]tracker.Sent // without a credential, by the namespace of the pod
	accounts map[string]string       // service accounts, by the UID of the pod
}

func (g *Gate) newCall(ctx context.Context, method string) *call {
	return &call{
		method: method, began: time.Now(), skipsAlways: g.c.AlwaysPrecheck.Skips(ctx), policies: g.admitting.Load(),
		sent: map[string]tracker.Sent{}, accounts: map[string]string{},
	}
}

func (u *use) keys() []any {
	return []any{"image", u.name.String(), "pod", klog.KRef(u.pod.Namespace, u.pod.Name)}
}

func (c *call) signing() *Admission {
	if c.policies != nil && c.policies.Endorser != nil {
		return c.policies
	}
	return nil
}

type use struct {
	*call

	pod        tracker.Pod
	name       imageref.Ref // the pod's name for the image; empty if the call does not have it
	pullPolicy string       // of the uses for which the kubelet sends the call
	account    string       // the service account, "" if it is not known or not needed
	judged     tracker.Image

	fetched bool
	known   []tracker.Secret // set if fetched
}

// use returns a use with the pod's service account, for which it may wait once in a call.
func (g *Gate) use(ctx context.Context, c *call, p tracker.Pod, name imageref.Ref) *use {
	u := g.useOfAny(c, p, name)
	account, known := c.accounts[p.UID]
	if !known {
		account = g.serviceAccount(ctx, p)
		c.accounts[p.UID] = account
	}
	u.account = account
	return u
}

// useOfAny returns a use whose image is not judged by files, at once.
func (g *Gate) useOfAny(c *call, p tracker.Pod, name imageref.Ref) *use {
	u := &use{call: c, pod: p, name: name, pullPolicy: tracker.PullUnknown}
	if g.c.PodSource == nil || p.UID == "" {
		return u
	}
	policies, _ := g.c.PodSource.PullPolicies(p.UID, name)
	switch c.method {
	case "ImageStatus":
		u.pullPolicy = tracker.PrecheckPolicy(policies, c.skipsAlways)
	case "PullImage":
		u.pullPolicy = tracker.PullPolicyOf(policies, tracker.PullAlways, tracker.PullIfNotPresent)
	default:
		u.pullPolicy = tracker.PullPolicyOf(policies, tracker.PullAlways, tracker.PullIfNotPresent, tracker.PullNever)
	}
	return u
}

func (g *Gate) secrets(ctx context.Context, u *use) []tracker.Secret {
	if u.fetched {
		return u.known
	}
	u.fetched = true
	if g.c.PodSource == nil || u.pod.UID == "" || u.pod.Static || u.name.Empty() {
		return nil
	}
	u.known, _ = g.c.PodSource.Secrets(ctx, u.pod.UID, u.name)
	considered := tracker.Considered(u.known)
	if len(considered) == len(u.known) {
		return u.known
	}
	u.known = considered
	g.c.Metrics.CredentialsIgnored()
	if g.pods.once(u.pod.UID, "credentials", u.name.String()) {
		g.c.Log.Info("Pod has too many credentials for an image, ignoring the rest: "+
			"remove entries for its registry from the pod's pull secrets",
			append(u.keys(), "considered", credential.MaxOffers)...)
	}
	return u.known
}

// bind puts the service account of the pod in the place of a credential that a credential provider gave out for it: so
// a rotated token is no other credential. A tenant can present any credential, so it must be the pod's account; without
// a pod source only its namespace is known, and the credential must be of one account there.
func (g *Gate) bind(ctx context.Context, p *pullCall) {
	accounts := g.c.Tracker.Bound(ctx, p.sent, p.pod, p.name.Repository())
	if len(accounts) == 0 {
		return
	}
	if g.c.PodSource != nil {
		held := g.secrets(ctx, p.use)
		accounts = slices.DeleteFunc(accounts, func(a tracker.Secret) bool { return !slices.Contains(held, a) })
	}
	if len(accounts) != 1 {
		return
	}
	if p.sent = tracker.SentBy(accounts[0]); g.c.PodSource == nil {
		p.fetched, p.known = true, accounts
	}
}

// decide judges a use by a check of the tracker; it neither counts nor notes the decision. A request without
// credentials uses those of the pod's Secrets if nothing else allows it. They are fetched before every refusal, so that
// its duration does not reveal the reason.
func (g *Gate) decide(
	ctx context.Context, u *use, r tracker.Request, check func(context.Context, tracker.Request) tracker.Verdict,
) decisionlog.Decision {
	began := time.Now()
	r.Pod, r.Name, r.ServiceAccount, u.judged = u.pod, u.name, u.account, r.Image
	presented := r.Sent != (tracker.Sent{})
	if !presented {
		if _, known := u.sent[u.pod.Namespace]; !known {
			u.sent[u.pod.Namespace] = g.c.Tracker.Sent(credential.Credential{}, u.pod)
		}
		r.Sent = u.sent[u.pod.Namespace]
	}
	r.Unasked = r.Unasked || u.pullPolicy == tracker.PullNever // the registry will not be asked
	v := check(ctx, r)
	if !v.Allowed() && v.Reason != policy.Absent && !presented {
		r.Secrets = g.secrets(ctx, u)
		if len(r.Secrets) > 0 && (v.Reason == policy.NotProved || v.Reason == policy.NodeCredentials) {
			v = check(ctx, r)
		}
	}
	d := u.decision(v)
	d.Took = time.Since(began)
	return d
}

func (g *Gate) judge(ctx context.Context, u *use, r tracker.Request) tracker.Verdict {
	d := g.decide(ctx, u, r, g.c.Tracker.Check)
	if d.Verdict.Reason != policy.Absent {
		g.count(d)
	}
	return d.Verdict
}

func (g *Gate) explain(ctx context.Context, r tracker.Request) tracker.Verdict {
	return g.c.Tracker.Explain(ctx, r).Verdict
}

// digestOf returns the likeliest digest of the judged image, if that has an ID.
func (u *use) digestOf(imageID string) string {
	if imageID != "" && imageID == u.judged.ID {
		for digest := range eachDigest(u.name, u.judged) {
			return digest
		}
	}
	return ""
}

func (u *use) decision(v tracker.Verdict) decisionlog.Decision {
	d := decisionlog.Decision{
		Call: u.method, Pod: u.pod, Image: u.name.String(), Repository: u.name.Repository(),
		Verdict: v, PullPolicy: u.pullPolicy, Took: time.Since(u.began), Digest: u.digestOf(v.Pair.ImageID),
	}
	d.PullSecret = !v.Allowed() && len(u.known) > 0
	holds := func(s tracker.Secret) bool { return v.Credential != "" && s.Credential == v.Credential }
	if i := slices.IndexFunc(u.known, holds); i >= 0 {
		d.Secret = u.known[i].Ref
	}
	return d
}

// AlwaysPrecheck says whether the kubelet sends a pre-check for imagePullPolicy Always, as it does up to 1.31. If so, a
// PullImage after a hidden pre-check may have to reach the registry. Only the version of gRPC shows a kubelet's age.
type AlwaysPrecheck string

// The values of kubeletSkipsAlwaysPrecheck. The zero value is AlwaysAuto, too.
const (
	// AlwaysAuto judges each call by its user agent.
	AlwaysAuto    AlwaysPrecheck = "auto"
	AlwaysSkipped AlwaysPrecheck = "true"  // set for a kubelet from 1.32 on
	AlwaysSent    AlwaysPrecheck = "false" // set for a kubelet up to 1.31
)

// firstSkipping is the minor version of grpc-go in kubelet 1.33; 1.28 to 1.32 have up to 1.65. Kubelet 1.32 skips the
// pre-check too, but is treated like an older one, which costs a manifest request and opens nothing.
const firstSkipping = 68

// Skips reports whether a PullImage after a hidden pre-check certainly proves access, and is not an Always.
func (a AlwaysPrecheck) Skips(ctx context.Context) bool {
	switch a {
	case AlwaysSkipped:
		return true
	case AlwaysSent:
		return false
	case AlwaysAuto:
	}
	for _, agent := range metadata.ValueFromIncomingContext(ctx, "user-agent") {
		if _, version, ok := strings.Cut(" "+agent, " grpc-go/1."); ok {
			minor, _, _ := strings.Cut(version, ".")
			n, err := strconv.Atoi(minor)
			return err == nil && n >= firstSkipping
		}
	}
	return false
}
