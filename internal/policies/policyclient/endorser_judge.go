package policyclient

import (
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// judge judges an image by its endorsement.
func (e *Endorser) judge(r *requirement.Rule, name imageref.Ref, id string, now time.Time) admission.Finding {
	if id == "" {
		return missingFinding(r, fmt.Sprintf("image %q: it is not known which image this is on the node, and %s requires signatures; pull the image", name, r))
	}
	p := records.Pair{ImageID: id, Repository: name.Repository()}
	got, state := e.find(p, r.Hash, now)
	switch state {
	case valid, inGrace:
		text := fmt.Sprintf("image %q: it has the signatures that %s requires", name, r)
		if state == inGrace {
			text = fmt.Sprintf(
				"image %q: its signatures met %s at %s, and its registry cannot be asked again", name, r, got.At.UTC().Format(time.RFC3339))
		}
		f := r.Finding(admission.Admit, "", text)
		f.Signers, f.Digest = got.Signers, got.Digest
		return f
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
		name, r, why, last, safetext.Shorten(r.Requirement.String(), requirement.MaxText)))
}

func missingFinding(r *requirement.Rule, message string) admission.Finding {
	return r.Finding(admission.Unverified, admission.EndorsementMissing, message)
}
