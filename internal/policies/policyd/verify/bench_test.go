package verify_test

import (
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// What the verification of one signature of a multi-architecture image costs without its registry, whose answers are
// in memory. The budget is 50 ms.
func BenchmarkVerify(b *testing.B) {
	key := sigstoretest.NewKey(b)
	a := sigstoretest.NewAuthority(b)
	certificate, leafKey := a.Certificate(b, nil)
	for name, tc := range map[string]struct {
		want *requirement.Requirement
		sign func(m *memory, i image)
	}{
		"key": {keyLeaf(b, key), func(m *memory, i image) { attachKey(b, m, i.index, key) }},
		"keyless": {keyless(nil), func(m *memory, i image) {
			bundle := a.KeylessBundle(b, certificate, leafKey, sigstoretest.Statement{Digests: []string{i.index}}.JSON(b), time.Now())
			m.attach(b, i.index, sigstoretest.BundleJSON(b, bundle), nil)
		}},
	} {
		m, i := withImage(b)
		tc.sign(m, i)
		c := newCheck(m, i, tc.want)
		v := must(verify.New(verify.Options{Open: c.repositories.open, Platform: "linux/amd64", TrustedRoot: a.TrustedRoot(b, nil)}))(b)
		want := []verify.Wanted{{Hash: tc.want.Hash(""), Requirement: tc.want}}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				report, err := v.Verify(b.Context(), c.image, want, admission.Login{}, false)
				if err != nil || !report.Results[0].Met {
					b.Fatal(report, err)
				}
			}
		})
	}
}
