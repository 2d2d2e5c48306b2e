package nodecreds_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/pkg/credential"
)

var builder = nodecreds.Account{Namespace: "team-a", Name: "builder", UID: "5c0b8a16-3d39-4e62-9f0e-0b9a4f3d2c11"}

// claims are those of a token that a kube-apiserver issues. k8s and account are parts of them.
func claims(a nodecreds.Account) (all, k8s, account map[string]any) {
	account = map[string]any{"name": a.Name, "uid": a.UID}
	k8s = map[string]any{
		"namespace": a.Namespace, "node": map[string]string{"name": "node-1", "uid": "n1"},
		"pod": map[string]string{"name": "web", "uid": "p1"}, "serviceaccount": account,
	}
	return map[string]any{
		"aud": []string{"registry.example"}, "exp": 4102444800, "iat": 1, "iss": "https://kubernetes.default.svc",
		"sub": "system:serviceaccount:" + a.Namespace + ":" + a.Name, "kubernetes.io": k8s,
	}, k8s, account
}

// tokenFor returns a token of an account, after a change of its claims.
func tokenFor(a nodecreds.Account, change func(all, k8s, account map[string]any)) string {
	all, k8s, account := claims(a)
	change(all, k8s, account)
	return tokenOf(all)
}

func unchanged(map[string]any, map[string]any, map[string]any) {}

func tokenOf(payload any) string {
	part := func(v any) string {
		text, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return part(map[string]string{"alg": "RS256"}) + "." + part(payload) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(canary))
}

func boundRequest(token string) string {
	text, _ := json.Marshal(token)
	return strings.TrimSuffix(request, "}") + `,"serviceAccountToken":` + string(text) +
		`,"serviceAccountAnnotations":{"a":"b"}}`
}

func TestReportNamesTheServiceAccountOfTheToken(t *testing.T) {
	n := newKeyNode(t)
	r, err := n.report(boundRequest(tokenFor(builder, unchanged)), good)
	if err != nil || r.Account != builder {
		t.Errorf("Report is for %+v, %v; want %+v", r.Account, err, builder)
	}
	n.want("report", r, map[string]string{n.id("u", canary): "*.repo.test"})
	if r, err = n.report(request, good); err != nil || r.Account != (nodecreds.Account{}) {
		t.Errorf("Report without a token is for %+v, %v; want every pod", r.Account, err)
	}
}

// A token without usable claims gives neither an account nor a report for every pod.
func TestTokenWithoutUsableClaimsIsNotReported(t *testing.T) {
	n := newKeyNode(t)
	with := func(change func(all, k8s, account map[string]any)) string { return tokenFor(builder, change) }
	valid := with(unchanged)
	parts := strings.Split(valid, ".")
	for name, token := range map[string]string{
		"no JWT":            canary,
		"two parts":         parts[0] + "." + parts[1],
		"four parts":        valid + ".a",
		"not base64":        parts[0] + ".?." + parts[2],
		"padded base64":     parts[0] + "." + parts[1] + "=." + parts[2],
		"not JSON":          parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(canary)) + "." + parts[2],
		"cut JSON":          parts[0] + "." + parts[1][:len(parts[1])-8] + "." + parts[2],
		"empty payload":     parts[0] + ".." + parts[2],
		"a list":            tokenOf([]string{canary}),
		"null":              tokenOf(nil),
		"of another issuer": tokenOf(map[string]string{"sub": canary, "iss": "https://issuer.example"}),
		"no subject":        with(func(all, _, _ map[string]any) { delete(all, "sub") }),
		"another subject": with(func(all, _, _ map[string]any) {
			all["sub"] = "system:serviceaccount:team-b:builder"
		}),
		"subject of another type": with(func(all, _, _ map[string]any) { all["sub"] = 5 }),
		"no claims of Kubernetes": with(func(all, _, _ map[string]any) { delete(all, "kubernetes.io") }),
		"claims of another type":  with(func(all, _, _ map[string]any) { all["kubernetes.io"] = canary }),
		"no namespace":            with(func(_, k8s, _ map[string]any) { delete(k8s, "namespace") }),
		"no account":              with(func(_, k8s, _ map[string]any) { delete(k8s, "serviceaccount") }),
		"no name":                 with(func(_, _, account map[string]any) { delete(account, "name") }),
		"no UID":                  with(func(_, _, account map[string]any) { delete(account, "uid") }),
		"empty UID":               with(func(_, _, account map[string]any) { account["uid"] = "" }),
		"UID with a blank":        with(func(_, _, account map[string]any) { account["uid"] = "a b" }),
		"huge UID":                with(func(_, _, account map[string]any) { account["uid"] = strings.Repeat("a", 129) }),
		"UID of another type":     with(func(_, _, account map[string]any) { account["uid"] = 1 }),
		"name with a slash":       tokenFor(nodecreds.Account{Namespace: "a", Name: "a/b", UID: "u"}, unchanged),
		"name with a line":        tokenFor(nodecreds.Account{Namespace: "a", Name: "a\nb", UID: "u"}, unchanged),
		"huge":                    with(func(all, _, _ map[string]any) { all["more"] = strings.Repeat("a", 64<<10) }),
	} {
		r, err := n.report(boundRequest(token), good)
		if err == nil || strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), token) && token != "" {
			t.Errorf("%s: Report = %v; want one line without the token", name, err)
		}
		n.want(name, r, map[string]string{})
	}
}

func (n *node) accounts(repository, password string) string {
	var all []string
	for _, a := range n.creds.AccountsOf(repository, n.id(password)) {
		all = append(all, a.Ref.Namespace+"/"+a.Ref.Name+" "+a.Ref.UID)
	}
	return strings.Join(all, ", ")
}

func (n *node) wantAccounts(repository, password, want string) {
	n.Helper()
	if got := n.accounts(repository, password); got != want {
		n.Errorf("accounts of %q for %s: %q; want %q", password, repository, got, want)
	}
}

func named(name, uid string) nodecreds.Account {
	return nodecreds.Account{Namespace: "team-a", Name: name, UID: uid}
}

func TestReportsAboutAccountsEnd(t *testing.T) {
	inNode(t, nil, func(n *node) {
		hour := func() time.Time { return time.Now().Add(time.Hour) }
		if n.creds.HasAccounts() {
			t.Error("there are accounts before the first report")
		}
		n.news(n.creds.AddBound(named("app", "u1"), []string{"repo.test/team"}, n.id("a"), hour()), true)
		n.news(n.creds.AddBound(named("app", "u1"), []string{"repo.test/team"}, n.id("a"), hour()), false)
		n.news(n.creds.AddBound(named("other", "u2"), []string{"repo.test"}, n.id("a"), hour()), true)
		for what, news := range map[string]bool{
			"expired":    n.creds.AddBound(named("app", "u1"), []string{"repo.test"}, n.id("b"), time.Now()),
			"no pattern": n.creds.AddBound(named("app", "u1"), nil, n.id("b"), hour()),
			"no ID":      n.creds.AddBound(named("app", "u1"), []string{"repo.test"}, "", hour()),
			"no UID":     n.creds.AddBound(named("app", ""), []string{"repo.test"}, n.id("b"), hour()),
			"no account": n.creds.AddBound(nodecreds.Account{}, []string{"repo.test"}, n.id("b"), hour()),
		} {
			if news {
				t.Errorf("%s: a report is kept", what)
			}
		}
		n.wantAccounts(app, "a", "team-a/serviceaccount/app u1, team-a/serviceaccount/other u2")
		n.wantAccounts("repo.test/elsewhere", "a", "team-a/serviceaccount/other u2")
		n.wantAccounts(app, "b", "")
		n.want(app, "a", false) // it is not for every pod

		// A recreated account is another one: what was given out for the earlier one is for no account.
		n.news(n.creds.AddBound(named("app", "u3"), []string{"repo.test"}, n.id("c"), hour()), true)
		n.wantAccounts(app, "a", "team-a/serviceaccount/other u2")
		n.wantAccounts(app, "c", "team-a/serviceaccount/app u3")
		time.Sleep(time.Hour)
		n.wantAccounts(app, "a", "")
		n.wantAccounts(app, "c", "")
		if !n.creds.HasAccounts() {
			t.Error("there are no accounts after a report")
		}
	})
}

// A tenant whose pods get many tokens loses its own reports, and no other tenant's, nor one of the node.
func TestReportsAboutAccountsAreBoundedForEachNamespace(t *testing.T) {
	inNode(t, nil, func(n *node) {
		quiet := nodecreds.Account{Namespace: "quiet", Name: "app", UID: "q"}
		n.creds.AddBound(quiet, []string{"repo.test"}, n.id("quiet"), time.Now().Add(time.Second))
		n.add([]string{"repo.test"}, n.id("node"), time.Now().Add(time.Second))
		for i := range 2500 {
			n.creds.AddBound(named("app", "u1"), []string{"repo.test"}, n.id(fmt.Sprint(i)),
				time.Now().Add(time.Hour+time.Duration(i)*time.Second))
		}
		kept := 0
		for i := range 2500 {
			if n.accounts(app, fmt.Sprint(i)) != "" {
				kept++
			}
		}
		if kept != 2047 {
			t.Errorf("%d reports of one account are kept; want 2047, beside that of another namespace", kept)
		}
		late := nodecreds.Account{Namespace: "late", Name: "app", UID: "l"}
		n.creds.AddBound(late, []string{"repo.test"}, n.id("late"), time.Now().Add(time.Minute))
		n.wantAccounts(app, "late", "late/serviceaccount/app l")
		n.wantAccounts(app, "2499", "team-a/serviceaccount/app u1")
		n.wantAccounts(app, "quiet", "quiet/serviceaccount/app q")
		n.want(app, "node", true)
	})
}

// A kubelet asks for each image or registry, and a provider may answer with the same credential for other patterns.
func TestReportsOfOneCredentialForOtherImagesAdd(t *testing.T) {
	inNode(t, nil, func(n *node) {
		hour := time.Now().Add(time.Hour)
		n.news(n.creds.AddBound(named("app", "u1"), []string{"repo.test/one"}, n.id("a"), hour), true)
		n.news(n.creds.AddBound(named("app", "u1"), []string{"repo.test/two"}, n.id("a"), hour.Add(time.Hour)), true)
		n.wantAccounts("repo.test/one", "a", "team-a/serviceaccount/app u1")
		n.wantAccounts("repo.test/two", "a", "team-a/serviceaccount/app u1")
		n.news(n.creds.AddBound(named("app", "u1"), []string{"repo.test/two", "repo.test"}, n.id("a"), hour), true)
		n.wantAccounts("repo.test/two", "a", "team-a/serviceaccount/app u1")
		time.Sleep(time.Hour)
		n.wantAccounts("repo.test/one", "a", "")
		n.wantAccounts("repo.test/two", "a", "team-a/serviceaccount/app u1")
	})
}

func TestReportAboutAnAccountLastsADay(t *testing.T) {
	inNode(t, nil, func(n *node) {
		n.creds.AddBound(named("app", "u1"), []string{"repo.test"}, n.id("a"), time.Now().Add(1000*time.Hour))
		time.Sleep(24*time.Hour - time.Second)
		n.wantAccounts(app, "a", "team-a/serviceaccount/app u1")
		time.Sleep(time.Second)
		n.wantAccounts(app, "a", "")
	})
}

// To be run under the race detector.
func TestAccountsAreSafeForConcurrentUse(t *testing.T) {
	c := nodecreds.New(t.Context(), filepath.Join(t.TempDir(), "node-credentials.json"), nil, credential.NewKey())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				id := credential.ID(fmt.Sprint(i % 7))
				c.AddBound(named(fmt.Sprint("app", i%3), fmt.Sprint("u", (i+g)%2)), []string{"repo.test"}, id,
					time.Now().Add(time.Hour))
				all := c.AccountsOf(app, id)
				seen := map[string]bool{}
				for _, a := range all {
					if seen[a.Ref.Name] {
						t.Errorf("two accounts of one name: %v", all)
					}
					seen[a.Ref.Name] = true
				}
			}
		})
	}
	wg.Wait()
}
