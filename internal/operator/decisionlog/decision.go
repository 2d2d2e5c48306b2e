package decisionlog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Version is the version of the lines.
const Version = 1

// maxImage bounds the name of an image in a line. A tenant chooses it; a name that can be pulled is shorter.
const maxImage = 1024

// timeFormat has a fixed width, so that sorting lines as text sorts them by time.
const timeFormat = "2006-01-02T15:04:05.000000000Z"

// A Decision is a decision that an operator would want to read later: a verdict other than a repeated Allow, the end of
// a pull, or a refusal by the gate itself. It contains no credential, only IDs. The package comment has its format.
type Decision struct {
	Call       string      // the method that was judged, for example ImageStatus
	Pod        tracker.Pod // the pod that asked; the zero value is an unknown pod, or none
	Image      string      // the requested name
	Repository string      // the repository of Verdict, or of Image if there was no verdict; "" if neither has one
	// Verdict is the verdict and its basis. A pull that did not succeed has the zero value.
	Verdict tracker.Verdict
	// Secret is the Secret that contains the credential of the verdict; the zero value if no such Secret is known.
	Secret     records.SecretRef
	PullPolicy string        // how the pod uses the image: Always, IfNotPresent, Never, mixed or unknown
	Outcome    string        // the outcome of a pull; "" for every other decision
	Took       time.Duration // how long the decision or the pull took
	Shadow     bool          // the verdict was not enforced
	Digest     string        // a digest by which the runtime names the image of Verdict; "" if it is not known
	// Container is the name of the container in the pod; "" if the call has none, or if there are no policies.
	Container string
	Admission admission.Decision // the decision of the admission chain; the zero value if it asked no validator

	// The fields below are not in the log.
	Hidden     bool // of the end of a pull: the image is on the node, and was hidden from the pod
	PullSecret bool // of a Reverify: the pod has a pull secret for the image
}

// A Recorder stores decisions, or passes them on.
type Recorder interface {
	// Record is called concurrently, before the call is answered, and must not block.
	Record(d Decision)
}

type written struct {
	V            int     `json:"v"`
	Time         string  `json:"time"`
	Call         string  `json:"call"`
	Pod          pod     `json:"pod,omitzero"`
	Image        string  `json:"image"`
	ImageID      string  `json:"imageID,omitempty"`
	Repository   string  `json:"repository,omitempty"`
	Verdict      string  `json:"verdict"`
	Reason       string  `json:"reason,omitempty"`
	CredentialID string  `json:"credentialID,omitempty"`
	Secret       secret  `json:"secret,omitzero"`
	PullPolicy   string  `json:"pullPolicy"`
	Outcome      string  `json:"outcome,omitempty"`
	Shadow       bool    `json:"shadow"`
	Took         float64 `json:"took"` // in seconds
	Dropped      uint64  `json:"dropped,omitempty"`
	Container    string  `json:"container,omitempty"`
	Digest       string  `json:"digest,omitempty"`
	Access       string  `json:"access,omitempty"`
	AccessAudit  string  `json:"accessAudit,omitempty"`
	PolicyHash   string  `json:"policyHash,omitempty"`

	Policies []finding `json:"policies,omitempty"`
}

type finding struct {
	Validator  string `json:"validator"`
	Policy     string `json:"policy,omitempty"`
	Rule       string `json:"rule,omitempty"`
	Answer     string `json:"answer"`
	Reason     string `json:"reason,omitempty"`
	Audit      bool   `json:"audit"`
	FailedOpen bool   `json:"failedOpen"`

	Signers          []string          `json:"signers,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
}

// maxFindings bounds the findings in a line. There can be some for each of 1,000 policies.
const maxFindings = 100

func findingsOf(d admission.Decision) []finding {
	var decided, open, admitting, others []finding
	for _, f := range d.Findings {
		w := finding{
			f.Validator, f.Policy, f.Rule, f.Answer.String(), string(f.Reason), f.Audit, f.FailedOpen, f.Signers,
			f.AuditAnnotations,
		}
		switch {
		case f.FailedOpen:
			open = append(open, w)
		case f.Answer != d.Answer || f.Audit:
			others = append(others, w)
		case f.Answer == admission.Admit:
			admitting = append(admitting, w)
		default:
			decided = append(decided, w)
		}
	}
	all := slices.Concat(decided, open, admitting, others)
	return all[:min(len(all), maxFindings)]
}

func digestOf(d admission.Decision) string {
	for _, f := range d.Findings {
		if f.Digest != "" {
			return f.Digest
		}
	}
	return ""
}

type pod struct {
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Static    bool   `json:"static,omitempty"`
}

type secret struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

type entry struct {
	at      time.Time
	before  uint64 // decisions that were dropped between the previous entry and this one
	decided Decision
}

func (e *entry) line(dropped uint64) ([]byte, error) {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	d, v := e.decided, e.decided.Verdict
	err := to.Encode(written{
		V: Version, Time: e.at.UTC().Format(timeFormat), Call: d.Call,
		Pod: pod{UID: d.Pod.UID, Namespace: d.Pod.Namespace, Name: d.Pod.Name, Static: d.Pod.Static}, Image: d.Image,
		ImageID: v.Pair.ImageID, Repository: d.Repository, Verdict: v.Verdict.String(), Reason: string(v.Reason),
		CredentialID: string(v.Credential), Secret: secret{Namespace: d.Secret.Namespace, Name: d.Secret.Name},
		PullPolicy: d.PullPolicy, Outcome: d.Outcome, Shadow: d.Shadow, Took: d.Took.Seconds(), Dropped: dropped,
		Container: d.Container, Digest: cmp.Or(digestOf(d.Admission), d.Digest), PolicyHash: d.Admission.PolicyHash,
		Policies: findingsOf(d.Admission), Access: v.Access, AccessAudit: v.AccessAudit,
	})
	if err != nil {
		return nil, fmt.Errorf("write a decision as JSON: %w", err)
	}
	return b.Bytes(), nil
}

// Bounded returns the name of an image, cut to 1024 bytes of UTF-8, without keeping the rest in memory.
func Bounded(name string) string {
	if len(name) <= maxImage {
		return name
	}
	return strings.ToValidUTF8(strings.Clone(name[:maxImage]), "")
}
