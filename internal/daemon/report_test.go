package daemon

import (
	"fmt"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A report is written in shadow mode, and elsewhere on request; never without a pod source. A policy that judges
// nothing is no shadow mode: its empty report must not be taken for good.
func TestWhoReports(t *testing.T) {
	t.Parallel()
	const source, shadow = "podSource: {kubeconfig: /k%s}\n", "noPullImageSecretRecheck: true\n"
	const never = "imagePullCredentialsVerificationPolicy: NeverVerify"
	for settings, want := range map[string]struct {
		on   bool
		mode api.ReportMode
	}{
		shadow:                           {false, api.ReportShadow},
		fmt.Sprintf(source, ""):          {false, api.ReportEnforcing},
		fmt.Sprintf(source, "") + shadow: {true, api.ReportShadow},
		fmt.Sprintf(source, ", nodeReport: auto") + shadow:  {true, api.ReportShadow},
		fmt.Sprintf(source, ", nodeReport: false") + shadow: {false, api.ReportShadow},
		fmt.Sprintf(source, ", nodeReport: true"):           {true, api.ReportEnforcing},
		fmt.Sprintf(source, "") + shadow + never:            {true, api.ReportNeverVerify},
		"podSource: {nodeReport: true}\n" + shadow:          {false, api.ReportShadow},
	} {
		c := testkit.Value(config.Parse([]byte("apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n" +
			settings)))(t)
		r := openReport(Options{Config: c})
		on, asked, mode := r != nil, reportOf(r, &parts{}) != nil, reportMode(c)
		if on != want.on || asked != want.on || mode != want.mode {
			t.Errorf("%q: %v, %v, %s; want %v, %s", settings, on, asked, mode, want.on, want.mode)
		}
		r.Record(decisionlog.Decision{}) // also without a report
	}
}
