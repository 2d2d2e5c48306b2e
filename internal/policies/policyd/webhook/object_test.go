package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// Pods and the templates of every resource are judged with their JSON, before a registry is asked.
func TestConditionsOnObjectsOfEveryResource(t *testing.T) {
	const spec = `{containers: [{name: c, image: "a:1"}]}`
	for resource, q := range wrap(spec) {
		for _, f := range []admission.Finding{
			{Answer: admission.Admit},
			{Answer: admission.Deny, Reason: admission.ConditionNotMet, Message: "no team", Audit: true},
			{Answer: admission.Deny, Reason: admission.ConditionNotMet, Message: "no team"},
		} {
			var seen []verify.Object
			j := &judge{}
			f.AuditAnnotations = map[string]string{"p_team": "a"}
			object := func(_ context.Context, o verify.Object) ([]admission.Finding, verify.Unselected) {
				seen = append(seen, o)
				return []admission.Finding{f}, verify.Unselected{}
			}
			w := newWorld(t, webhook.Options{Object: object, Signatures: j.Judge, Templates: templates()})
			denies := f.Answer == admission.Deny && !f.Audit
			r := w.ask(t, q)
			if r.Allowed == denies || len(j.asked) > 0 == denies || f.Audit != (len(r.Warnings) > 0) {
				t.Errorf("%s, %+v: allowed: %v, %d times asked for signatures, warnings %q",
					resource, f, r.Allowed, len(j.asked), r.Warnings)
			}
			if !maps.Equal(r.AuditAnnotations, f.AuditAnnotations) {
				t.Errorf("%s, %+v: audit annotations %v", resource, f, r.AuditAnnotations)
			}
			var pod struct {
				Spec struct{ Containers []struct{ Image string } }
			}
			if len(seen) != 1 || seen[0].Namespace != "team" || seen[0].Operation != "CREATE" ||
				seen[0].Template != (resource != "pods") || json.Unmarshal(seen[0].JSON, &pod) != nil ||
				len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Image != "a:1" {
				t.Errorf("%s: judged %+v", resource, seen)
			}
		}
	}
}

// An update is judged if it brings an image, with that image alone; too many images are not judged.
func TestConditionsOnObjectsOfUpdates(t *testing.T) {
	const running = `{containers: [{name: c, image: "a:1"}, {name: d, image: "b:1"}]}`
	var many strings.Builder
	for i := range 2001 {
		fmt.Fprintf(&many, `{name: c%d, image: "app:%d"}, `, i, i)
	}
	for spec, want := range map[string][]string{
		running: nil,
		`{terminationGracePeriodSeconds: 5, containers: [{name: c, image: "b:1"}, {name: d, image: "a:1"}]}`: nil,
		`{containers: [{name: c, image: "a:1"}, {name: d, image: "b:2"}]}`:                                   {"b:2"},
		`{containers: [` + many.String() + `]}`:                                                              {},
	} {
		before, after := wrap(running), wrap(spec)
		for resource, q := range after {
			q.old = before[resource].object
			q.object = strings.Replace(q.object, "name: app", "name: app, labels: {a: b}", 1)
			var images []string
			object := func(_ context.Context, o verify.Object) ([]admission.Finding, verify.Unselected) {
				images = append(images, o.Images...)
				f := admission.Finding{Answer: admission.Deny, Reason: admission.ConditionNotMet, Message: "no team"}
				return []admission.Finding{f}, verify.Unselected{}
			}
			w := newWorld(t, webhook.Options{Object: object, Templates: templates()})
			if r := w.ask(t, q); r.Allowed != (want == nil) || !slices.Equal(images, want) {
				t.Errorf("%s, %.99s: allowed: %v, judged for %.99q; want %q", resource, spec, r.Allowed, images, want)
			}
		}
	}
}
