package kubelets_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// casesFile is the page that the results of the policies scenario must match.
const casesFile = "cases.md"

// preload puts images on the node, past every kubelet, as an operator does who builds a node's image.
// Each pull policy has its own, so that the registry's log shows which pod asked.
func (m *machine) preload(ctx context.Context) error {
	m.preloaded = map[string]node.Pushed{}
	for _, folder := range []string{"preloaded", "listed", "content"} {
		for _, policy := range pullPolicies() {
			name := folder + "/" + strings.ToLower(string(policy))
			content := name
			if folder == "content" {
				content = folder // of all three
			}
			p, err := m.PushPrivate(ctx, name+":1", node.Image{Content: content})
			if err != nil {
				return err
			}
			archive := filepath.Join(m.Dir, "preload.tar")
			if err := p.Archive(archive, p.Name); err != nil {
				return err
			}
			if err := m.Containerd.Import(ctx, archive); err != nil {
				return err
			}
			if err := os.Remove(archive); err != nil {
				return err
			}
			m.preloaded[name] = p
		}
	}
	return nil
}

func pullPolicies() []corev1.PullPolicy { return []corev1.PullPolicy{ifNotPresent, always, never} }

// What was on the node before pullgated is open to every pod by default, and stays so when a tenant pulls the
// same content under a name of its own, which is equally private.
func preloaded(s *scenario) {
	app := s.preloaded["content/never"]
	same := s.push(s.Private, "same:1", node.Image{Content: "content"})
	if same.ID != app.ID {
		s.Fatalf("image IDs %s and %s; want the same content", same.ID, app.ID)
	}
	s.runSteps(
		step{name: "B, Never, on a preloaded image", pod: pod{team: "b", image: app, policy: never}, want: running},
		step{name: "A pulls the same content under another name", pod: pod{team: "a", image: same, secrets: with(node.Alice())}, want: running, requests: anything},
	)
	if s.verifiesItself() {
		// A kubelet that verifies has one record for all names of an image: to it, nothing of the
		// content that A pulled is preloaded any more.
		s.runSteps(step{name: "B on the preloaded name, refused by the kubelet", pod: pod{team: "b", image: app}, want: pullFailed, requests: refusals, message: denied})
		s.must(s.restartKubelet(s.Context(), s.withoutNative()))
	}
	s.runSteps(
		step{name: "B on the preloaded name", pod: pod{team: "b", image: app}, want: running},
		step{name: "B, Never, on the preloaded name", pod: pod{team: "b", image: app, policy: never}, want: running},
		step{name: "B on A's name", pod: pod{team: "b", image: same}, want: pullFailed, requests: refusals, message: denied},
		step{name: "B, Never, on A's name", pod: pod{team: "b", image: same, policy: never}, want: neverPulled},
	)
	if s.verifiesItself() {
		s.must(s.restartKubelet(s.Context(), quick()))
	}
}

// Under each policy, pods of every kind are created with every pull policy. The results must match the rows of
// cases.md.
func policies(s *scenario) {
	listed := fmt.Sprintf("preloadedImagesVerificationAllowlist: [%q]", s.Private.Host()+"/listed/*")
	host.AtEnd(s, func() error {
		return s.gate.Restart(context.WithoutCancel(s.Context()), s.settings("noPullImageSecretRecheck: false")...)
	})
	var rows []string
	for i, tc := range []struct {
		name     string
		settings []string
	}{
		{"NeverVerify", []string{"imagePullCredentialsVerificationPolicy: NeverVerify"}},
		{"NeverVerifyPreloadedImages", []string{"imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages"}},
		{"NeverVerifyAllowlistedImages", []string{"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages", listed}},
		{"AlwaysVerify", []string{"imagePullCredentialsVerificationPolicy: AlwaysVerify"}},
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

// matrix creates pods of every kind under a policy, and returns a row of the page for each kind.
func (s *scenario) matrix(prefix, policy string) []string {
	s.Helper()
	kinds := []struct {
		name   string
		folder string // of a preloaded image; A pulls one if empty
		login  []node.Login
		public bool
	}{
		{name: "the credential that pulled it", login: []node.Login{node.Alice()}},
		{name: "another good credential", login: []node.Login{node.Dora()}},
		{name: "no credential"},
		{name: "no credential, the image preloaded", folder: "preloaded"},
		{name: "no credential, the image preloaded and listed", folder: "listed"},
		{name: "no credential, the image pulled without one", public: true},
	}
	// One pod of A pulls all that has to be there.
	first := pod{team: "a", secrets: with(node.Alice())}
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
			images[cell] = s.push(registry, fmt.Sprintf("%s/%d-%s:1", prefix, i, strings.ToLower(string(pullPolicy))), node.Image{})
			if first.image.Built == nil {
				first.image = images[cell]
			}
			pulled = append(pulled, corev1.Container{Name: fmt.Sprintf("c-%d", len(pulled)), Image: images[cell].Name, ImagePullPolicy: ifNotPresent})
		}
	}
	first.change = func(p *corev1.Pod) { p.Spec.Containers = pulled }
	s.runSteps(step{name: "A pulls", pod: first, want: running, requests: anything})

	since := map[string]node.Mark{}
	for _, kind := range kinds {
		for _, pullPolicy := range pullPolicies() {
			cell := kind.name + string(pullPolicy)
			since[cell] = s.registryOf(images[cell]).Mark()
			p := pod{team: "x", image: images[cell], policy: pullPolicy, secrets: with(kind.login...)}
			cells[cell] = &outcome{image: p.image, pod: s.create(p)}
		}
	}
	for cell, o := range cells {
		if s.await(o); o.state == "" {
			s.Fatalf("under %s the pod %q is not decided\n%s", policy, cell, s.lastOutput())
		}
	}
	s.Private.Mark() // so that the logs are whole
	s.Public.Mark()
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

// describe returns the words of the page for an outcome.
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

// compare compares rows with those of the page.
func (s *scenario) compare(rows []string) {
	s.Helper()
	text, err := os.ReadFile(casesFile)
	s.must(err)
	release := s.cluster.Release()
	want := rowsFor(string(text), release, s.sourced)
	for _, row := range rows {
		if want[caseOf(row)] != row {
			s.Errorf("on %s with kubelet %s, pod source %v, the outcome is\n%s\n%s has\n%s", s.runtime, release, s.sourced, row, casesFile, want[caseOf(row)])
		}
		delete(want, caseOf(row))
	}
	if len(want) > 0 && !s.sourced { // with the pod source not every policy is run
		s.Errorf("%s has rows that did not come out: %q", casesFile, want)
	}
}

// rowsFor returns the rows of the page for a kubelet, by case. A row of a table replaces that of an earlier one.
func rowsFor(page, release string, sourced bool) map[string]string {
	tables := []string{"every kubelet", "kubelet " + release}
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
