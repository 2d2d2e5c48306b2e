package adminapi

import (
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Consequences returns what will happen at the kubelet's calls: what policies deny, and what follows with each
// imagePullPolicy. The pod's own policy is first, if it is known.
func (c explanation) Consequences() []string {
	all := c.policyConsequences()
	if c.sandboxDenied() || c.Allowed() && len(c.denied()) > 0 {
		return all // whatever the imagePullPolicy
	}
	outcome := map[string]string{tracker.PullIfNotPresent: c.withIfNotPresent(), tracker.PullNever: c.withNever(), tracker.PullAlways: c.withAlways()}
	order := []string{tracker.PullIfNotPresent, tracker.PullNever, tracker.PullAlways}
	if i := slices.Index(order, c.PullPolicy); i > 0 {
		order = append([]string{c.PullPolicy}, slices.Delete(order, i, i+1)...)
	}
	prefix := "With"
	if c.Shadow && !c.Allowed() && c.Reason != policy.Absent {
		all = append(all, "Shadow mode (noPullImageSecretRecheck is true): the pod gets the image as it would without pullgate, and is counted as unverified.")
		prefix = "When verdicts are enforced, with"
	}
	for _, p := range order {
		name := "imagePullPolicy " + p
		if p == c.PullPolicy {
			name += ", which it has,"
		}
		all = append(all, fmt.Sprintf("%s %s %s.", prefix, name, outcome[p]))
	}
	return all
}

func (c explanation) withIfNotPresent() string {
	outcome := "with the pod's credentials. If the registry accepts them, " + c.starts() + "; else it stays in ErrImagePull and ImagePullBackOff"
	switch c.Reason {
	case policy.Absent:
		return "the kubelet pulls the image " + outcome
	case policy.ImageIDName:
		return "the image is hidden: the kubelet gets the answer that it is absent, and tries to pull " + c.Image.String() + " from a registry, and the pod stays in ErrImagePull and ImagePullBackOff"
	case policy.ProofExpired, policy.ProvedInGrace:
		outage := "If the registry is unavailable, the pod stays in ErrImagePull until it is available"
		if until, lasts := c.graceful(); lasts {
			outage = "If the registry is unavailable, the pod gets the image on the node, until " + at(until)
		}
		return "the kubelet pulls, which is one request for the manifest and renews the proof for every pod with that credential. " + outage
	default:
	}
	if c.Allowed() {
		return "the kubelet sees the image and starts the pod without a pull"
	}
	text := "the image is hidden: the kubelet gets the answer that it is absent, and pulls it " + outcome
	if c.Reason == policy.NotProved && !c.CredentialsKnown && c.Known.Record != nil && slices.ContainsFunc(c.Known.Record.Proofs, c.valid) {
		text += ". A pull with a credential that proved access before is answered without the registry, except, without a pod source, for kubelets that count as older than 1.33"
	}
	return text
}

func (c explanation) withNever() string {
	switch {
	case c.Reason == policy.ProofExpired:
		if until, lasts := c.graceful(); lasts {
			return "no registry is asked, so the proof is valid until " + at(until)
		}
		return "the pod stays in ErrImageNeverPull until a pull of another pod renews the proof"
	case c.Allowed():
		return "the pod starts without a pull too"
	default:
		return "the pod stays in ErrImageNeverPull"
	}
}

func (c explanation) withAlways() string {
	switch {
	case c.Reason == policy.ImageIDName:
		return "the kubelet pulls " + c.Image.String() + " from a registry, and the pod stays in ErrImagePull"
	case !c.Allowed():
		return "the kubelet asks the registry, as it would without pullgate, and a success is recorded"
	case c.Reason == policy.Proved && c.OutageFallback && !c.PodSource:
		return "the kubelet asks the registry, as it would without pullgate; if that is unavailable, kubelets that count as older than 1.33 get the image on the node (registryOutageFallback)"
	default:
		return "the kubelet asks the registry, as it would without pullgate"
	}
}

const reload = ", then `systemctl reload pullgated`"

// Remedies returns what would change the outcome, the most direct one first.
func (c explanation) Remedies() []string {
	all := c.policyRemedies()
	if (c.Allowed() || c.Reason == policy.Absent) && len(c.denied()) > 0 {
		return all
	}
	return append(all, c.remedies()...)
}

// remedies returns what would change the verdict.
func (c explanation) remedies() []string {
	switch {
	case c.Reason == policy.Absent:
		return []string{"A pull brings the image, and proves access for the pods that have its credential."}
	case c.Allowed():
		return c.denials()
	default:
		return c.permissions()
	}
}

// denials returns what would change an Allow.
func (c explanation) denials() []string {
	revoke := "`pullgatectl revoke " + c.pair() + "`"
	reloaded := reload + ". Pods that hold a grant keep it until they end, or until " + revoke + "."
	switch c.Reason {
	case policy.ExemptStaticPod:
		return []string{"Set exempt.staticPods: false" + reload + ". Static pods, also those of the control plane, then need proof as other pods do."}
	case policy.ExemptNamespace:
		return []string{"Remove " + c.Pod.Namespace + " from exempt.namespaces" + reloaded}
	case policy.NeverVerify:
		return []string{"Set imagePullCredentialsVerificationPolicy to NeverVerifyPreloadedImages" + reloaded}
	case policy.Allowlisted:
		return []string{"Remove the pattern that matches " + c.Pair.Repository + " from preloadedImagesVerificationAllowlist" + reloaded}
	case policy.Preloaded:
		forget := "`pullgatectl preloaded forget " + c.pair() + "`"
		if c.Known.Mark == nil {
			return []string{"Set untrackedImages: Verify and restart pullgated before a pod requests the image, or use " + forget + " later."}
		}
		return []string{
			forget + " removes the mark permanently, and ends the grants that depend on it.",
			"The policies NeverVerifyAllowlistedImages and AlwaysVerify require proof for preloaded images too.",
		}
	case policy.Open:
		return []string{revoke + " closes it for every pod. A pull without a credential, or with a credential of the node, opens it again."}
	case policy.Granted:
		return []string{"The grant ends with the pod's last sandbox.", revoke + " ends it at once, and removes all proofs of " + c.Pair.Repository + "."}
	default:
		by := "`pullgatectl revoke --credential " + string(c.Credential) + "` removes all proofs of this credential on this node. It can prove access again unless the registry denies it."
		if c.InGrace {
			return []string{"The grace ends. A pull with that credential by any pod renews the proof.", by}
		}
		return []string{by}
	}
}

// permissions returns what would change a Reverify.
func (c explanation) permissions() []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch c.Reason {
	case policy.ImageIDName:
		c.addNames(add)
	case policy.RecordUnreadable:
		add("A pull of %s that succeeds, with imagePullPolicy IfNotPresent or Always, writes a new record.", c.Pair.Repository)
		add("`pullgatectl store verify` lists all unreadable values. If the preloaded mark is one, `pullgatectl preloaded forget %s` removes it.", c.pair())
	case policy.ProofExpired:
		add("The next pull of %s with that credential renews the proof: use imagePullPolicy IfNotPresent.", c.Pair.Repository)
		add("Set a longer credentialValidity, or a registryUnavailableGrace for pods with Never%s.", reload)
	default:
		c.addProofs(add)
		c.addMark(add)
	}
	if c.Pod.Namespace != "" && c.Reason != policy.RecordUnreadable {
		add("Add %s to exempt.namespaces%s: its pods may then use every image of the node.", c.Pod.Namespace, reload)
	}
	if c.mode() == policy.ModeNeverVerifyAllowlistedImages && !c.Evidence.ByID && !c.Rules.Policy.Allowlisted(c.Pair.Repository) {
		add("Add %s to preloadedImagesVerificationAllowlist%s: every pod may then use it.", c.Pair.Repository, reload)
	}
	return all
}

func (c explanation) addNames(add func(string, ...any)) {
	var repositories []string
	for _, n := range c.Names {
		if n.Parsed() && !slices.Contains(repositories, n.Repository()) {
			repositories = append(repositories, n.Repository())
		}
	}
	where := ""
	if len(repositories) > 0 {
		where = "; this image is in " + enumerated(repositories)
	}
	add("Name the image in the pod's spec by its repository, with a tag or a digest%s.", where)
}

// addProofs adds the ways in which the pod could prove access.
func (c explanation) addProofs(add func(string, ...any)) {
	repository := c.Pair.Repository
	switch {
	case c.Pod.UID == "":
		add("A pod of %s may use it if one of its imagePullSecrets proved access. With imagePullPolicy IfNotPresent its first pull proves that, if the registry accepts the credential.", c.Pod.Namespace)
	case c.Pod.Static:
		add("Static pods have no imagePullSecrets: with imagePullPolicy IfNotPresent the kubelet pulls with the node's credentials. Or set exempt.staticPods: true.")
	case !c.PodSource, !c.PodKnown:
		add("With imagePullPolicy IfNotPresent the kubelet's pull carries the pod's credentials, and one that can pull %s allows the image.", repository)
	case len(c.Secrets) == 0 && c.CredentialsKnown:
		add("Give the pod, or its service account, an imagePullSecrets that can pull %s; it has none for it.", repository)
	case len(c.Secrets) == 0:
		add("Check that the Secrets in the pod's imagePullSecrets exist in %s and hold a docker configuration: `kubectl -n %s get secrets`.", c.Pod.Namespace, c.Pod.Namespace)
	default:
		add("Check that %s can pull %s: with imagePullPolicy IfNotPresent the kubelet tries that, and a success proves access.", enumerated(c.secretNames()), repository)
	}
	if c.PullPolicy == tracker.PullNever {
		add("With imagePullPolicy Never nothing is pulled, so another pod has to prove access with the credential first, with IfNotPresent.")
	}
	if !c.PodSource {
		add("Set podSource.kubeconfig and restart pullgated: a pod whose credential proved access then needs no pull, also with imagePullPolicy Never.")
	}
	if c.PerNamespace && c.Pod.Namespace != "" && c.PullPolicy != tracker.PullNever {
		add("If the runtime holds credentials for namespace %s (runtimeCredentials: perNamespace), a successful pull by one of its pods without imagePullSecrets allows the image to all of its pods.", c.Pod.Namespace)
	}
	if slices.Contains(c.Statuses, tracker.Rotated) {
		add("The record is full (100 credentials), so the rotated Secret needs a pull that succeeds.")
	}
}

// addMark adds how an operator could open the image to every pod.
func (c explanation) addMark(add func(string, ...any)) {
	if c.Evidence.Preloaded || c.mode() != policy.ModeNeverVerifyPreloadedImages {
		return
	}
	const own = ". Do so only if the name is yours: the same image "
	warning := ""
	switch {
	case c.Distrust != nil:
	case len(c.Known.RecordedAs) > 0:
		warning = own + "needs proof as " + enumerated(c.Known.RecordedAs)
	case len(c.Known.MarkedAs) > 0:
		warning = own + "is preloaded as " + enumerated(c.Known.MarkedAs)
	}
	add("`pullgatectl preloaded accept %s` opens it to every pod of the node%s.", c.pair(), warning)
	if c.Distrust != nil {
		add("`pullgatectl distrust end` marks all untracked images of the node preloaded; see `pullgatectl distrust end --dry-run` first.")
	}
}
