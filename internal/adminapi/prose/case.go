package prose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A Case is a judgement with everything that is told of it.
type Case struct {
	tracker.Explanation
	// Image is the name that was asked for, and Names those that the image has.
	Image string
	Names []string
	// Pod is who was judged; one without a UID stands for any new pod of its namespace.
	Pod tracker.Pod
	// Secrets are what the pod's pull secrets hold for the image, and CredentialsKnown says that it has no others.
	Secrets          []tracker.Secret
	CredentialsKnown bool
	// PodSource says that there is one, and PodKnown that it knows the pod.
	PodSource, PodKnown bool
	// PullPolicy is how the pod pulls the image: Always, IfNotPresent, Never, mixed or unknown.
	PullPolicy string
	Settings
}

// Settings are those of the configuration that decide what becomes of a verdict.
type Settings struct {
	// Shadow is noPullImageSecretRecheck: nothing is enforced.
	Shadow bool
	// OutageFallback is registryOutageFallback.
	OutageFallback bool
	// VerifyUntracked is untrackedImages: Verify.
	VerifyUntracked bool
	// PerNamespace is runtimeCredentials: perNamespace.
	PerNamespace bool
}

// who names the pod.
func (c Case) who() string {
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

// short cuts an ID to what people compare.
func short(id string) string {
	const digits = 12
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(digits, len(id))]
}

// pair is how the pair is given to pullgatectl.
func (c Case) pair() string {
	return "--image-id " + c.Pair.ImageID + " --repository " + c.Pair.Repository
}

func named(s records.SecretRef) string {
	if s.OfNamespace() {
		return "the runtime for namespace " + s.Namespace
	}
	return "Secret " + s.Namespace + "/" + s.Name
}

// secretOf names the Secret by which a credential is the pod's, or the namespace that the runtime holds it for; "" if
// neither is known.
func (c Case) secretOf(id credential.ID) string {
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

// credential names the one that the verdict rests on.
func (c Case) credential() string {
	what := "credential " + short(string(c.Credential))
	if s := c.secretOf(c.Credential); s != "" {
		what += " of " + s
	}
	return what
}

// proof returns the proof by the credential that the verdict rests on. Of a rotated one that is the proof by what its Secret held.
func (c Case) proof() (p records.Proof, rotated bool) {
	if c.Known.Record == nil {
		return p, false
	}
	for _, p := range c.Known.Record.Proofs {
		if p.Credential == c.Credential {
			return p, false
		}
	}
	for i, s := range c.Secrets {
		if s.Credential != c.Credential || i >= len(c.Standings) || c.Standings[i] != tracker.Rotated {
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

// graceful returns until when the grace of the proof lasts, and whether it still does.
func (c Case) graceful() (until time.Time, lasts bool) {
	p, _ := c.proof()
	return c.Rules.Expires(p).Add(c.Rules.Grace), c.Evidence.InGrace || slices.Contains(c.Standings, tracker.InGrace)
}

func (c Case) mode() policy.Mode { return c.Rules.Policy.Mode() }

// list writes a list as people do.
func list(items []string) string {
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
