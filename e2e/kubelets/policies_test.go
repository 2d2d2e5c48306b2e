package kubelets_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// casesFile is the page that the results of the policies scenario must match.
const casesFile = "cases.md"

// preload puts images on the node past every kubelet, one for each pull policy, so that requests show which pod asked.
func (s *scenario) preload() {
	s.Helper()
	s.preloaded = map[string]node.Pushed{}
	for _, folder := range []string{"preloaded", "listed", "content"} {
		for _, policy := range pullPolicies() {
			name := folder + "/" + strings.ToLower(string(policy))
			content := name
			if folder == "content" {
				content = folder // of all three
			}
			p := testkit.Value(s.Private.Push(s.Context(), name+":1", node.Image{Content: content}))(s)
			archive := filepath.Join(s.TempDir(), "preload.tar")
			s.must(p.Archive(archive, p.Name))
			s.must(s.Containerd.Import(s.Context(), archive))
			s.preloaded[name] = p
		}
	}
}

func pullPolicies() []corev1.PullPolicy { return []corev1.PullPolicy{ifNotPresent, always, never} }

// What was on the node before pullgated stays open, also when a tenant pulls the same content under a private name.
// Shows: 001-10, 001-13, 001-14
func preloaded(s *scenario) {
	app := s.preloaded["content/never"]
	same := s.push(s.Private, "same:1", node.Image{Content: "content"})
	if same.ID != app.ID {
		s.Fatalf("image IDs %s and %s; want the same content", same.ID, app.ID)
	}
	s.runSteps(
		runs("B, Never, on a preloaded image", use("b", app).pulls(never), nothing),
		runs("A pulls the same content under another name", use("a", same, alice), anything),
	)
	if s.verifiesItself() {
		// A kubelet that verifies has one record for all names of an image: what A pulled is not preloaded any more.
		s.runSteps(refuses("B on the preloaded name, refused by the kubelet", use("b", app)))
		s.must(s.restartKubelet(s.Context(), s.withoutNative()))
	}
	s.runSteps(
		runs("B on the preloaded name", use("b", app), nothing),
		runs("B, Never, on the preloaded name", use("b", app).pulls(never), nothing),
		refuses("B on A's name", use("b", same)),
		hides("B, Never, on A's name", use("b", same).pulls(never)),
	)
	if s.verifiesItself() {
		s.must(s.restartKubelet(s.Context(), quick()))
	}
}

// Under each policy, pods of every kind are created with every pull policy. The results must match cases.md.
// Shows: 001-01, 001-02, 001-03, 001-04, 001-05, 001-06, 001-08, 001-09, 001-10, 001-11, 001-14, 001-21, 001-29
func policies(s *scenario) {
	listed := fmt.Sprintf("preloadedImagesVerificationAllowlist: [%q]", s.Private.Host()+"/listed/*")
	host.AtEnd(s, func() error {
		return s.gate.Restart(context.WithoutCancel(s.Context()), s.settings("noPullImageSecretRecheck: false")...)
	})
	const key = "imagePullCredentialsVerificationPolicy: "
	var rows []string
	for i, tc := range []struct {
		name     string
		settings []string
	}{
		{"NeverVerify", []string{key + "NeverVerify"}},
		{"NeverVerifyPreloadedImages", []string{key + "NeverVerifyPreloadedImages"}},
		{"NeverVerifyAllowlistedImages", []string{key + "NeverVerifyAllowlistedImages", listed}},
		{"AlwaysVerify", []string{key + "AlwaysVerify"}},
		{"noPullImageSecretRecheck", []string{"noPullImageSecretRecheck: true"}},
	} {
		if s.sourced && (tc.name == "NeverVerify" || tc.name == "noPullImageSecretRecheck") {
			continue // nothing is judged, so there is nothing that the pod source could add
		}
		s.must(s.gate.Restart(s.Context(), s.settings(tc.settings...)...))
		if s.sourced {
			s.waitUntilSynced()
		}
		rows = append(rows, s.matrix(fmt.Sprintf("policy-%d", i), tc.name)...)
	}
	s.compare(rows)
}

func (s *scenario) matrix(prefix, policy string) []string {
	s.Helper()
	kinds := []struct {
		name   string
		folder string // of a preloaded image; A pulls one if empty
		login  []node.Login
		public bool
	}{
		{name: "the credential that pulled it", login: []node.Login{alice}},
		{name: "another good credential", login: []node.Login{dora}},
		{name: "no credential"},
		{name: "no credential, the image preloaded", folder: "preloaded"},
		{name: "no credential, the image preloaded and listed", folder: "listed"},
		{name: "no credential, the image pulled without one", public: true},
	}
	// One pod of A pulls all that has to be there.
	first := use("a", node.Pushed{}, alice)
	cells := map[string]*outcome{}
	images := map[string]node.Pushed{}
	var pulled []corev1.Container
	for i, kind := range kinds {
		for _, pullPolicy := range pullPolicies() {
			cell := kind.name + string(pullPolicy)
			if kind.folder != "" {
				images[cell] = s.preloaded[kind.folder+"/"+strings.ToLower(string(pullPolicy))]
				continue
			}
			registry := s.Private
			if kind.public {
				registry = s.Public
			}
			name := fmt.Sprintf("%s/%d-%s:1", prefix, i, strings.ToLower(string(pullPolicy)))
			images[cell] = s.push(registry, name, node.Image{})
			if first.image.Built == nil {
				first.image = images[cell]
			}
			pulled = append(pulled, containerOf(fmt.Sprintf("c-%d", len(pulled)), images[cell]))
		}
	}
	first.change = func(p *corev1.Pod) { p.Spec.Containers = pulled }
	s.runSteps(runs("A pulls", first, anything))

	since := map[string]int{}
	for _, kind := range kinds {
		for _, pullPolicy := range pullPolicies() {
			cell := kind.name + string(pullPolicy)
			since[cell] = s.registryOf(images[cell]).Mark()
			p := use("x", images[cell], kind.login...).pulls(pullPolicy)
			cells[cell] = &outcome{image: p.image, pod: s.create(p)}
		}
	}
	for cell, o := range cells {
		if s.await(o); o.state == "" {
			s.Fatalf("under %s the pod %q is not decided", policy, cell)
		}
	}
	var rows []string
	for _, kind := range kinds {
		row := []string{policy, kind.name}
		for _, pullPolicy := range pullPolicies() {
			cell := kind.name + string(pullPolicy)
			o := cells[cell]
			row = append(row, describe(o.state, asked(s.registryOf(o.image).Requests(since[cell], o.image.Repository))))
			o.want = o.state
			s.drop(o)
		}
		rows = append(rows, "| "+strings.Join(row, " | ")+" |")
	}
	return rows
}

func describe(state, asks string) string {
	switch {
	case state == running && asks == nothing:
		return "runs"
	case state == running && asks == manifest:
		return "runs, asked"
	case state == running:
		return "runs, asked for " + asks
	case asks == nothing || asks == refusals:
		return state
	}
	return state + ", asked for " + asks
}

func (s *scenario) compare(rows []string) {
	s.Helper()
	text := testkit.Value(os.ReadFile(casesFile))(s)
	want := rowsFor(string(text), s.kind, s.sourced)
	for _, row := range rows {
		if want[caseOf(row)] != row {
			s.Errorf("on %s with kubelet %s, pod source %v, the outcome is\n%s\n%s has\n%s",
				s.runtime, s.release, s.sourced, row, casesFile, want[caseOf(row)])
		}
		delete(want, caseOf(row))
	}
	if len(want) > 0 && !s.sourced { // with the pod source not every policy is run
		s.Errorf("%s has rows that did not come out: %q", casesFile, want)
	}
}

// rowsFor returns the rows of the page for a kubelet, by case. A row of a table replaces that of an earlier one.
func rowsFor(page string, k kind, sourced bool) map[string]string {
	tables := []string{"every kubelet", "kubelet " + k.release}
	if k.verifiesItself() {
		tables = append(tables, "a kubelet that verifies itself")
	}
	if sourced {
		tables = append(tables, "with the pod source")
	}
	all := map[string]string{}
	for _, name := range tables {
		_, table, _ := strings.Cut(page, "<!-- "+name+" -->\n")
		table, _, _ = strings.Cut(table, "<!-- end -->")
		for row := range strings.Lines(table) {
			all[caseOf(row)] = strings.TrimSuffix(row, "\n")
		}
	}
	for _, heading := range []string{"| policy of pullgated | who comes", "| --- | ---"} {
		delete(all, heading)
	}
	return all
}

// caseOf returns the beginning of a row that says what it is about: policy and kind of pod.
func caseOf(row string) string { return strings.Join(strings.SplitN(row, " | ", 3)[:2], " | ") }
