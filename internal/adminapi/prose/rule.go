package prose

import (
	"fmt"
	"strings"

	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// containerRefused is the reason by which the gate hides an image from a pod that was refused a container on it.
const containerRefused policy.Reason = "container_refused"

// Rule tells the rule that the verdict rests on, with its evidence.
func (c Case) Rule() string {
	repository := c.Pair.Repository
	switch c.Reason {
	case policy.Absent:
		return fmt.Sprintf("The runtime has nothing under %q, so there is nothing to judge yet.", c.Image)
	case policy.ExemptStaticPod:
		return fmt.Sprintf("%s is a static pod, and exempt.staticPods lets these use every image.", upper(c.who()))
	case policy.ExemptNamespace:
		return fmt.Sprintf("Namespace %s is listed in exempt.namespaces, so its pods may use every image.", c.Pod.Namespace)
	case policy.RecordUnreadable:
		return fmt.Sprintf("What the store holds about %s cannot be read (%v), and what cannot be read needs proof under every policy.", repository, c.Unreadable)
	case policy.NeverVerify:
		return "The policy NeverVerify asks no pod for proof."
	case policy.ImageIDName:
		return c.byID()
	case policy.Allowlisted:
		return fmt.Sprintf("%s is on preloadedImagesVerificationAllowlist, and the policy %s asks no proof for what is there.", repository, c.mode())
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
	case policy.NotProved:
		return c.notProved()
	case policy.Pulling:
		return c.pulling()
	case policy.Untracked:
		return fmt.Sprintf("Nobody has pulled %s through pullgate, and the image is not taken for preloaded: %s.", repository, c.whyUnmarked())
	case containerRefused:
		return fmt.Sprintf("%s was refused a container on the image, so its next pre-check is answered as if the image were absent: the kubelet pulls, and the pull proves access again.", upper(c.who()))
	default:
		return "By the rule " + string(c.Reason) + "."
	}
}

func upper(s string) string { return strings.ToUpper(s[:min(1, len(s))]) + s[min(1, len(s)):] }

func (c Case) byID() string {
	n, err := imageref.Parse(c.Image)
	switch {
	case err != nil && strings.Trim(strings.TrimPrefix(c.Image, "sha256:"), "0123456789abcdef") != "":
		return fmt.Sprintf("%q is not a name that an image can have in a registry: access is proved for a repository, and this is in none.", c.Image)
	case err == nil && !n.IsImageID():
		return fmt.Sprintf("The runtime finds an image under %q, but that is not one of its names: access is proved for a repository, and nobody can prove it for a name that the image does not have.", c.Image)
	}
	return fmt.Sprintf("%q is an image ID and not a name: access is proved for a repository, and an ID is in none.", c.Image)
}

func (c Case) preloaded() string {
	m := c.Known.Mark
	if m == nil {
		return fmt.Sprintf("The image is on the node and nobody has pulled %s through pullgate, so it is taken for preloaded as soon as a pod asks for it, and the policy %s asks no proof for that.", c.Pair.Repository, c.mode())
	}
	by := map[string]string{
		"operator":    "an operator accepted it",
		"first start": "it was on the node when pullgated first started",
		"untracked":   "it was on the node before anybody pulled it through pullgate",
	}[m.Origin]
	if by == "" {
		by = "by " + m.Origin
	}
	return fmt.Sprintf("%s is marked preloaded since %s (%s), and the policy %s asks no proof for that.", c.Pair.Repository, at(m.Set), by, c.mode())
}

func (c Case) open() string {
	since := ""
	if r := c.Known.Record; r != nil && !r.Opened.IsZero() {
		since = " since " + at(r.Opened)
	}
	return fmt.Sprintf("%s is open to every pod of this node%s: it was pulled without a credential, or with one that the node itself offers.", c.Pair.Repository, since)
}

// rests says what the pod's grant rests on.
func (c Case) rests() string {
	if c.Grant == nil {
		return "what it rests on is not known"
	}
	switch c.Grant.Reason {
	case policy.Granted:
		return "it was restored from a container that ran when pullgated started"
	case policy.Proved, policy.ProvedInGrace:
		return "it rests on credential " + short(string(c.Grant.Credential)) + ", which proved access then"
	default:
		return "it was let in by the rule " + string(c.Grant.Reason)
	}
}

func (c Case) granted() string {
	return fmt.Sprintf("%s was let in before and keeps %s until it ends; %s.", upper(c.who()), c.Pair.Repository, c.rests())
}

func (c Case) proved() string {
	p, rotated := c.proof()
	confirmed := "a registry last confirmed it at " + at(p.LastProved)
	if rotated {
		s := c.secretOf(c.Credential)
		return fmt.Sprintf("%s proved access to %s with another content (%s); what it holds now, %s, takes that one's place without the registry.", upper(s), c.Pair.Repository, confirmed, short(string(c.Credential)))
	}
	text := fmt.Sprintf("%s proved access to %s; %s", upper(c.credential()), c.Pair.Repository, confirmed)
	expires := c.Rules.Expires(p)
	switch until, _ := c.graceful(); {
	case c.InGrace:
		return fmt.Sprintf("%s. That expired at %s, but nobody asks a registry for imagePullPolicy Never, so it stands until %s.", text, at(expires), at(until))
	case expires.IsZero():
		return text + ", and it does not expire."
	default:
		return fmt.Sprintf("%s, and it is valid until %s.", text, at(expires))
	}
}

func (c Case) expired() string {
	p, _ := c.proof()
	text := fmt.Sprintf("%s proved access to %s, but a registry last confirmed it at %s, and by credentialValidity it had to be renewed at %s", upper(c.credential()), c.Pair.Repository, at(p.LastProved), at(c.Rules.Expires(p)))
	if !p.Denied.IsZero() && p.Denied.After(p.LastProved) {
		return text + "; a registry refused it at " + at(p.Denied) + "."
	}
	return text + "."
}

func (c Case) notProved() string {
	r := c.Known.Record
	switch {
	case r == nil && c.mode() == policy.ModeNeverVerifyPreloadedImages: // untracked a moment ago
		return "Nothing lets it in."
	case r == nil:
		return fmt.Sprintf("%s is marked preloaded, but the policy %s asks proof for such images too, and nobody has proved access to it.", c.Pair.Repository, c.mode())
	case len(r.Proofs) == 0 && !r.Revoked.IsZero():
		return fmt.Sprintf("What let pods use %s was taken back at %s, by a revocation or because its preloaded mark was forgotten, and nobody has proved access since.", c.Pair.Repository, at(r.Revoked))
	case len(r.Proofs) == 0:
		return fmt.Sprintf("%s is known to be nobody's: it came with a pull whose answer was lost, and nobody has proved access to it since.", c.Pair.Repository)
	}
	return fmt.Sprintf("%s proved access to %s on this node, and %s.", upper(count(len(r.Proofs), "credential")), c.Pair.Repository, c.ownCredentials())
}

// ownCredentials says why those of the pod are not among the proved ones.
func (c Case) ownCredentials() string {
	switch {
	case c.Pod.UID == "":
		return "what credentials " + c.who() + " has is not known"
	case !c.PodSource:
		return "which credentials " + c.who() + " has is not known before it pulls, since there is no pod source"
	case !c.PodKnown:
		return "the pod source does not know " + c.who()
	case len(c.Secrets) == 0 && c.CredentialsKnown:
		return c.who() + " has no imagePullSecrets for it"
	case len(c.Secrets) == 0:
		return "the Secrets of " + c.who() + " could not be read"
	case len(c.Secrets) > 1:
		return "those of " + list(c.secretNames()) + " are not among them"
	default:
		return "that of " + list(c.secretNames()) + " is not among them"
	}
}

func (c Case) secretNames() (names []string) {
	for _, s := range c.Secrets {
		names = append(names, named(s.Ref))
	}
	return names
}

func (c Case) pulling() string {
	for _, in := range c.Known.OfIntents {
		if !in.Ended.IsZero() {
			return fmt.Sprintf("A pull of %s that began at %s ended at %s without an answer, so nobody knows whether it brought this image; nobody has proved access to it.", in.Name, at(in.Begun), at(in.Ended))
		}
	}
	for _, in := range c.Known.OfIntents {
		return fmt.Sprintf("%s is being pulled since %s, and nobody has proved access to it yet.", in.Name, at(in.Begun))
	}
	return fmt.Sprintf("%s is being pulled, and nobody has proved access to it yet.", c.Pair.Repository)
}

// whyUnmarked says why a scan does not take an untracked image for preloaded.
func (c Case) whyUnmarked() string {
	switch {
	case c.Distrust != nil:
		return fmt.Sprintf("the store is distrusted since %s (%s)", at(c.Distrust.Since), c.Distrust.Reason)
	case len(c.Known.RivalNames) > 0:
		return "the same image needs proof as " + list(c.Known.RivalNames) + ", and a tenant may have given it this further name"
	case len(c.Known.MarkedAs) > 0:
		return "the same image is preloaded as " + list(c.Known.MarkedAs) + ", and a tenant may have given it this further name"
	case c.VerifyUntracked:
		return "untrackedImages is Verify"
	default:
		return "an image is being removed, a container is being created, or another name of the image is being pulled; the next pod that asks is judged again"
	}
}
