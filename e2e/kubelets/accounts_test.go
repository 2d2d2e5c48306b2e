package kubelets_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// audience is that of the tokens for the credential provider.
const audience = "registry.test"

// A credential provider gives out logins for service accounts. What a pod proves with one belongs to its account: a
// rotated login needs no registry, another or a recreated account does. With the pod source, that also holds for pods
// that pull nothing, and after a restart.
// Shows: 001-18
func serviceAccounts(s *scenario) {
	s.letNodesRequestTokens()
	r := s.registry()
	for _, cacheType := range []string{"Token", "ServiceAccount"} {
		s.serviceAccountsOf(cacheType, r)
	}
	s.kubelet.SetFlags()
	s.must(s.restartKubelet(context.WithoutCancel(s.Context()), quick()))
}

func (s *scenario) serviceAccountsOf(cacheType string, r *node.Registry) {
	s.Helper()
	kind := strings.ToLower(cacheType)
	app := s.push(r, kind+"/app:1", node.Image{Content: s.Name() + cacheType})
	p := s.provider(r.Host()+"/"+s.name, cacheType)
	defer p.remove()
	s.must(s.restartKubelet(s.Context(), quick()))
	a, b, rotated := kind+"-a", kind+"-b", node.Login{Username: dora.Username, Password: "canary-7d1f-rotated"}
	of := func(team, account string, policy corev1.PullPolicy, logins ...node.Login) pod {
		return use(team, app, logins...).pulls(policy).but(func(p *corev1.Pod) { p.Spec.ServiceAccountName = account })
	}
	for team, accounts := range map[string][]string{a: {"app", "other"}, b: {"app"}} {
		for _, account := range accounts {
			s.account(team, account)
		}
	}
	p.gives(a, "app", dora) // the node has offered that of alice, which is bound to no account then
	p.gives(a, "other", rotated)
	p.gives(b, "app", rotated)
	before := s.accountReports()
	s.runSteps(
		runs("A, its account", of(a, "app", ifNotPresent), downloads),
		runs("A, its account again", of(a, "app", ifNotPresent), nothing),
	)
	if got, want := s.accountReports()-before, map[string]int{"Token": 1, "ServiceAccount": 1}[cacheType]; got != want {
		s.Errorf("%d logins of the account were reported; want %d", got, want)
	}

	p.gives(a, "app", rotated)
	s.must(s.restartKubelet(s.Context(), quick()), r.Down()) // the kubelet forgets what it has cached
	s.runSteps(
		runs("A, its login rotated, the registry down", of(a, "app", ifNotPresent), nothing),
		fails("A, another account, the registry down", of(a, "other", ifNotPresent), `connection refused`),
		fails("B, an account of the same name, the registry down", of(b, "app", ifNotPresent), `connection refused`),
	)
	s.must(r.Up())
	s.runSteps(
		refuses("A, another account", of(a, "other", ifNotPresent)),
		refuses("B, an account of the same name", of(b, "app", ifNotPresent)),
		runs("B, with a copy of the login in a secret", of(b, "", ifNotPresent, dora), manifest),
	)
	if s.sourced {
		s.must(r.Down(), s.gate.Restart(s.Context()))
		s.waitUntilSynced()
		s.runSteps(
			runs("A, Never, its account", of(a, "app", never), nothing),
			hides("A, Never, another account", of(a, "other", never)),
			hides("B, Never, an account of the same name", of(b, "app", never)),
		)
	}

	// The kubelet would give the login of the account from before to nobody else.
	s.must(s.core.ServiceAccounts(s.namespace(a)).Delete(s.Context(), "app", metav1.DeleteOptions{}))
	s.account(a, "app")
	s.must(r.Down())
	s.runSteps(fails("A, the account recreated, the registry down", of(a, "app", ifNotPresent), `connection refused`))
	s.must(r.Up())
	p.gives(a, "app", dora)
	s.must(s.restartKubelet(s.Context(), quick()))
	s.runSteps(
		runs("A, the account recreated", of(a, "app", ifNotPresent), manifest),
		runs("A, Always", of(a, "app", always), manifest),
	)
}

func (s *scenario) account(team, name string) {
	s.Helper()
	namespace := s.namespace(team)
	s.makeNamespace(namespace)
	_, err := s.core.ServiceAccounts(namespace).Create(s.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
}

// accountReports is how often pullgated has logged that a plugin returned a new credential for an account.
func (s *scenario) accountReports() int {
	s.Helper()
	log := testkit.Value(os.ReadFile(filepath.Join(s.gate.Dir(), "pullgated.log")))(s)
	return strings.Count(string(log), "Credentials of a service account reported by a credential provider")
}

// letNodesRequestTokens allows nodes to request tokens with the audience, which no volume of a pod names. The rest the
// Node authorizer allows too, for a fast kubelet too late.
func (s *scenario) letNodesRequestTokens() {
	s.Helper()
	name := metav1.ObjectMeta{Name: "nodes-request-tokens"}
	rule := func(resource, verb string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}}
	}
	rbac := s.cluster.Client.RbacV1()
	_, err := rbac.ClusterRoles().Create(s.Context(), &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		rule(audience, "request-serviceaccounts-token-audience"), rule("serviceaccounts", "get"),
		rule("serviceaccounts/token", "create"),
	}}, metav1.CreateOptions{})
	s.mustExist(err)
	_, err = rbac.ClusterRoleBindings().Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: name,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	s.mustExist(err)
}

// providerScript answers with the file of the account that the token is of.
const providerScript = `#!/bin/sh
set -e
dir=$(dirname "$0")
payload=$(sed -n 's/.*"serviceAccountToken":"[^".]*\.\([^".]*\)\..*/\1/p' | tr '_-' '/+')
while [ $((${#payload} % 4)) != 0 ]; do payload="$payload="; done
subject=$(printf %s "$payload" | base64 -d | sed -n 's/.*"sub":"system:serviceaccount:\([^"]*\)".*/\1/p')
cat "$dir/$subject.json"
`

// A provider is a credential provider plugin with tokens of service accounts, which the kubelet runs through pullgated.
type provider struct {
	s           *scenario
	dir, images string
}

func (s *scenario) provider(images, cacheType string) *provider {
	s.Helper()
	program := testkit.Value(node.Program("pullgated"))(s)
	p := &provider{s: s, dir: filepath.Join(s.Dir, "provider-of-"+s.name), images: images}
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: pullgate-provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%q]
  defaultCacheDuration: 1h
  args: [credential-provider, --socket, %q, --state-dir, %q, --, %q]
  tokenAttributes: {serviceAccountTokenAudience: %q, cacheType: %s, requireServiceAccount: true}
`, images, filepath.Join(s.gate.Dir(), "admin.sock"), filepath.Join(s.gate.Dir(), "state"), p.path("provider"),
		audience, cacheType)
	const flag = "--image-credential-provider-"
	s.kubelet.SetFlags(flag+"config", p.path("config.yaml"), flag+"bin-dir", p.dir)
	s.must(
		os.MkdirAll(p.dir, 0o700),
		os.Symlink(program, p.path("pullgate-provider")),
		os.WriteFile(p.path("provider"), []byte(providerScript), 0o700),
		os.WriteFile(p.path("config.yaml"), []byte(config), 0o600),
	)
	return p
}

func (p *provider) path(name string) string { return filepath.Join(p.dir, name) }

func (p *provider) remove() {
	if err := os.RemoveAll(p.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.s.Error(err)
	}
}

// gives makes the provider give out a login for an account.
func (p *provider) gives(team, account string, l node.Login) {
	p.s.Helper()
	answer := fmt.Sprintf(`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
  "cacheKeyType": "Registry", "cacheDuration": "1h", "auth": {%q: {"username": %q, "password": %q}}}`,
		p.images, l.Username, l.Password)
	p.s.must(os.WriteFile(p.path(p.s.namespace(team)+":"+account+".json"), []byte(answer), 0o600))
}
