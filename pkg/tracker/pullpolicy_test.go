package tracker_test

import (
	"testing"

	"github.com/pullgate/pullgate/pkg/tracker"
)

func TestPrecheckPolicyIgnoresPoliciesWithoutAPrecheck(t *testing.T) {
	for _, tc := range []struct {
		uses         []string
		sends, skips string
	}{
		{nil, "unknown", "unknown"},
		{[]string{"Never"}, "Never", "Never"},
		{[]string{"Never", "Never"}, "Never", "Never"},
		{[]string{"Always"}, "Always", "unknown"},
		{[]string{"Always", "Never"}, "mixed", "Never"},
		{[]string{"IfNotPresent", "Never"}, "mixed", "mixed"},
		{[]string{"IfNotPresent", "Always", "IfNotPresent"}, "mixed", "IfNotPresent"},
	} {
		if got := tracker.PrecheckPolicy(tc.uses, false); got != tc.sends {
			t.Errorf("PrecheckPolicy(%v, false) = %s; want %s", tc.uses, got, tc.sends)
		}
		if got := tracker.PrecheckPolicy(tc.uses, true); got != tc.skips {
			t.Errorf("PrecheckPolicy(%v, true) = %s; want %s", tc.uses, got, tc.skips)
		}
	}
}
