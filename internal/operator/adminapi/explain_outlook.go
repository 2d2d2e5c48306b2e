package adminapi

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Consequences returns what will happen at the kubelet's calls, first with the imagePullPolicy that the pod has.
func (c explanation) Consequences() []string {
	all, denied := c.policyConsequences(), c.denied()
	if c.Allowed() && len(denied) > 0 || slices.ContainsFunc(denied,
		func(e admission.Explanation) bool { return e.Stage == admission.StageSandbox }) {
		return all // whatever the imagePullPolicy
	}
	outcome := map[string]string{
		tracker.PullIfNotPresent: c.withIfNotPresent(), tracker.PullNever: c.withNever(), tracker.PullAlways: c.withAlways(),
	}
	order := []string{tracker.PullIfNotPresent, tracker.PullNever, tracker.PullAlways}
	if i := slices.Index(order, c.PullPolicy); i > 0 {
		order = append([]string{c.PullPolicy}, slices.Delete(order, i, i+1)...)
	}
	prefix := "With"
	if c.Shadow && !c.Allowed() && c.Reason != policy.Absent {
		all = append(all, "Shadow mode (noPullImageSecretRecheck is true): the pod gets the image as it would without "+
			"pullgate, and is counted as unverified.")
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
	starts := "the pod starts and its access is recorded"
	if len(c.denied()) > 0 {
		starts = "access is recorded"
	}
	outcome := "with the pod's credentials. If the registry accepts them, " + starts +
		"; else it stays in ErrImagePull and ImagePullBackOff"
	switch c.Reason {
	case policy.Absent:
		return "the kubelet pulls the image " + outcome
	case policy.Fenced:
		return "the image is hidden: the kubelet gets the answer that it is absent, and its pull is refused without the " +
			"registry; the pod stays in ErrImagePull and ImagePullBackOff"
	case policy.ImageIDName:
		return "the image is hidden: the kubelet gets the answer that it is absent, and tries to pull " + c.Image.String() +
			" from a registry, and the pod stays in ErrImagePull and ImagePullBackOff"
	case policy.ProofExpired, policy.ProvedInGrace:
		outage := "If the registry is unavailable, the pod stays in ErrImagePull until it is available"
		if until, lasts := c.graceful(); lasts {
			outage = "If the registry is unavailable, the pod gets the image on the node, until " + at(until)
		}
		return "the kubelet pulls, which is one request for the manifest and renews the proof for every pod with that " +
			"credential. " + outage
	default:
	}
	if c.Allowed() {
		return "the kubelet sees the image and starts the pod without a pull"
	}
	text := "the image is hidden: the kubelet gets the answer that it is absent, and pulls it " + outcome
	if c.Reason == policy.NodeCredentials {
		text += ". A pull with a credential of the node is refused without the registry"
	}
	unproved := c.Reason == policy.NotProved || c.Reason == policy.NodeCredentials
	if unproved && !c.CredentialsKnown && c.Known.Record != nil &&
		slices.ContainsFunc(c.Known.Record.Proofs, c.valid) {
		text += ". A pull with a credential that proved access before is answered without the registry, except, without a " +
			"pod source, for kubelets that count as older than 1.33"
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
	}
	return "the pod stays in ErrImageNeverPull"
}

func (c explanation) withAlways() string {
	switch {
	case c.Reason == policy.Fenced:
		return "the pull is refused without the registry, and the pod stays in ErrImagePull"
	case c.Reason == policy.ImageIDName:
		return "the kubelet pulls " + c.Image.String() + " from a registry, and the pod stays in ErrImagePull"
	case c.Reason == policy.NodeCredentials:
		return "the kubelet asks the registry, and a success is recorded; a pull with a credential of the node is refused " +
			"without the registry"
	case !c.Allowed():
		return "the kubelet asks the registry, as it would without pullgate, and a success is recorded"
	case c.Reason == policy.Proved && c.OutageFallback && !c.PodSource:
		return "the kubelet asks the registry, as it would without pullgate; if that is unavailable, kubelets that count " +
			"as older than 1.33 get the image on the node (registryOutageFallback)"
	}
	return "the kubelet asks the registry, as it would without pullgate"
}

const reload = ", then `systemctl reload pullgated`"

// Remedies returns what would change the outcome, the most direct one first.
func (c explanation) Remedies() []string {
	all := c.policyRemedies()
	if (c.Allowed() || c.Reason == policy.Absent) && len(c.denied()) > 0 {
		return all
	}
	switch {
	case c.Reason == policy.Absent:
		return append(all, "A pull brings the image, and proves access for the pods that have its credential.")
	case c.Allowed():
		return append(all, c.denials()...)
	}
	return append(all, c.permissions()...)
}

func (c explanation) denials() []string {
	revoke := "`pullgatectl revoke " + c.pair() + "`"
	reloaded := reload + ". Pods that hold a grant keep it until they end, or until " + revoke + "."
	switch c.Reason {
	case policy.ExemptStaticPod:
		return []string{"Set exempt.staticPods: false" + reload +
			". Static pods, also those of the control plane, then need proof as other pods do."}
	case policy.ExemptNamespace:
		return []string{"Remove " + c.Pod.Namespace + " from exempt.namespaces" + reloaded}
	case policy.NeverVerify:
		return []string{"Set imagePullCredentialsVerificationPolicy to NeverVerifyPreloadedImages" + reloaded}
	case policy.Allowlisted:
		return []string{"Remove the pattern that matches " + c.Pair.Repository +
			" from preloadedImagesVerificationAllowlist" + reloaded}
	case policy.Preloaded:
		forget := "`pullgatectl preloaded forget " + c.pair() + "`"
		if c.Known.Mark == nil {
			return []string{"Set untrackedImages: Verify and restart pullgated before a pod requests the image, or use " +
				forget + " later."}
		}
		return []string{
			forget + " removes the mark permanently, and ends the grants that depend on it.",
			"The policies NeverVerifyAllowlistedImages and AlwaysVerify require proof for preloaded images too.",
		}
	case policy.Open:
		return []string{revoke + " closes it for every pod. A pull without a credential, or with a credential of the node, " +
			"opens it again."}
	case policy.Shared, policy.Lent:
		return []string{
			"Remove the pod from the file " + c.Access + " of kind ImageAccess, or the file. The right ends within seconds.",
			revoke + " removes the proofs that it depends on.",
		}
	case policy.Granted:
		return []string{
			"The grant ends with the pod's last sandbox.",
			revoke + " ends it at once, and removes all proofs of " + c.Pair.Repository + ".",
		}
	default:
		by := "`pullgatectl revoke --credential " + string(c.Credential) +
			"` removes all proofs of this credential on this node. It can prove access again unless the registry denies it."
		if c.InGrace {
			return []string{"The grace ends. A pull with that credential by any pod renews the proof.", by}
		}
		return []string{by}
	}
}

func (c explanation) permissions() (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch c.Reason {
	case policy.Fenced:
		add("Add the pod to the file %s of kind ImageAccess. Its own credential does not help.", c.Access)
	case policy.ImageIDName:
		where := ""
		if repositories := (tracker.Image{Names: c.Names}).Repositories(); len(repositories) > 0 {
			where = "; this image is in " + enumerated(repositories)
		}
		add("Name the image in the pod's spec by its repository, with a tag or a digest%s.", where)
	case policy.RecordUnreadable:
		add("A pull of %s that succeeds, with imagePullPolicy IfNotPresent or Always, writes a new record.",
			c.Pair.Repository)
		add("`pullgatectl store verify` lists all unreadable values. If the preloaded mark is one, `pullgatectl preloaded "+
			"forget %s` removes it.", c.pair())
	case policy.ProofExpired:
		add("The next pull of %s with that credential renews the proof: use imagePullPolicy IfNotPresent.", c.Pair.Repository)
		add("Set a longer credentialValidity, or a registryUnavailableGrace for pods with Never%s.", reload)
	default:
		c.addProofs(add)
		c.addMark(add)
		if c.Reason == policy.NodeCredentials && c.Pod.Namespace != "" {
			add("Add %s to nodeCredentials.namespaces%s: its pods may then use the node's credentials, and what they have "+
				"opened.", c.Pod.Namespace, reload)
		}
	}
	if c.Pod.Namespace != "" && c.Reason != policy.RecordUnreadable {
		add("Add %s to exempt.namespaces%s: its pods may then use every image of the node.", c.Pod.Namespace, reload)
	}
	if c.mode() == policy.ModeNeverVerifyAllowlistedImages && !c.Evidence.ByID &&
		!c.Rules.Policy.Allowlisted(c.Pair.Repository) {
		add("Add %s to preloadedImagesVerificationAllowlist%s: every pod may then use it.", c.Pair.Repository, reload)
	}
	return all
}

func (c explanation) addProofs(add func(string, ...any)) {
	repository := c.Pair.Repository
	switch {
	case c.Pod.UID == "":
		add("A pod of %s may use it if one of its imagePullSecrets proved access. With imagePullPolicy IfNotPresent its "+
			"first pull proves that, if the registry accepts the credential.", c.Pod.Namespace)
	case c.Pod.Static:
		add("Static pods have no imagePullSecrets: with imagePullPolicy IfNotPresent the kubelet pulls with the node's " +
			"credentials. Or set exempt.staticPods: true.")
	case !c.PodSource, !c.PodKnown:
		add("With imagePullPolicy IfNotPresent the kubelet's pull carries the pod's credentials, and one that can pull %s "+
			"allows the image.", repository)
	case len(c.pullSecrets()) == 0 && c.CredentialsKnown:
		add("Give the pod, or its service account, an imagePullSecrets that can pull %s; it has none for it.", repository)
	case len(c.Secrets) == 0:
		add("Check that the Secrets in the pod's imagePullSecrets exist in %s and hold a docker configuration: `kubectl -n "+
			"%s get secrets`.", c.Pod.Namespace, c.Pod.Namespace)
	default:
		add("Check that %s can pull %s: with imagePullPolicy IfNotPresent the kubelet tries that, and a success proves "+
			"access.", enumerated(c.secretNames()), repository)
	}
	if c.PullPolicy == tracker.PullNever {
		add("With imagePullPolicy Never nothing is pulled, so another pod has to prove access with the credential first, " +
			"with IfNotPresent.")
	}
	if !c.PodSource {
		add("Set podSource.kubeconfig and restart pullgated: a pod whose credential proved access then needs no pull, also " +
			"with imagePullPolicy Never.")
	}
	if c.PerNamespace && c.Pod.Namespace != "" && c.PullPolicy != tracker.PullNever {
		add("If the runtime holds credentials for namespace %s (runtimeCredentials: perNamespace), a successful pull by "+
			"one of its pods without imagePullSecrets allows the image to all of its pods.", c.Pod.Namespace)
	}
	if slices.Contains(c.Statuses, tracker.Rotated) {
		add("The record is full (100 credentials), so the rotated Secret needs a pull that succeeds.")
	}
}

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
		add("`pullgatectl distrust end` marks all untracked images of the node preloaded; see `pullgatectl distrust end " +
			"--dry-run` first.")
	}
}

// Summary returns in a sentence whether the pod may use the image, which the request names so, and can start with it.
func (c explanation) Summary(image string) (text string) {
	denied, undecided := c.denied(), c.undecided()
	switch {
	case c.Reason == policy.Fenced:
		text = fmt.Sprintf("%s may not use %s: denied by the file %s of kind ImageAccess", upper(c.who()), image, c.Access)
	case len(denied) > 0 && denied[0].Answer == admission.Unverified:
		text = fmt.Sprintf("%s cannot start with %s before its signatures are verified for %s", upper(c.who()), image,
			by(denied[0]))
	case len(denied) > 0:
		text = fmt.Sprintf("%s cannot start with %s: denied by %s", upper(c.who()), image, by(denied[0]))
	case c.needsProof():
		text = upper(c.who()) + " needs proof to use " + image
	case c.Allowed():
		text = upper(c.who()) + " may use " + image
	default:
		text = image + " is not on this node, so there is no verdict"
	}
	switch {
	case len(denied) > 0 && c.needsProof():
		text += ", and it needs proof"
	case len(denied) > 0 || len(undecided) == 0:
	case slices.ContainsFunc(undecided[0].Findings, notAsked):
		text += "; the answer of " + by(undecided[0]) + " is not known (--ask)"
	default:
		text += "; the answer of " + by(undecided[0]) + " is not known before the kubelet's call"
	}
	if c.Shadow && c.needsProof() {
		text += ". In shadow mode the missing proof denies nothing"
	} else if c.Shadow && c.Reason == policy.Fenced {
		text += ". In shadow mode it denies nothing"
	}
	return text + "."
}

func (c explanation) needsProof() bool {
	return !c.Allowed() && c.Reason != policy.Absent && c.Reason != policy.Fenced
}

// stateNeedsProof is the state of an image that a pull has to bring: a proof, or signatures that are verified.
const stateNeedsProof = "needs proof"

func (c explanation) pullSecrets() (names []string) {
	for _, s := range c.Secrets {
		if _, account := s.Ref.Account(); account {
			continue
		}
		if name := s.Ref.Namespace + "/" + s.Ref.Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// State returns the outcome as one of the states of ListPods. reported returns whether the policy of a finding that is
// only reported would deny if policies were enforced.
func (c explanation) State(reported func(admission.Finding) bool) string {
	unknown, unproved := c.Reason == policy.Absent, c.needsProof()
	if c.Reason == policy.Fenced {
		return "denied by " + c.Access
	}
	for _, e := range c.Policies {
		for _, f := range e.Findings {
			switch {
			case e.Exemption != "": // it was started before, and the findings are about another one
			case f.Answer == admission.Admit || f.Audit && !reported(f):
			case f.Reason == admission.FieldUnknown, f.Reason == admission.NotAsked, !e.Certain:
				unknown = true
			case f.Answer == admission.Unverified:
				unproved = true
			default:
				return "denied by " + cmp.Or(f.Policy, f.Validator)
			}
		}
	}
	switch {
	case unproved:
		return stateNeedsProof
	case unknown:
		return "unknown"
	}
	return "runs"
}

func notAsked(f admission.Finding) bool { return f.Reason == admission.NotAsked && !f.Audit }

func (c explanation) denied() []admission.Explanation { return c.notAdmitted(true) }

func (c explanation) undecided() []admission.Explanation { return c.notAdmitted(false) }

func (c explanation) notAdmitted(certain bool) []admission.Explanation {
	return slices.DeleteFunc(slices.Clone(c.Policies),
		func(e admission.Explanation) bool { return e.Admitted() || e.Certain != certain })
}

// by returns the policies of a call that do not admit it, those that deny whatever is not known first.
func by(e admission.Explanation) string {
	var names, unknown []string
	for _, f := range e.Findings {
		name, to := "policy "+f.Policy, &names
		switch {
		case f.Audit || f.Answer == admission.Admit:
			continue
		case f.Policy == "":
			name = "validator " + f.Validator
		case f.Validator == admission.HookValidator:
			name = "hook " + f.Policy
		case reviewed(f):
			name = "image review backend " + f.Policy
		}
		if f.Reason == admission.FieldUnknown || f.Reason == admission.NotAsked {
			to = &unknown
		}
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	if len(names) == 0 || !e.Certain {
		names = append(names, unknown...)
	}
	return cmp.Or(enumerated(names), "a policy")
}

func reviewed(f admission.Finding) bool {
	return f.Reason == admission.ReviewDenied || f.Reason == admission.ReviewUnavailable || f.Reason == admission.NotAsked
}

func signatures(f admission.Finding) bool {
	return slices.Contains([]admission.Reason{
		admission.EndorsementMissing, admission.SignatureMissing, admission.SignatureInvalid, admission.IdentityMismatch,
		admission.AttestationMissing, admission.ConditionNotMet, admission.ContentMismatch,
	}, f.Reason)
}

func container(e admission.Explanation) string {
	switch {
	case e.Stage == admission.StageSandbox:
		return "the sandbox"
	case e.Container == "":
		return "the container"
	}
	return "container " + e.Container
}

func (c explanation) policyConsequences() (all []string) {
	for _, e := range c.denied() {
		switch {
		case e.Stage == admission.StageSandbox:
			return []string{fmt.Sprintf("RunPodSandbox is denied by %s: the pod waits in ContainerCreating with the event "+
				"FailedCreatePodSandBox, and no image is pulled.", by(e))}
		case e.Answer == admission.Unverified:
			all = append(all, fmt.Sprintf("The image counts as absent until its signatures are verified for %s. With "+
				"imagePullPolicy IfNotPresent or Always the kubelet pulls it, which verifies them: the pod then starts, or waits "+
				"with SignatureValidationFailed or RegistryUnavailable. With Never it stays in ErrImageNeverPull.", by(e)))
		default:
			state := "CreateContainerError"
			if slices.ContainsFunc(e.Findings, signatures) {
				state += ", or SignatureValidationFailed if the kubelet pulls first,"
			}
			all = append(all, fmt.Sprintf("CreateContainer of %s is denied by %s: the container waits with %s and the kubelet "+
				"tries again.", container(e), by(e), state))
		}
	}
	for _, e := range c.undecided() {
		all = append(all, fmt.Sprintf("Whether %s is admitted by %s is not known now. If it is denied, the pod waits with "+
			"the reason in its status or events; what follows holds if it is admitted.", container(e), by(e)))
	}
	return all
}

func (c explanation) policyRemedies() (all []string) {
	add := func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, e := range c.denied() {
		for _, f := range e.Findings {
			switch {
			case f.Audit || f.Answer == admission.Admit:
			case f.Validator == admission.HookValidator:
				add("Hook %s decides: its answer is above.", f.Policy)
			case reviewed(f):
				add("Image review backend %s decides: its answer is above.", f.Policy)
			case signatures(f):
				add("Sign the image as policy %s requires: `pullgatectl policy verify %s --namespace %s` shows which signatures "+
					"the registry has and why they do not count.", f.Policy, c.Image.String(), cmp.Or(c.Pod.Namespace, "NAMESPACE"))
			default:
				add("Change the pod so that it meets policy %s, or change the policy: the field and what is allowed are above. "+
					"`pullgatectl policy test` compares manifests with policy files.", f.Policy)
			}
		}
	}
	for _, e := range c.undecided() {
		if slices.ContainsFunc(e.Findings, notAsked) {
			add("`pullgatectl explain --ask` asks image review backends and hooks.")
		}
	}
	return all
}
