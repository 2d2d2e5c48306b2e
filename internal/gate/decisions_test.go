package gate

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/pullgate/pullgate/internal/decisionlog"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

func TestJournalSaysWhatBecameOfACall(t *testing.T) {
	allowed := tracker.Verdict{Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}}
	denied := tracker.Verdict{Decision: policy.Decision{Reason: policy.NotProved}}
	for _, tc := range []struct {
		decided decisionlog.Decision
		want    string
	}{
		{decisionlog.Decision{Call: "ImageStatus", Verdict: allowed}, `"msg"="Allowed"`},
		{decisionlog.Decision{Call: "ImageStatus", Verdict: denied}, `"msg"="Hidden"`},
		{decisionlog.Decision{Call: "CreateContainer", Verdict: denied}, `"msg"="Denied"`},
		{decisionlog.Decision{Call: "PullImage", Verdict: denied}, `"msg"="Proof needed"`},
		{decisionlog.Decision{Call: "PullImage", Verdict: allowed, Outcome: "verified"}, `"msg"="Pull"`},
	} {
		var lines []string
		g := &Gate{log: funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})}
		g.note(imageref.Ref{}, tc.decided)
		if len(lines) != 1 || !strings.Contains(lines[0], tc.want) || !strings.Contains(lines[0], string(tc.decided.Verdict.Reason)) {
			t.Errorf("journal of %s %v = %q; want one line with %s and the reason", tc.decided.Call, tc.decided.Verdict.Verdict, lines, tc.want)
		}
	}
}
