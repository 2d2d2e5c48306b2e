package endorse

import (
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/imagerule"
	"github.com/pullgate/pullgate/pkg/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/requirement"
)

// A judgement collects the findings about the images of a container.
type judgement struct {
	endorser  *Endorser
	namespace string
	favorable bool // what is not known counts as what is required
	now       time.Time

	findings []admission.Finding
}

// judge judges an image by the rules for one of its names.
func (j *judgement) judge(name imageref.Ref, id string) {
	rules := j.endorser.rulesFor(j.namespace, name)
	for i := range rules.Findings {
		if !j.favorable || rules.Findings[i].Reason != admission.FieldUnknown {
			j.findings = append(j.findings, rules.Findings[i])
		}
	}
	for _, r := range rules.Signed {
		if id != "" || !j.favorable {
			j.findings = append(j.findings, j.endorser.judge(r, name, id, j.now))
		}
	}
}

// judge judges an image by its endorsement.
func (e *Endorser) judge(r *requirement.Rule, name imageref.Ref, id string, now time.Time) admission.Finding {
	if id == "" {
		return missingFinding(r, fmt.Sprintf("image %q: it is not known which image this is on the node, and %s requires signatures; pull the image", name, imagerule.NameOf(r)))
	}
	p := records.Pair{ImageID: id, Repository: name.Repository()}
	got, state := e.find(p, r.Hash, now)
	switch state {
	case valid:
		return endorsedFinding(r, got, fmt.Sprintf("image %q: it has the signatures that %s requires", name, imagerule.NameOf(r)))
	case inGrace:
		return endorsedFinding(r, got, fmt.Sprintf(
			"image %q: its signatures met %s at %s, and its registry cannot be asked again", name, imagerule.NameOf(r), got.At.UTC().Format(time.RFC3339)))
	case missing, expired:
	}
	why := "has not verified them for this image yet"
	if state == expired {
		why = "verified them too long ago, at " + got.At.UTC().Format(time.RFC3339)
	}
	last := ""
	if d, ok := e.options.State.denial(fact{p, r.Hash}); ok {
		last = fmt.Sprintf("; the last verification denied it (%s): %s", d.reason, d.message)
	}
	return missingFinding(r, fmt.Sprintf(
		"image %q: %s requires signatures, and pullgate %s%s; a pull verifies them, so sign the image and do not use imagePullPolicy Never; required: %s",
		name, imagerule.NameOf(r), why, last, imagerule.Shortened(r.Requirement.String())))
}

func missingFinding(r *requirement.Rule, message string) admission.Finding {
	return imagerule.Finding(r, admission.Unverified, admission.EndorsementMissing, message)
}

func endorsedFinding(r *requirement.Rule, got records.Endorsement, message string) admission.Finding {
	f := imagerule.Finding(r, admission.Admit, "", message)
	f.Signers, f.Digest = got.Signers, got.Digest
	return f
}
