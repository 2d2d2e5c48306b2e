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

// An explanation is a decision with all facts that its explanation uses.
type explanation struct {
	tracker.Explanation
	// Image is the requested name; Names are the names of the image.
	Image imageref.Ref
	Names []imageref.Ref
	// Pod is the pod that was judged; a Pod without a UID means any new pod of its namespace.
	Pod tracker.Pod
	// Secrets are the credentials of the pod's pull secrets for the image. CredentialsKnown reports that the pod has no
	// others.
	Secrets          []tracker.Secret
	CredentialsKnown bool
	// PodSource reports whether a pod source is configured, and PodKnown whether it has the pod.
	PodSource, PodKnown bool
	// PullPolicy is how the pod pulls the image: Always, IfNotPresent, Never, mixed or unknown.
	PullPolicy string
	// Policies are the answers of policies at the calls that create the sandbox and the containers; empty if there are
	// none.
	Policies []admission.Explanation
	Settings
}

// Settings are the fields of the configuration that determine the consequences of a verdict.
type Settings struct {
	// Shadow is noPullImageSecretRecheck: a missing proof denies nothing. Policies are enforced nevertheless.
	Shadow bool
	// OutageFallback is registryOutageFallback.
	OutageFallback bool
	// VerifyUntracked is untrackedImages: Verify.
	VerifyUntracked bool
	// PerNamespace is runtimeCredentials: perNamespace.
	PerNamespace bool
}

// who returns the pod as the subject of a sentence.
func (c explanation) who() string {
	switch {
	case c.Pod.UID == "" && c.Pod.Namespace == "":
		return "a pod"
	case c.Pod.UID == "":
		return "a new pod of namespace " + c.Pod.Namespace
	case c.Pod.Name == "":
		return "pod " + c.Pod.UID
	default:
		return "pod " + c.Pod.Namespace + "/" + c.Pod.Name
	}
}

func at(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// short returns the first 12 digits of an ID.
func short(id string) string {
	const digits = 12
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(digits, len(id))]
}

// pair returns the pair as flags of pullgatectl.
func (c explanation) pair() string {
	return "--image-id " + c.Pair.ImageID + " --repository " + c.Pair.Repository
}

func named(s records.SecretRef) string {
	if s.OfNamespace() {
		return "the runtime for namespace " + s.Namespace
	}
	return "Secret " + s.Namespace + "/" + s.Name
}

// secretOf returns the name of the Secret that contains the pod's credential, or the namespace for which the runtime
// holds it; "" if neither is known.
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

// credential returns the credential that the verdict depends on.
func (c explanation) credential() string {
	what := "credential " + short(string(c.Credential))
	if s := c.secretOf(c.Credential); s != "" {
		what += " of " + s
	}
	return what
}

// proof returns the proof that the verdict depends on. If the credential's Secret was rotated, that is the proof of its
// earlier content.
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

// graceful returns the end of the proof's grace, and whether the grace has not ended yet.
func (c explanation) graceful() (until time.Time, lasts bool) {
	p, _ := c.proof()
	return c.Rules.Expires(p).Add(c.Rules.Grace), c.Evidence.InGrace || slices.Contains(c.Statuses, tracker.InGrace)
}

// valid reports whether a proof has not expired.
func (c explanation) valid(p records.Proof) bool {
	expires := c.Rules.Expires(p)
	return expires.IsZero() || time.Now().Before(expires)
}

func (c explanation) mode() policy.Mode { return c.Rules.Policy.Mode() }

// enumerated joins items with commas and "and".
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
