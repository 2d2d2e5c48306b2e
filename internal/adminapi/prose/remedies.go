package prose

import (
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const reload = "then systemctl reload pullgated"

// Remedies tell what would change the verdict, the nearest first: what would let the pod in, or what would stop it.
func (c Case) Remedies() []string {
	switch {
	case c.Reason == policy.Absent:
		return []string{"A pull brings the image, and the credential that it is made with proves access for the pods that have it."}
	case c.Allowed():
		return c.stops()
	default:
		return c.lets()
	}
}

// stops tells what would make an Allow a Reverify.
func (c Case) stops() []string {
	const anew = "; pods that hold a grant keep it until they end, or until pullgatectl revoke " // and what it names
	whole := "pullgatectl revoke " + c.pair()
	switch c.Reason {
	case policy.ExemptStaticPod:
		return []string{"Set exempt.staticPods: false, " + reload + ": static pods, those of the control plane too, then prove their images like others."}
	case policy.ExemptNamespace:
		return []string{fmt.Sprintf("Take %s off exempt.namespaces, %s%s%s.", c.Pod.Namespace, reload, anew, c.pair())}
	case policy.NeverVerify:
		return []string{"Set imagePullCredentialsVerificationPolicy to NeverVerifyPreloadedImages, " + reload + anew + c.pair() + "."}
	case policy.Allowlisted:
		return []string{fmt.Sprintf("Take the pattern that covers %s off preloadedImagesVerificationAllowlist, %s%s%s.", c.Pair.Repository, reload, anew, c.pair())}
	case policy.Preloaded:
		if c.Known.Mark == nil {
			return []string{"Set untrackedImages: Verify and restart pullgated before a pod asks; afterwards pullgatectl preloaded forget " + c.pair() + "."}
		}
		return []string{
			"pullgatectl preloaded forget " + c.pair() + " takes the mark away for good, and ends the grants that rest on it.",
			"The policies NeverVerifyAllowlistedImages and AlwaysVerify ask proof for preloaded images too.",
		}
	case policy.Open:
		return []string{whole + " closes it for everybody; a pull without a credential, or with the node's own, opens it again."}
	case policy.Granted:
		return []string{"The grant ends with the pod's last sandbox.", whole + " ends it at once, and takes back everything that is proved of " + c.Pair.Repository + "."}
	default:
		by := "pullgatectl revoke --credential " + string(c.Credential) + " takes back what this credential has proved, everywhere on this node; it can prove itself again unless the registry refuses it."
		if c.InGrace {
			return []string{"The end of the grace; a pull by any pod with that credential renews the proof.", by}
		}
		return []string{by}
	}
}

// lets tells what would make a Reverify an Allow.
func (c Case) lets() []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch c.Reason {
	case policy.ImageIDName:
		c.letsByName(say)
	case policy.RecordUnreadable:
		say("A pull of %s that succeeds, with imagePullPolicy IfNotPresent or Always, writes its record anew.", c.Pair.Repository)
		say("pullgatectl store verify tells what else cannot be read; if it is the preloaded mark, pullgatectl preloaded forget %s takes it away.", c.pair())
	case policy.ProofExpired:
		say("The next pull of %s with that credential renews the proof: use imagePullPolicy IfNotPresent.", c.Pair.Repository)
		say("Set a longer credentialValidity, or a registryUnavailableGrace for pods with Never, %s.", reload)
	default:
		c.letsByProof(say)
		c.letsByMark(say)
	}
	if c.Pod.Namespace != "" && c.Reason != policy.RecordUnreadable {
		say("Put %s on exempt.namespaces, %s: its pods may then use every image of the node.", c.Pod.Namespace, reload)
	}
	if c.mode() == policy.ModeNeverVerifyAllowlistedImages && !c.Evidence.ByID && c.Evidence.Repository == "" {
		say("Put %s on preloadedImagesVerificationAllowlist, %s: every pod may then use it.", c.Pair.Repository, reload)
	}
	return all
}

func (c Case) letsByName(say func(string, ...any)) {
	var repositories []string
	for _, s := range c.Names {
		if n, err := imageref.Parse(s); err == nil && !slices.Contains(repositories, n.Repository()) {
			repositories = append(repositories, n.Repository())
		}
	}
	if len(repositories) == 0 {
		say("Name the image in the pod's spec by its repository, with a tag or a digest.")
		return
	}
	say("Name the image in the pod's spec by its repository, with a tag or a digest; this one is in %s.", list(repositories))
}

// letsByProof tells how the pod could prove access.
func (c Case) letsByProof(say func(string, ...any)) {
	repository := c.Pair.Repository
	switch {
	case c.Pod.UID == "":
		say("A pod of %s is let in when one of its imagePullSecrets is proved: with imagePullPolicy IfNotPresent its first pull does that, if the registry lets it in.", c.Pod.Namespace)
	case c.Pod.Static:
		say("Static pods have no imagePullSecrets: with imagePullPolicy IfNotPresent the kubelet pulls with the node's own credentials; or set exempt.staticPods: true.")
	case !c.PodSource, !c.PodKnown:
		say("With imagePullPolicy IfNotPresent the kubelet's pull shows the pod's credentials, and one that can pull %s lets it in.", repository)
	case len(c.Secrets) == 0 && c.CredentialsKnown:
		say("Give the pod, or its service account, an imagePullSecrets that can pull %s; it has none for it.", repository)
	case len(c.Secrets) == 0:
		say("See that the Secrets that the pod names as imagePullSecrets exist in %s and hold a docker configuration: kubectl -n %s get secrets.", c.Pod.Namespace, c.Pod.Namespace)
	default:
		say("See that %s can pull %s: with imagePullPolicy IfNotPresent the kubelet tries that, and a success proves it.", list(c.secretNames()), repository)
	}
	if c.PullPolicy == tracker.PullNever {
		say("With imagePullPolicy Never nothing is pulled, so another pod has to prove the credential first, with IfNotPresent.")
	}
	if !c.PodSource {
		say("Set podSource.kubeconfig and restart pullgated: a pod with a proved credential is then let in without a pull, with imagePullPolicy Never too.")
	}
	if c.PerNamespace && c.Pod.Namespace != "" && c.PullPolicy != tracker.PullNever {
		say("If the runtime holds credentials for namespace %s (runtimeCredentials: perNamespace), a pull by one of its pods without imagePullSecrets that succeeds lets all of its pods in.", c.Pod.Namespace)
	}
	if slices.Contains(c.Standings, tracker.Rotated) {
		say("The record is full (100 credentials), so the rotated Secret waits for a pull that succeeds.")
	}
}

// letsByMark tells how an operator could open the image to all.
func (c Case) letsByMark(say func(string, ...any)) {
	if c.Evidence.Preloaded || c.mode() != policy.ModeNeverVerifyPreloadedImages {
		return
	}
	if c.Distrust != nil {
		say("pullgatectl preloaded accept %s opens it to every pod of the node.", c.pair())
		say("pullgatectl distrust end takes what is on the node now, and nothing is known of, for preloaded; see pullgatectl distrust end --dry-run first.")
		return
	}
	warning := ""
	switch {
	case len(c.Known.RivalNames) > 0:
		warning = ". Do so only if the name is yours: the same image needs proof as " + list(c.Known.RivalNames)
	case len(c.Known.MarkedAs) > 0:
		warning = ". Do so only if the name is yours: the image has it beside " + list(c.Known.MarkedAs)
	}
	say("pullgatectl preloaded accept %s opens it to every pod of the node%s.", c.pair(), warning)
}
