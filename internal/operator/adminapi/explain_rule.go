package adminapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

type explanation struct {
	tracker.Explanation
	// Image is the requested name; Names are the names of the image.
	Image imageref.Ref
	Names []imageref.Ref
	Pod   tracker.Pod // the pod that was judged; a Pod without a UID means any new pod of its namespace
	// Secrets are the credentials for the image. CredentialsKnown reports that the pod has no others.
	Secrets             []tracker.Secret
	CredentialsKnown    bool
	PodSource, PodKnown bool   // whether a pod source is configured, and PodKnown whether it has the pod
	PullPolicy          string // how the pod pulls the image: Always, IfNotPresent, Never, mixed or unknown
	// Policies are the answers of policies at the calls that create the sandbox and the containers.
	Policies []admission.Explanation
	Settings
}

// Settings are the fields of the configuration that determine the consequences of a verdict.
type Settings struct {
	// Shadow is noPullImageSecretRecheck: a missing proof denies nothing. Policies are enforced nevertheless.
	Shadow          bool
	OutageFallback  bool // registryOutageFallback
	VerifyUntracked bool // untrackedImages: Verify
	PerNamespace    bool // runtimeCredentials: perNamespace
}

func (c explanation) who() string {
	switch {
	case c.Pod.UID == "" && c.Pod.Namespace == "":
		return "a pod"
	case c.Pod.UID == "":
		return "a new pod of namespace " + c.Pod.Namespace
	case c.Pod.Name == "":
		return "pod " + c.Pod.UID
	}
	return "pod " + c.Pod.Namespace + "/" + c.Pod.Name
}

func at(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func short(id string) string {
	const digits = 12
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(digits, len(id))]
}

func (c explanation) pair() string {
	return "--image-id " + c.Pair.ImageID + " --repository " + c.Pair.Repository
}

func named(s records.SecretRef) string {
	if s.OfNamespace() {
		return "the runtime for namespace " + s.Namespace
	}
	if account, ok := s.Account(); ok {
		return "service account " + s.Namespace + "/" + account
	}
	return "Secret " + s.Namespace + "/" + s.Name
}

func (c explanation) secretOf(id credential.ID) string {
	for _, s := range c.Secrets {
		if s.Credential == id {
			return named(s.Ref)
		}
	}
	if p, _ := c.proof(); len(p.Secrets) == 1 && p.Secrets[0].OfNamespace() {
		return named(p.Secrets[0])
	}
	return ""
}

func (c explanation) credential() string {
	what := "credential " + short(string(c.Credential))
	if s := c.secretOf(c.Credential); s != "" {
		what += " of " + s
	}
	return what
}

// proof returns the proof that the verdict depends on; rotated: by the earlier content of the credential's Secret.
func (c explanation) proof() (p records.Proof, rotated bool) {
	if c.Known.Record == nil {
		return p, false
	}
	for _, p := range c.Known.Record.Proofs {
		if p.Credential == c.Credential {
			return p, false
		}
	}
	for i, s := range c.Secrets {
		if s.Credential != c.Credential || i >= len(c.Statuses) || c.Statuses[i] != tracker.Rotated {
			continue
		}
		for _, p := range c.Known.Record.Proofs {
			if slices.Contains(p.Secrets, s.Ref) {
				return p, true
			}
		}
	}
	return p, false
}

func (c explanation) graceful() (until time.Time, lasts bool) {
	p, _ := c.proof()
	return c.Rules.Expires(p).Add(c.Rules.Grace), c.Evidence.InGrace || slices.Contains(c.Statuses, tracker.InGrace)
}

func (c explanation) valid(p records.Proof) bool {
	expires := c.Rules.Expires(p)
	return expires.IsZero() || time.Now().Before(expires)
}

func (c explanation) mode() policy.Mode { return c.Rules.Policy.Mode() }

func enumerated(items []string) string {
	const most = 5
	if len(items) > most {
		return strings.Join(items[:most], ", ") + fmt.Sprintf(" and %d more", len(items)-most)
	}
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:len(items)-1], ", ") + " and " + items[len(items)-1]
}

func count(n int, one string) string {
	if n == 1 {
		return "one " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// containerRefused is the gate's reason to hide an image from a pod that was denied a container of it.
const containerRefused policy.Reason = "container_refused"

// Rule returns the rule that decided, with its evidence.
func (c explanation) Rule() string {
	repository := c.Pair.Repository
	switch c.Reason {
	case policy.Absent:
		return fmt.Sprintf("The runtime has no image %q, so there is no verdict yet.", c.Image.String())
	case policy.ExemptStaticPod:
		return fmt.Sprintf("%s is a static pod, and exempt.staticPods allows static pods every image.", upper(c.who()))
	case policy.ExemptNamespace:
		return fmt.Sprintf("Namespace %s is in exempt.namespaces, so its pods may use every image.", c.Pod.Namespace)
	case policy.RecordUnreadable:
		return fmt.Sprintf("The stored record of %s is unreadable (%v). An unreadable record needs proof under every policy.",
			repository, c.Unreadable)
	case policy.Fenced:
		return fmt.Sprintf("The file %s of kind ImageAccess reserves %s (grant: Fence), and %s is not in its from.",
			c.Access, repository, c.who())
	case policy.Shared:
		return fmt.Sprintf("The file %s of kind ImageAccess shares %s (grant: Share) with %s: %s.", c.Access, repository,
			c.who(), c.shared())
	case policy.Lent:
		return fmt.Sprintf("The file %s of kind ImageAccess lends %s a credential for %s (grant: Lend): %s.", c.Access,
			c.who(), repository, c.shared())
	case policy.NeverVerify:
		return "The policy NeverVerify requires no proof."
	case policy.ImageIDName:
		return c.byID()
	case policy.Allowlisted:
		return fmt.Sprintf("%s is on preloadedImagesVerificationAllowlist, and the policy %s requires no proof for images "+
			"on it.", repository, c.mode())
	case policy.Preloaded:
		return c.preloaded()
	case policy.Open:
		return c.open()
	case policy.Granted:
		return c.granted()
	case policy.Proved, policy.ProvedInGrace:
		return c.proved()
	case policy.ProofExpired:
		return c.expired()
	case policy.NodeCredentials:
		return fmt.Sprintf("%s. %s, and no credential of %s has proved access.", c.byNode(),
			upper(c.nodeNamespaces()), c.who())
	case policy.NotProved:
		return c.notProved()
	case policy.Pulling:
		return c.pulling()
	case policy.Untracked:
		return fmt.Sprintf("No pull of %s went through pullgated, and the image is not preloaded: %s.", repository,
			c.whyUnmarked())
	case containerRefused:
		return fmt.Sprintf("%s was denied a container of the image. Its next pre-check is answered as if the image were "+
			"absent, so the kubelet pulls, and the pull proves access again.", upper(c.who()))
	}
	return "The rule is " + string(c.Reason) + "."
}

// shared says on which proof of others a right by a file depends.
func (c explanation) shared() string {
	r := c.Known.Record
	if r == nil || r.Open {
		return "the image is open"
	}
	valid := 0
	for _, p := range r.Proofs {
		if expires := c.Rules.Expires(p); expires.IsZero() || time.Now().Before(expires.Add(c.Rules.Grace)) {
			valid++
		}
	}
	return count(valid, "credential") + " proved access to it, and the right lasts while one proof is valid"
}

func upper(s string) string { return strings.ToUpper(s[:min(1, len(s))]) + s[min(1, len(s)):] }

func (c explanation) byID() string {
	const proof = "access is proved for a repository"
	name := c.Image.String()
	switch {
	case !c.Image.Parsed() && strings.Trim(strings.TrimPrefix(name, "sha256:"), "0123456789abcdef") != "":
		return fmt.Sprintf("%q is not a valid image name: %s, and this name has none.", name, proof)
	case c.Image.Parsed() && !c.Image.Name().IsImageID():
		return fmt.Sprintf("The runtime finds an image as %q, but that is not one of its names: %s, and a pull cannot "+
			"prove a name that the image does not have.", name, proof)
	}
	return fmt.Sprintf("%q is an image ID and not a name: %s, and an ID has none.", name, proof)
}

func (c explanation) preloaded() string {
	m := c.Known.Mark
	if m == nil {
		return fmt.Sprintf("The image is on the node, and no pull of %s went through pullgated, so it is marked preloaded "+
			"when a pod requests it. The policy %s requires no proof for preloaded images.", c.Pair.Repository, c.mode())
	}
	by := map[string]string{
		"operator":    "an operator accepted it",
		"first start": "it was on the node when pullgated first started",
		"untracked":   "it was on the node before a pull of it went through pullgated",
	}[m.Origin]
	if by == "" {
		by = "by " + m.Origin
	}
	return fmt.Sprintf("%s is marked preloaded since %s (%s), and the policy %s requires no proof for preloaded images.",
		c.Pair.Repository, at(m.Set), by, c.mode())
}

func (c explanation) open() string {
	since := ""
	if r := c.Known.Record; r != nil && c.Rules.NodeNamespaces != nil && !r.ForEveryPod() {
		return fmt.Sprintf("%s. %s.", c.byNode(), upper(c.nodeNamespaces()))
	}
	if r := c.Known.Record; r != nil && !r.Opened.IsZero() {
		since = " since " + at(r.Opened)
	}
	return fmt.Sprintf("%s is open to every pod of this node%s: it was pulled without a credential, or with a "+
		"credential of the node.", c.Pair.Repository, since)
}

// byNode says how a record was opened that no pull without a credential is known to have opened.
func (c explanation) byNode() string {
	if r := c.Known.Record; r == nil || r.ByNode.IsZero() {
		return fmt.Sprintf("%s was opened by a version of pullgated that did not note how: it may have been by a credential "+
			"of the node", c.Pair.Repository)
	}
	return fmt.Sprintf("%s was opened by a pull with a credential of the node at %s", c.Pair.Repository,
		at(c.Known.Record.ByNode))
}

func (c explanation) nodeNamespaces() string {
	if len(c.Rules.NodeNamespaces) == 0 {
		return "nodeCredentials.namespaces gives that to no namespace"
	}
	return "nodeCredentials.namespaces gives that to the pods of " + enumerated(c.Rules.NodeNamespaces)
}

func (c explanation) granted() string {
	by := "what the grant depends on is unknown"
	switch g := c.Grant; {
	case g == nil:
	case g.Reason == policy.Granted:
		by = "the grant was restored from a container that ran when pullgated started"
	case g.Reason == policy.Proved, g.Reason == policy.ProvedInGrace:
		by = "the grant depends on credential " + short(string(g.Credential)) + ", which proved access"
	default:
		by = "the reason was " + string(g.Reason)
	}
	return fmt.Sprintf("%s was allowed %s before, and its grant lasts until it ends; %s.", upper(c.who()),
		c.Pair.Repository, by)
}

func (c explanation) proved() string {
	p, rotated := c.proof()
	confirmed := "a registry last confirmed it at " + at(p.LastProved)
	if rotated {
		return fmt.Sprintf("%s proved access to %s with its earlier content (%s). Its present content, credential %s, "+
			"replaces that without a request to the registry.", upper(c.secretOf(c.Credential)), c.Pair.Repository, confirmed,
			short(string(c.Credential)))
	}
	text := fmt.Sprintf("%s proved access to %s; %s", upper(c.credential()), c.Pair.Repository, confirmed)
	if len(p.RotatedFrom) > 0 {
		text = fmt.Sprintf("%s is carried over and not yet confirmed by the registry: the Secret proved access to %s with "+
			"an earlier content; %s", upper(c.credential()), c.Pair.Repository, confirmed)
	}
	expires := c.Rules.Expires(p)
	switch until, _ := c.graceful(); {
	case c.InGrace:
		return fmt.Sprintf("%s. The proof expired at %s, but with imagePullPolicy Never no registry is asked, so it is "+
			"valid until %s.", text, at(expires), at(until))
	case expires.IsZero():
		return text + ", and the proof does not expire."
	}
	return fmt.Sprintf("%s, and the proof is valid until %s.", text, at(expires))
}

func (c explanation) expired() string {
	p, _ := c.proof()
	text := fmt.Sprintf("%s proved access to %s; a registry last confirmed it at %s, and by credentialValidity the "+
		"proof expired at %s", upper(c.credential()), c.Pair.Repository, at(p.LastProved), at(c.Rules.Expires(p)))
	if !p.Denied.IsZero() && p.Denied.After(p.LastProved) {
		return text + "; a registry denied the credential at " + at(p.Denied) + "."
	}
	return text + "."
}

func (c explanation) notProved() string {
	r := c.Known.Record
	repository := c.Pair.Repository
	switch {
	case r == nil && c.mode() == policy.ModeNeverVerifyPreloadedImages: // the image was untracked until just now
		return "Nothing allows the image."
	case r == nil:
		return fmt.Sprintf("%s is marked preloaded, but the policy %s requires proof for preloaded images too, and no "+
			"credential has proved access.", repository, c.mode())
	case len(r.Proofs) == 0 && !r.Revoked.IsZero():
		return fmt.Sprintf("Access to %s was revoked, or its preloaded mark was removed, at %s, and no credential has "+
			"proved access since.", repository, at(r.Revoked))
	case len(r.Proofs) == 0:
		return fmt.Sprintf("%s came with a pull whose answer was lost, and no credential has proved access since.",
			repository)
	}
	return fmt.Sprintf("%s proved access to %s on this node, and %s.", upper(count(len(r.Proofs), "credential")),
		repository, c.ownCredentials())
}

func (c explanation) ownCredentials() string {
	names := c.secretNames()
	switch {
	case c.Pod.UID == "":
		return "the credentials of " + c.who() + " are unknown"
	case !c.PodSource:
		return "the credentials of " + c.who() + " are unknown before it pulls, because no pod source is configured"
	case !c.PodKnown:
		return "the pod source does not know " + c.who()
	case len(names) == 0 && c.CredentialsKnown:
		return c.who() + " has no imagePullSecrets for it"
	case len(names) == 0:
		return "the Secrets of " + c.who() + " could not be read"
	case len(names) > 1:
		return "those of " + enumerated(names) + " are not among them"
	}
	return "that of " + names[0] + " is not among them"
}

func (c explanation) secretNames() (names []string) {
	for _, s := range c.Secrets {
		names = append(names, named(s.Ref))
	}
	return names
}

func (c explanation) pulling() string {
	const unproved = "no credential has proved access yet"
	for _, in := range c.Known.Intents {
		if !in.Ended.IsZero() {
			return fmt.Sprintf("A pull of %s that began at %s ended at %s without an answer, so it is unknown whether it "+
				"brought this image; %s.", in.Name, at(in.Begun), at(in.Ended), unproved)
		}
	}
	for _, in := range c.Known.Intents {
		return fmt.Sprintf("A pull of %s is in progress since %s; %s.", in.Name, at(in.Begun), unproved)
	}
	return fmt.Sprintf("A pull of %s is in progress; %s.", c.Pair.Repository, unproved)
}

func (c explanation) whyUnmarked() string {
	const tenant = ", and a tenant may have added this name"
	switch {
	case c.Distrust != nil:
		return fmt.Sprintf("the store is in distrust since %s (%s)", at(c.Distrust.Since), c.Distrust.Reason)
	case len(c.Known.RecordedAs) > 0:
		return "the same image needs proof as " + enumerated(c.Known.RecordedAs) + tenant
	case len(c.Known.MarkedAs) > 0:
		return "the same image is preloaded as " + enumerated(c.Known.MarkedAs) + tenant
	case c.VerifyUntracked:
		return "untrackedImages is Verify"
	case c.Bypassed:
		return "the image arrived while the kubelet may have pulled without pullgated"
	}
	return "an image is being removed, a container is being created, or another name of the image is being pulled; the " +
		"next request is judged again"
}
