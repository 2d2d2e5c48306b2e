package webhook_test

import (
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// worker returns a request about a custom resource with this field spec.
func worker(spec string) request {
	return in("example.com", "workers", "Worker", "spec: "+spec)
}

// Shows: 003-31
func TestPathsOfCustomResources(t *testing.T) {
	const bad, good = "{spec: {hostNetwork: true}}", "{spec: {hostNetwork: false}}"
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Templates: []config.PodTemplate{
		{Group: "example.com", Resource: "workers", Path: "spec.worker.template"},
		{Group: "example.com", Resource: "workers", Path: "spec.driver"},
	}})
	const denied = "403 pullgate: workers.example.com team/app: "
	const first, second = denied + "spec.worker.template: policy a", denied + "spec.driver: policy a"
	const third = denied + "spec.worker[3].template: policy a"
	const invalid = "422 pullgate: workers.example.com team/app: invalid pod template: "
	for name, tc := range map[string]struct{ spec, want string }{
		"both good":       {"{worker: {template: " + good + "}, driver: " + good + "}", ""},
		"first":           {"{worker: {template: " + bad + "}, driver: " + good + "}", first},
		"second":          {"{worker: {template: " + good + "}, driver: " + bad + "}", second},
		"the only one":    {"{driver: " + bad + "}", denied + "policy a"},
		"no path":         {"{}", ""},
		"nil on the path": {"{worker: null}", ""},
		"nil template":    {"{worker: {template: null}}", ""},
		"no spec":         {"null", ""},
		"empty template":  {"{worker: {template: {}}}", ""},
		"other case": {"{Worker: {template: " + bad + "}, worker: {Template: " + bad +
			", template: {Spec: {hostNetwork: true}, spec: {HostNetwork: true}}}}", ""},
		"list on the path":      {"{worker: [{template: " + good + "}, {}, null, {template: " + bad + "}]}", third},
		"list of templates":     {"{driver: [" + good + ", " + bad + "]}", denied + "spec.driver[1]: policy a"},
		"empty list":            {"{driver: []}", ""},
		"list in a list":        {"{driver: [[" + bad + "]]}", invalid + "spec.driver[0] is not an object"},
		"text on the path":      {"{worker: x}", invalid + "spec.worker is not an object"},
		"number":                {"{driver: 7}", invalid + "spec.driver is not an object"},
		"text as spec of a pod": {"{driver: {spec: canary}}", invalid + "spec.driver is not a pod template"},
		"text as boolean":       {"{driver: {spec: {hostNetwork: canary}}}", invalid + "spec.driver is not a pod template"},
		"text as spec":          {"canary", invalid + "spec is not an object"},
		"more than can be":      {"{driver: [" + strings.Repeat("{}, ", 100) + "{}]}", invalid + "there are more than 100"},
		"as many as can be": {
			"{driver: [" + strings.Repeat("{}, ", 99) + bad + "]}",
			denied + "spec.driver[99]: policy a",
		},
		"unknown field of a pod": {"{driver: {spec: {newField: {x: y}, hostNetwork: true}}}", denied + "policy a"},
	} {
		got := message(w.ask(t, worker(tc.spec)))
		if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) || strings.Contains(got, "canary") {
			t.Errorf("%s: %q; want %q", name, got, tc.want)
		}
		q := worker(tc.spec)
		q.old = strings.Replace(q.object, "{name: app}", "{name: app, finalizers: [x.io/y]}", 1)
		if r := w.ask(t, q); !r.Allowed || w.last().Outcome != webhook.Unchanged {
			t.Errorf("%s: an update of finalizers is %s, %q", name, w.last().Outcome, message(r))
		}
	}
}

// The fields that the API server sets in a pod are known in the template of a custom resource too.
func TestDefaultsOfCustomResources(t *testing.T) {
	w := newWorld(t, webhook.Options{
		Templates: templates(),
		Chain: chain(t, "}\nspec: {spec: {restartPolicy: {forbidNil: true}, dnsPolicy: {forbidNil: true}, "+
			"terminationGracePeriodSeconds: {forbidNil: true}, containers: [{imagePullPolicy: {whitelist: [Always]}}]}}"),
	})
	for image, want := range map[string]bool{"a": true, "a:1": false} {
		r := w.ask(t, worker("{worker: {template: {spec: {containers: [{name: c, image: '"+image+"'}]}}}}"))
		if r.Allowed != want {
			t.Errorf("image %s: %q; want allowed %v", image, message(r), want)
		}
	}
}

// The pods of a template get other names, so restrictions of names are left to them.
func TestNamesOfTemplates(t *testing.T) {
	w := newWorld(t, webhook.Options{Chain: chain(t, "}\nspec: {metadata: {name: {regex: web-.*}}}")})
	for resource, q := range wrap("{containers: [{name: c, image: a}]}") {
		if r := w.ask(t, q); r.Allowed == (resource == "pods") {
			t.Errorf("%s: %q", resource, message(r))
		}
	}
}
