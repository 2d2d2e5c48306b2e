package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/testkit"
)

// bearer asks for a token of a realm.
func bearer(realm string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer good" {
			const challenge = `Bearer realm=%q,service="registry",scope="repository:team/app:pull"`
			w.Header().Set("Www-Authenticate", fmt.Sprintf(challenge, realm))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tokens is a token server that knows alice, and an identity token, which both are the canary.
func tokens(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	switch {
	case r.Method == "POST" && r.FormValue("refresh_token") == canary && r.FormValue("grant_type") == "refresh_token":
		_, _ = w.Write([]byte(`{"access_token":"good"}`))
	case r.Method == "GET" && user == "alice" && password == canary && r.FormValue("scope") == "repository:team/app:pull":
		_, _ = w.Write([]byte(`{"token":"good"}`))
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func TestAuthentication(t *testing.T) {
	identity, token := admission.Login{IdentityToken: canary}, admission.Login{RegistryToken: "good"}
	viaToken := func(next http.Handler) http.Handler { return bearer("https://token.test/token", next) }
	for _, tc := range []struct {
		name       string
		ask        func(http.Handler) http.Handler
		credential admission.Login
		want       error
	}{
		{"Basic", basic, alice, nil},
		{"Basic without credential", basic, admission.Login{}, registry.ErrDenied},
		{"Basic with another password", basic, admission.Login{Username: "alice", Password: "other"}, registry.ErrDenied},
		{"Basic with an identity token", basic, identity, registry.ErrDenied},
		{"Bearer with a password", viaToken, alice, nil},
		{"Bearer with an identity token", viaToken, identity, nil},
		{"Bearer with a registry token", viaToken, token, nil},
		{"Bearer with another registry token", viaToken, admission.Login{RegistryToken: "bad"}, registry.ErrDenied},
		{"Bearer with another password", viaToken, admission.Login{Username: "alice", Password: "other"}, registry.ErrDenied},
		{"Bearer without credential", viaToken, admission.Login{}, registry.ErrDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, h := newNetwork(t), images(true)
			put(t, h, "team/app", "1", ociManifest, manifest("image", "", ""))
			n.https("registry.test", tc.ask(h))
			n.https("token.test", http.HandlerFunc(tokens))
			r := n.client(registry.Options{}).Repository(repository, tc.credential)
			for range 2 {
				if err := tagged(t, r); !errors.Is(err, tc.want) {
					t.Errorf("Manifest = %v; want %v", err, tc.want)
				}
			}
			if got := n.seen(); tc.want == nil && len(got) > 4 {
				t.Errorf("requests %v; want that a second one needs no challenge", got)
			}
		})
	}
}

// A registry without users gives tokens to everybody.
func TestAnonymousToken(t *testing.T) {
	n, h := newNetwork(t), images(true)
	put(t, h, "team/app", "1", ociManifest, manifest("image", "", ""))
	n.https("registry.test", bearer("https://token.test/", h))
	n.https("token.test", answerWith(200, `{"token":"good"}`))
	testkit.Must(t, tagged(t, n.client(registry.Options{}).Repository(repository, admission.Login{})))
}

func TestA401AfterA200(t *testing.T) {
	for then, want := range map[int64]error{2: nil, -1: registry.ErrDenied} { // which token is valid then
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			n, h := newNetwork(t), images(true)
			put(t, h, "team/app", "1", ociManifest, manifest("image", "", ""))
			var issued, valid atomic.Int64
			n.https("token.test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]string{"token": fmt.Sprint(issued.Add(1))})
			}))
			n.https("registry.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != fmt.Sprintf("Bearer %d", valid.Load()) {
					w.Header().Set("Www-Authenticate", `Bearer realm="https://token.test/"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				h.ServeHTTP(w, r)
			}))
			r := n.repository()
			valid.Store(1)
			testkit.Must(t, tagged(t, r))
			valid.Store(then)
			if err := tagged(t, r); !errors.Is(err, want) {
				t.Errorf("Manifest = %v; want %v", err, want)
			}
			if got := n.seen(); len(got) != 6 {
				t.Errorf("%d requests, want 6: %v", len(got), got)
			}
		})
	}
}

func TestTokenServers(t *testing.T) {
	for _, tc := range []struct {
		name, realm string
		want        error
		leaked      []string
	}{
		{"http for a registry with https", "http://plain.test/", registry.ErrMalformed, nil},
		{"no realm", "", registry.ErrMalformed, nil},
		{"another scheme", "file:///etc/passwd", registry.ErrMalformed, nil},
		{"a private address", "https://10.0.0.1/", registry.ErrMalformed, nil},
		{"a loopback address", "https://127.0.0.1/", registry.ErrMalformed, nil},
		{"a name of a link-local address", "https://metadata.test/", registry.ErrMalformed, nil},
		{"down", "https://down.test/", registry.ErrUnavailable, nil},
		{"503", "https://busy.test/", registry.ErrUnavailable, []string{"busy.test"}},
		{"403", "https://denies.test/", registry.ErrDenied, []string{"denies.test"}},
		{"no token", "https://empty.test/", registry.ErrMalformed, []string{"empty.test"}},
		{"an endless token", "https://endless.test/", registry.ErrMalformed, []string{"endless.test"}},
		{"a redirect", "https://redirects.test/", registry.ErrMalformed, []string{"redirects.test"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("registry.test", bearer(tc.realm, images(true)))
			n.http("plain.test", http.HandlerFunc(tokens))
			n.https("busy.test", status(503))
			n.https("denies.test", answerWith(403, canary))
			n.https("empty.test", answerWith(200, `{"refresh_token":"`+canary+`"}`))
			n.https("endless.test", answerWith(200, strings.Repeat(" ", 1<<20)))
			n.https("redirects.test", answerWith(307, "", "Location", "https://other.test/"))
			n.https("other.test", http.HandlerFunc(tokens))
			n.resolved["metadata.test:443"], n.resolved["127.0.0.1:443"] = "169.254.169.254:443", "127.0.0.1:443"
			for _, c := range []admission.Login{alice, {IdentityToken: canary}} {
				err := tagged(t, n.client(registry.Options{}).Repository(repository, c))
				if !errors.Is(err, tc.want) || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), canary) {
					t.Errorf("Manifest = %v; want %v", err, tc.want)
				}
			}
			if got := n.leaked(); !cmp.Equal(got, tc.leaked) {
				t.Errorf("%v received the credential; want %v", got, tc.leaked)
			}
		})
	}
}

// A registry over http may have its token server there as well.
func TestTokenOverHTTPForARegistryOverHTTP(t *testing.T) {
	n, h := newNetwork(t), images(true)
	put(t, h, "team/app", "1", ociManifest, manifest("image", "", ""))
	n.http("registry.test", bearer("http://token.test/", h))
	n.http("token.test", http.HandlerFunc(tokens))
	testkit.Must(t, tagged(t, n.configured(`server = "http://registry.test"`, alice)))
}

func TestNodeCredentials(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{
		"config.json": `{"credsStore":"none","auths":{
			"https://index.docker.io/v1/":{"auth":"aHViOnB3"},
			"registry.test":{"username":"all","password":"pw"},
			"registry.test/team":{"auth":"dGVhbTpwdzpjb2xvbg==","email":"x"},
			"*.wild.test":{"identitytoken":"id"},
			"empty.test":{}}}`,
		".dockercfg":  `{"registry.test":{"username":"second","password":"pw"},"only.test":{"registrytoken":"rt"}}`,
		"broken.json": `{"auths":{"registry.test":{"auth":"` + canary + `"}}}`,
		"text.json":   canary,
	})
	login := func(repository string, names ...string) (admission.Login, error) {
		for i, name := range names {
			names[i] = dir + "/" + name
		}
		return registry.NodeLogin(names, repository)
	}
	for name, want := range map[string]admission.Login{
		"docker.io/library/busybox": {Username: "hub", Password: "pw"},
		"registry.test/other/app":   {Username: "all", Password: "pw"},
		"registry.test/team/app":    {Username: "team", Password: "pw:colon"},
		"a.wild.test/app":           {IdentityToken: "id"},
		"wild.test/app":             {},
		"empty.test/app":            {},
		"only.test/app":             {RegistryToken: "rt"},
		"registry.test:5000/app":    {},
	} {
		if got, err := login(name, "absent.json", "config.json", ".dockercfg"); err != nil || got != want {
			t.Errorf("For(%s) is not the wanted credential, or %v", name, err)
		}
	}
	for _, name := range []string{"broken.json", "text.json", "."} {
		if got, err := login(repository, name); err == nil || !got.Anonymous() || strings.Contains(err.Error(), canary) {
			t.Errorf("For of %s: error %v; want one without content", name, err)
		}
	}
	if got, err := login(repository); err != nil || !got.Anonymous() {
		t.Errorf("For without files: %v", err)
	}
}
