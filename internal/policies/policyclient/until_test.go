package policyclient_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// An endorsement by a condition that reads the clock ends when the condition may end. Then the next pull verifies
// again, and the old endorsement counts only during the grace, while the registry cannot be asked.
func TestEndorsementsEndWithTheirConditions(t *testing.T) {
	for name, tc := range map[string]struct {
		until           time.Duration // 0 is none
		readsClock      bool
		validity, grace time.Duration
		ends            time.Duration // 0 is never
	}{
		"no clock":                     {0, false, 0, 0, 0},
		"known end":                    {3 * time.Hour, false, 0, 0, 3 * time.Hour},
		"known end, longer validity":   {3 * time.Hour, false, 24 * time.Hour, 0, 3 * time.Hour},
		"known end, shorter validity":  {3 * time.Hour, false, 2 * time.Hour, 0, 2 * time.Hour},
		"known end, grace":             {3 * time.Hour, false, 0, 2 * time.Hour, 3 * time.Hour},
		"unknown end":                  {0, true, 0, 0, time.Hour},
		"unknown end, validity":        {0, true, 5 * time.Hour, 0, 5 * time.Hour},
		"unknown end before a known":   {3 * time.Hour, true, 0, 0, time.Hour},
		"unknown end after a known":    {30 * time.Minute, true, 0, 0, 30 * time.Minute},
		"unknown end, validity, grace": {0, true, 5 * time.Hour, time.Hour, 5 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t)
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVerifier{result: met}
				v.result.ReadsClock = tc.readsClock
				v.result.Attestations = []requirement.Attestation{{PredicateType: "https://scan.test", Digest: "sha256:scan"}}
				if tc.until > 0 {
					v.result.Until = time.Now().Add(tc.until)
				}
				e := fixture(t, v, func(o *policyclient.EndorserOptions) {
					o.Store, o.Validity, o.Grace = store, tc.validity, tc.grace
				})
				verified := func() bool {
					t.Helper()
					d := verifyPull(e, app, "good")
					return d.Admitted() && v.requests() == 0
				}
				if verified() {
					t.Error("was not verified")
				}
				if tc.ends == 0 {
					time.Sleep(1000 * time.Hour)
					if !verified() {
						t.Error("ends; want that it does not")
					}
					return
				}
				time.Sleep(tc.ends - time.Minute)
				if !verified() {
					t.Error("has ended a minute too early")
				}
				time.Sleep(2 * time.Minute)
				v.result = unmet(requirement.RegistryUnavailable)
				for _, at := range []struct {
					later time.Duration
					want  bool
				}{{0, tc.grace > 0}, {tc.grace - 2*time.Minute, tc.grace > 0}, {4 * time.Minute, false}} {
					time.Sleep(max(0, at.later))
					if d := verifyPull(e, app, "good"); d.Admitted() != at.want {
						t.Errorf("%v after its end, with an outage: %+v; want admitted %v", at.later, d, at.want)
					}
				}
			})
		})
	}
}
