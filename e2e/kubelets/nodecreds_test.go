package kubelets_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A credential provider plugin of the kubelet, run through pullgated, gives out a credential of the node's.
// What is pulled with it is open to every pod, also when the registry and the plugin are unavailable. What a tenant
// pulls with a secret of its own is not.
// Shows: 001-16
func nodeCredentials(s *scenario) {
	r := s.registry()
	app, own := s.push(r, "node/app:1", node.Image{}), s.push(r, "own/app:1", node.Image{Content: "own"})
	s.plugin(r.Host()+"/"+s.name+"/node", alice)
	defer func() {
		s.kubelet.SetFlags()
		s.must(s.restartKubelet(context.WithoutCancel(s.Context()), quick()))
	}()
	s.must(s.restartKubelet(s.Context(), quick()))
	before := s.reports()
	s.runSteps(
		runs("A without a secret", use("a", app), downloads),
		runs("B without a secret", use("b", app), nothing),
		runs("B, Never", use("b", app).pulls(never), nothing),
		runs("B with an invalid secret", use("b", app, mallory), nothing),
		runs("A, with a secret, what the node offers nothing for", use("a", own, alice), downloads),
		refuses("B without a secret, on that", use("b", own)),
		hides("B, Never, on that", use("b", own).pulls(never)),
	)
	if got := s.reports() - before; got != 1 {
		s.Errorf("%d credentials were reported to pullgated; want one", got)
	}
	// A restart forgets neither the report nor what was opened.
	s.must(r.Down())
	s.must(s.gate.Restart(s.Context()))
	s.runSteps(
		runs("C without a secret, without a registry", use("c", app), nothing),
		runs("C, Never", use("c", app).pulls(never), nothing),
	)
	s.must(r.Up())
	next, absent := s.push(r, "node/next:1", node.Image{Content: "next"}), s.push(r, "node/absent:1", node.Image{})
	s.runSteps(
		runs("C without a secret, the credential from the kubelet's cache", use("c", next), downloads),
		runs("B without a secret, after C", use("b", next), nothing),
	)
	if got := s.reports() - before; got != 1 {
		s.Errorf("%d credentials were reported to pullgated; want no other one", got)
	}
	s.forNamespace("c", app, next, absent)
}

// Then credentials of the node are for the pods of one namespace.
func (s *scenario) forNamespace(team string, app, next, absent node.Pushed) {
	s.Helper()
	defer func() {
		s.must(s.gate.Restart(context.WithoutCancel(s.Context()), s.settings("nodeCredentials: {}")...))
	}()
	reloads := strings.Count(s.gate.Log(), "Configuration reloaded")
	s.must(s.gate.Configure(s.settings("nodeCredentials: {namespaces: [" + s.namespace(team) + "]}")...))
	s.must(syscall.Kill(s.gate.PID(), syscall.SIGHUP))
	if !host.Within(patience, func() bool { return strings.Count(s.gate.Log(), "Configuration reloaded") > reloads }) {
		s.Fatal("pullgated has not reloaded")
	}
	withheld := func(image node.Pushed) string {
		repository := image.Name[:strings.LastIndex(image.Name, ":")]
		return regexp.QuoteMeta("pullgate: repository " + repository + ": the registry credentials of this node are for " +
			"other namespaces; set imagePullSecrets, or ask the operator of this node")
	}
	for _, when := range []string{"after a reload", "after a restart"} {
		s.runSteps(
			runs("C without a secret "+when, use("c", app), nothing),
			runs("C, Never, "+when, use("c", next).pulls(never), nothing),
			fails("A without a secret, what was opened to all "+when, use("a", app), withheld(app)),
			fails("B without a secret, an absent image "+when, use("b", absent), withheld(absent)),
			fails("B, Always, "+when, use("b", next).pulls(always), withheld(next)),
			hides("B, Never, "+when, use("b", next).pulls(never)),
		)
		s.must(s.gate.Restart(s.Context()))
	}
	s.runSteps(
		runs("D with a secret of its own, which is tried first", use("d", next, dora), manifest),
		fails("B without a secret, after D", use("b", next), withheld(next)),
	)
}

// reports is how often pullgated has logged that a plugin returned new credentials.
func (s *scenario) reports() int {
	s.Helper()
	log := testkit.Value(os.ReadFile(filepath.Join(s.gate.Dir(), "pullgated.log")))(s)
	return strings.Count(string(log), "Node credentials reported by a credential provider")
}

// plugin has the kubelet run a plugin through pullgated from its next start on, with a login for images that begin so.
func (s *scenario) plugin(images string, login node.Login) {
	s.Helper()
	program := testkit.Value(node.Program("pullgated"))(s)
	dir := filepath.Join(s.Dir, "plugins-of-"+s.name)
	s.must(os.MkdirAll(dir, 0o700))
	path := func(name string) string { return filepath.Join(dir, name) }
	answer := fmt.Sprintf(`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
  "cacheKeyType": "Registry", "cacheDuration": "1h", "auth": {%q: {"username": %q, "password": %q}}}`,
		images, login.Username, login.Password)
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: pullgate-plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%q]
  defaultCacheDuration: 1h
  args: [credential-provider, --socket, %q, --state-dir, %q, --, %q]
`, images, filepath.Join(s.gate.Dir(), "admin.sock"), filepath.Join(s.gate.Dir(), "state"), path("plugin"))
	const flag = "--image-credential-provider-"
	s.kubelet.SetFlags(flag+"config", path("config.yaml"), flag+"bin-dir", dir)
	s.must(
		os.Symlink(program, path("pullgate-plugin")),
		os.WriteFile(path("plugin"), []byte("#!/bin/sh\ncat >/dev/null\ncat '"+path("answer.json")+"'\n"), 0o700),
		os.WriteFile(path("answer.json"), []byte(answer), 0o600),
		os.WriteFile(path("config.yaml"), []byte(config), 0o600),
	)
}
