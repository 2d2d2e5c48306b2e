package cli

import (
	"time"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// decisionWidths are the usual column widths: a table without an end cannot wait for its widest cell. The last column
// has no limit.
func (v View) decisionWidths() []int {
	widths := []int{8, 15, 8, 20, 36, 12, 0}
	if v.AbsoluteTimes {
		widths[0] = len("2006-01-02T15:04:05Z")
	}
	if v.WholeIDs {
		widths[5] = 64
	}
	return widths
}

// DecisionHead prints the head of the table of decisions.
func (v View) DecisionHead(p *Page) {
	p.Row(Bold, []string{"TIME", "CALL", "VERDICT", "REASON", "POD", "CREDENTIAL", "IMAGE"}, v.decisionWidths())
}

// Decision prints a decision in one line.
func (v View) Decision(p *Page, d *adminv1.WatchDecisionsResponse) {
	at := d.GetTime().AsTime()
	when := at.In(v.Now.Location()).Format(time.TimeOnly)
	if v.AbsoluteTimes {
		when = v.date(d.GetTime())
	}
	why := d.GetReason()
	if why == "" && d.GetOutcome() != "" {
		why = "pull " + d.GetOutcome()
	}
	if d.GetShadow() {
		why += " (shadow)"
	}
	colour := Plain
	if d.GetVerdict() == adminv1.Verdict_VERDICT_REVERIFY && !d.GetShadow() {
		colour = Heed
	}
	p.Row(colour, []string{
		when, d.GetCall(), verdict(d.GetVerdict()), why, podName(d.GetPod()), v.ID(d.GetCredentialId()), d.GetImage(),
	}, v.decisionWidths())
}

// verdict returns the word for a verdict in the log and in the decision log.
func verdict(v adminv1.Verdict) string {
	switch v {
	case adminv1.Verdict_VERDICT_ALLOW:
		return "Allow"
	case adminv1.Verdict_VERDICT_REVERIFY:
		return "Reverify"
	case adminv1.Verdict_VERDICT_UNSPECIFIED:
	}
	return ""
}
