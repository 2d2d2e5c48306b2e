package webhook_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// TestEveryResourceIsJudged and TestEphemeralContainers show that these are judged, and TestWhatIsNotJudged that others
// are not.
func TestResources(t *testing.T) {
	var got []string
	for _, r := range webhook.Resources(templates()) {
		got = append(got, r.String())
	}
	want := slices.Sorted(maps.Keys(wrap("{}")))
	slices.Sort(got)
	if diff := cmp.Diff(slices.Insert(want, slices.Index(want, "pods")+1, "pods/ephemeralcontainers"), got); diff != "" {
		t.Errorf("Resources (-want +got):\n%s", diff)
	}
}
