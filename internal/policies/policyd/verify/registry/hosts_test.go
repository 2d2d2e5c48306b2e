package registry_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

// serving answers each request with the content of a digest, by its name.
func serving(content string) http.Handler { return answerWith(200, content) }

// hosts returns the hosts of requests in their order, without repetitions.
func hostsOf(requests []string) []string {
	var hosts []string
	for _, r := range requests {
		if host, _, _ := strings.Cut(r, "/"); len(hosts) == 0 || hosts[len(hosts)-1] != host {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func TestHostsAreAskedInOrder(t *testing.T) {
	data := string(manifest("image", "", ""))
	d := digest.FromString(data).String()
	const mirrors = `[host."https://z.test"]
[host."https://a.test"]
`
	for _, tc := range []struct {
		name, folder, toml string
		servers            map[string]http.Handler
		tag                bool
		want               []string // that are asked
		err                error
	}{
		{"order of the file", "registry.test", mirrors, map[string]http.Handler{"z.test": serving(data), "a.test": serving(data)}, true, []string{"z.test"}, nil},
		{"the next if the first is down", "registry.test", mirrors, map[string]http.Handler{"a.test": serving(data)}, true, []string{"a.test"}, nil},
		{"the next if the first does not have it", "registry.test", mirrors, map[string]http.Handler{"z.test": status(404), "a.test": serving(data)}, true, []string{"z.test", "a.test"}, nil},
		{"the next if the first denies", "registry.test", mirrors, map[string]http.Handler{"z.test": status(403), "a.test": serving(data)}, true, []string{"z.test", "a.test"}, nil},
		{"the next if the first has other content", "registry.test", mirrors, map[string]http.Handler{"z.test": serving("other"), "a.test": serving(data)}, false, []string{"z.test", "a.test"}, nil},
		{"the registry at the end", "registry.test", mirrors, map[string]http.Handler{"z.test": status(500), "a.test": status(404), "registry.test": serving(data)}, true, []string{"z.test", "a.test", "registry.test"}, nil},
		{"the error is that of the registry", "registry.test", mirrors, map[string]http.Handler{"z.test": status(500), "registry.test": status(404)}, true, []string{"z.test", "registry.test"}, registry.ErrNotFound},
		{"down is no answer", "registry.test", mirrors, map[string]http.Handler{"z.test": status(404)}, true, []string{"z.test"}, registry.ErrUnavailable},
		{"invalid content is reported in any case", "registry.test", mirrors, map[string]http.Handler{"z.test": serving("other"), "registry.test": status(503)}, false, []string{"z.test", "registry.test"}, registry.ErrMismatch},
		{"server in place of the registry", "registry.test", `server = "https://z.test"`, map[string]http.Handler{"z.test": serving(data), "registry.test": serving(data)}, true, []string{"z.test"}, nil},
		{"server without scheme", "registry.test", `server = "z.test"`, map[string]http.Handler{"z.test": serving(data)}, true, []string{"z.test"}, nil},
		{"_default", "_default", mirrors, map[string]http.Handler{"z.test": serving(data)}, true, []string{"z.test"}, nil},
		{"another registry", "other.test", mirrors, map[string]http.Handler{"z.test": serving(data), "registry.test": serving(data)}, true, []string{"registry.test"}, nil},
		{"no resolve for tags", "registry.test", "[host.\"https://z.test\"]\ncapabilities = [\"pull\"]", map[string]http.Handler{"z.test": serving(data), "registry.test": serving(data)}, true, []string{"registry.test"}, nil},
		{"pull for digests", "registry.test", "[host.\"https://z.test\"]\ncapabilities = [\"pull\"]", map[string]http.Handler{"z.test": serving(data), "registry.test": serving(data)}, false, []string{"z.test"}, nil},
		{"push is neither", "registry.test", "[host.\"https://z.test\"]\ncapabilities = [\"push\"]", map[string]http.Handler{"z.test": serving(data), "registry.test": serving(data)}, false, []string{"registry.test"}, nil},
		{"no host at all", "registry.test", "server = \"https://registry.test\"\ncapabilities = [\"push\"]", map[string]http.Handler{"registry.test": serving(data)}, false, nil, registry.ErrUnavailable},
		{"http", "registry.test", `server = "http://plain.test"`, map[string]http.Handler{"plain.test": serving(data)}, true, []string{"plain.test"}, nil},
		{"dial_timeout", "registry.test", "[host.\"https://z.test\"]\ndial_timeout = \"1s\"", map[string]http.Handler{"registry.test": serving(data)}, true, []string{"registry.test"}, nil},
		{"unknown keys", "registry.test", "new = 1\n[host.\"https://z.test\"]\nnew = {a = 1}", map[string]http.Handler{"z.test": serving(data)}, true, []string{"z.test"}, nil},
		{"an empty file", "registry.test", "", map[string]http.Handler{"registry.test": serving(data)}, true, []string{"registry.test"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			for name, h := range tc.servers {
				if name == "plain.test" {
					n.http(name, h)
				} else {
					n.https(name, h)
				}
			}
			hosts := write(t, t.TempDir(), map[string]string{tc.folder + "/hosts.toml": tc.toml})
			ref := d
			if tc.tag {
				ref = "1"
			}
			_, err := n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{}).Manifest(t.Context(), ref)
			if got := hostsOf(n.seen()); !cmp.Equal(got, tc.want) || !errors.Is(err, tc.err) {
				t.Errorf("asked %v, %v; want %v, %v", got, err, tc.want, tc.err)
			}
		})
	}
}

func TestFolderOfARegistryWithAPort(t *testing.T) {
	for _, folder := range []string{"registry.test_5000_", "registry.test:5000"} {
		n := newNetwork(t)
		n.https("z.test", serving("x"))
		hosts := write(t, t.TempDir(), map[string]string{
			folder + "/hosts.toml":        `server = "https://z.test"`,
			"registry.test/hosts.toml":    `server = "https://wrong.test"`,
			"_default/hosts.toml":         `server = "https://wrong.test"`,
			"registry.test_443_/wrong.md": ``,
		})
		r := n.client(registry.Options{HostsDir: hosts}).Repository("registry.test:5000/app", admission.Login{})
		if _, err := r.Manifest(t.Context(), "1"); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
		if got, want := n.seen(), []string{"z.test/v2/app/manifests/1?ns=registry.test%3A5000"}; !cmp.Equal(got, want) {
			t.Errorf("%s: requests %v; want %v", folder, got, want)
		}
	}
}

func TestPathsOfHosts(t *testing.T) {
	for toml, want := range map[string]string{
		`server = "https://registry.test"`:                            "registry.test/v2/team/app/manifests/1",
		`server = "https://z.test"`:                                   "z.test/v2/team/app/manifests/1?ns=registry.test",
		`server = "https://z.test/"`:                                  "z.test/v2/team/app/manifests/1?ns=registry.test",
		`server = "https://z.test/v2/cache/"`:                         "z.test/v2/cache/v2/team/app/manifests/1?ns=registry.test",
		`server = "https://z.test/cache"`:                             "z.test/cache/v2/team/app/manifests/1?ns=registry.test",
		`server = "https://z.test/cache/v2"`:                          "z.test/cache/v2/team/app/manifests/1?ns=registry.test",
		"server = \"https://z.test/v2/cache/\"\noverride_path = true": "z.test/v2/cache/team/app/manifests/1?ns=registry.test",
		"server = \"https://z.test\"\noverride_path = true":           "z.test/team/app/manifests/1?ns=registry.test",
	} {
		n := newNetwork(t)
		n.https("z.test", serving("x"))
		n.https("registry.test", serving("x"))
		hosts := write(t, t.TempDir(), map[string]string{"registry.test/hosts.toml": toml})
		_, err := n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{}).Manifest(t.Context(), "1")
		if got := n.seen(); err != nil || !cmp.Equal(got, []string{want}) {
			t.Errorf("%s: requests %v, %v; want %s", toml, got, err, want)
		}
	}
}

func TestDockerHub(t *testing.T) {
	n := newNetwork(t)
	n.https("registry-1.docker.io", serving("x"))
	c := n.client(registry.Options{})
	if _, err := c.Repository("docker.io/library/busybox", admission.Login{}).Manifest(t.Context(), "1"); err != nil {
		t.Error(err)
	}
	if got, want := n.seen(), []string{"registry-1.docker.io/v2/library/busybox/manifests/1"}; !cmp.Equal(got, want) {
		t.Errorf("requests %v; want %v", got, want)
	}
}

// A registry on this machine is asked over https, without verification, and over http if it does not speak https.
func TestLocalhost(t *testing.T) {
	for name, serve := range map[string]func(*network, string, http.Handler) *httptest.Server{"http": (*network).http, "https": (*network).https} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			address := serve(n, "localhost:5000", basic(serving("x"))).Listener.Addr().String()
			n.servers[address] = address
			for _, registryName := range []string{address, strings.Replace(address, "127.0.0.1", "localhost", 1)} {
				n.servers[registryName] = address
				c := n.client(registry.Options{RootCAs: x509.NewCertPool()})
				if _, err := c.Repository(registryName+"/app", admission.Login{Username: "alice", Password: canary}).Manifest(t.Context(), "1"); err != nil {
					t.Errorf("%s: %v; want nil", registryName, err)
				}
			}
		})
	}
}

// A registry that is not on this machine is never asked over http, also where go-containerregistry would.
func TestNoHTTPWithoutConfiguration(t *testing.T) {
	for _, name := range []string{"10.0.0.1:5000", "192.168.1.1:80", "registry.local:5000", "registry.test:80"} {
		n := newNetwork(t)
		n.http(name, basic(serving("x")))
		_, err := n.client(registry.Options{}).Repository(name+"/app", admission.Login{Username: "alice", Password: canary}).Manifest(t.Context(), "1")
		if got := n.seen(); !errors.Is(err, registry.ErrUnavailable) || got != nil {
			t.Errorf("%s: %v, requests %v; want ErrUnavailable and none", name, err, got)
		}
	}
}

func TestTLSOfHosts(t *testing.T) {
	a, err := authority()
	must(t, err)
	pair, err := a.Issue(pkix.Name{CommonName: "node"}, time.Time{})
	must(t, err)
	files := map[string]string{
		"registry.test/ca.pem":     string(a.PEM()),
		"registry.test/node.crt.":  string(pair.Certificate),
		"registry.test/node.key":   string(pair.Key),
		"registry.test/both.pem":   string(pair.Certificate) + string(pair.Key),
		"registry.test/readme.txt": "",
	}
	for _, tc := range []struct {
		name, toml string
		files      map[string]string
		client     bool // the server wants a certificate
		want       error
	}{
		{"unknown authority", ``, nil, false, registry.ErrUnavailable},
		{"ca", `ca = "ca.pem"`, nil, false, nil},
		{"list of ca", `ca = ["ca.pem", "ca.pem"]`, nil, false, nil},
		{"skip_verify", `skip_verify = true`, nil, false, nil},
		{"skip_verify = false", `skip_verify = false`, nil, false, registry.ErrUnavailable},
		{"of another host", "[host.\"https://down.test\"]\nskip_verify = true\nca = \"ca.pem\"", nil, false, registry.ErrUnavailable},
		{"no client certificate", `ca = "ca.pem"`, nil, true, registry.ErrUnavailable},
		{"client in one file", "ca = \"ca.pem\"\nclient = \"both.pem\"", nil, true, nil},
		{"client in a list", "ca = \"ca.pem\"\nclient = [\"both.pem\"]", nil, true, nil},
		{"client in pairs", "ca = \"ca.pem\"\nclient = [[\"node.crt.\", \"node.key\"]]", nil, true, nil},
		{"client in a pair with one file", "ca = \"ca.pem\"\nclient = [[\"both.pem\", \"\"]]", nil, true, nil},
		{"docker's names", "", map[string]string{"registry.test/x.crt": string(a.PEM()), "registry.test/x.cert": string(pair.Certificate), "registry.test/x.key": string(pair.Key)}, true, nil},
		{"docker's names without key", "", map[string]string{"registry.test/x.crt": string(a.PEM()), "registry.test/x.cert": string(pair.Certificate) + string(pair.Key)}, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			s := n.https("registry.test", serving("x"))
			if tc.client {
				s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, a.Pool()
			}
			hosts := write(t, write(t, t.TempDir(), files), tc.files)
			if tc.toml != "" {
				write(t, hosts, map[string]string{"registry.test/hosts.toml": tc.toml})
			}
			if err := registry.CheckHosts(hosts); err != nil {
				t.Errorf("CheckHosts = %v", err)
			}
			r := n.client(registry.Options{HostsDir: hosts, RootCAs: x509.NewCertPool()}).Repository(repository, admission.Login{})
			if _, err := r.Manifest(t.Context(), "1"); !errors.Is(err, tc.want) {
				t.Errorf("Manifest = %v; want %v", err, tc.want)
			}
		})
	}
}

func TestHeadersAreSentToTheirHostAlone(t *testing.T) {
	n := newNetwork(t)
	var got http.Header
	n.https("z.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		w.WriteHeader(404)
	}))
	n.https("registry.test", serving("x"))
	hosts := write(t, t.TempDir(), map[string]string{"registry.test/hosts.toml": `[host."https://z.test"]
[host."https://z.test".header]
  Authorization = "Basic ` + canary + `"
  x-list = ["a", "b"]
`})
	if _, err := n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{}).Manifest(t.Context(), "1"); err != nil {
		t.Error(err)
	}
	if got.Get("Authorization") != "Basic "+canary || !cmp.Equal(got.Values("X-List"), []string{"a", "b"}) {
		t.Errorf("header %v", got)
	}
	if got := n.leaked(); !cmp.Equal(got, []string{"z.test"}) {
		t.Errorf("%v received the header; want z.test alone", got)
	}
}

// The credential of a pull is for the registry, and for hosts that may say what a tag of it is.
func TestWhichHostsReceiveTheCredential(t *testing.T) {
	for _, tc := range []struct {
		name, toml string
		want       []string
	}{
		{"a mirror that may only pull", "[host.\"https://z.test\"]\ncapabilities = [\"pull\"]", []string{"registry.test"}},
		{"a mirror that may resolve", "[host.\"https://z.test\"]\ncapabilities = [\"pull\", \"resolve\"]", []string{"z.test"}},
		{"server", `server = "https://z.test"`, []string{"z.test"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("z.test", basic(serving("x")))
			n.https("registry.test", basic(serving("x")))
			hosts := write(t, t.TempDir(), map[string]string{"registry.test/hosts.toml": tc.toml})
			r := n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{Username: "alice", Password: canary})
			if _, err := r.Blob(t.Context(), digest.FromString("x").String(), 10); err != nil {
				t.Error(err)
			}
			if got := n.leaked(); !cmp.Equal(got, tc.want) {
				t.Errorf("%v received the credential; want %v", got, tc.want)
			}
		})
	}
}

// What a list of signatures leads to is judged by its signature, so that a host need not be trusted with tags.
func TestSignaturesAreReadFromHostsThatMayPull(t *testing.T) {
	subject := digest.FromString("subject").String()
	hosts := write(t, t.TempDir(), map[string]string{"registry.test/hosts.toml": "[host.\"https://z.test\"]\ncapabilities = [\"pull\"]"})
	tag := strings.Replace(subject, ":", "-", 1)

	n, h := newNetwork(t), images(true)
	n.https("z.test", h)
	put(t, h, "team/app", tag+".sig", ociManifest, manifest("old signature", "", ""))
	put(t, h, "team/app", "", ociManifest, manifest("signature", "", subject))
	r := n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{})
	if list, _, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 1 {
		t.Errorf("Referrers = %v, %v; want one", list, err)
	}
	if _, err := r.Manifest(t.Context(), tag+".sig"); err != nil {
		t.Errorf("Manifest of the signature tag: %v", err)
	}
	// Without any, the next host is asked; as it is down, there may be some.
	if list, _, err := r.Referrers(t.Context(), digest.FromString("other").String()); !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("Referrers = %v, %v; want ErrUnavailable", list, err)
	}
	n.https("registry.test", images(true))
	if list, _, err := r.Referrers(t.Context(), digest.FromString("other").String()); err != nil || len(list) != 0 {
		t.Errorf("Referrers = %v, %v; want none", list, err)
	}
}

func TestHostsAreReadWhenTheyChange(t *testing.T) {
	n := newNetwork(t)
	n.https("a.test", serving("x"))
	n.https("b.test", serving("x"))
	hosts := write(t, t.TempDir(), map[string]string{"registry.test/hosts.toml": `server = "https://a.test"`})
	c := n.client(registry.Options{HostsDir: hosts})
	for _, step := range []struct{ toml, want string }{
		{`server = "https://a.test"`, "a.test"},
		{`server = "https://b.test"`, "b.test"},
		{`server = `, ""},
		{`server = "https://a.test"`, "a.test"},
	} {
		write(t, hosts, map[string]string{"registry.test/hosts.toml": step.toml})
		_, err := c.Repository(repository, admission.Login{}).Manifest(t.Context(), "1")
		if got := strings.Join(hostsOf(n.seen()), " "); got != step.want || (err == nil) != (got != "") {
			t.Errorf("%s: asked %s, %v; want %s", step.toml, got, err, step.want)
		}
	}
}

func TestInvalidHosts(t *testing.T) {
	for toml, want := range map[string]string{
		"server = \n":                                "line 1, column",
		"server = 1\n":                               "server: not valid TOML, or a value of a wrong type",
		`server = "ftp://a"`:                         `server or host "ftp://a": must be an http or https URL`,
		`server = "https://"`:                        `server or host "https://": must be`,
		`server = "https://u:` + canary + `@a"`:      `server or host "https://[redacted]@a": must be an http or https URL without user`,
		`server = "https://a?k=` + canary + `"`:      `server or host "https://a": must be`,
		`capabilities = ["pull", "delete"]`:          `capabilities: "delete": must be pull, resolve, push or referrers`,
		`capabilities = "pull"`:                      `capabilities: not valid TOML, or a value of a wrong type`,
		`dial_timeout = "fast"`:                      `dial_timeout: "fast": must be a positive duration such as "10s"`,
		`dial_timeout = "-1s"`:                       `dial_timeout: "-1s": must be a positive duration`,
		`ca = 1`:                                     "ca: must be a string or a list of strings",
		`ca = [1]`:                                   "ca: must be a string or a list of strings",
		`ca = "absent.pem"`:                          "registry.test/absent.pem: no such file or directory",
		`ca = "hosts.toml"`:                          "ca: hosts.toml: no certificate in PEM",
		`client = [["hosts.toml"]]`:                  "client: must be a path, a list of paths, or a list of [certificate, key]",
		`client = {a = 1}`:                           "client: must be a path",
		`client = "hosts.toml"`:                      "client: tls: failed to find any PEM data",
		`skip_verify = "no"`:                         "skip_verify: not valid TOML, or a value of a wrong type",
		"[header]\nx = 1":                            `header."x": must be a string or a list of strings`,
		"[header]\n\"x y\" = \"" + canary + `"`:      `header."x y": not a valid header of HTTP`,
		"[header]\nx = \"\\n" + canary + `"`:         `header."x": not a valid header of HTTP`,
		`host = {"https://a" = {}}`:                  `host: each host must be a table of its own`,
		"[host.\"\"]\n":                              `host."": the name is empty`,
		"[host.\"https://a\"]\nca = 1":               `host."https://a": ca: must be`,
		"[[host]]\nserver = \"a\"":                   "host: not valid TOML, or a value of a wrong type",
		"# " + strings.Repeat("x", 1<<20):            "hosts.toml: too large: more than 1048576 bytes",
		"[header]\nx = \"" + canary + "\"\n[header]": "not valid TOML",
	} {
		hosts := write(t, t.TempDir(), map[string]string{"registry.test/hosts.toml": toml})
		n := newNetwork(t)
		n.https("registry.test", serving("x"))
		_, err := n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{}).Manifest(t.Context(), "1")
		if !errors.Is(err, registry.ErrUnavailable) || n.seen() != nil {
			t.Errorf("%.60s: Manifest = %v; want ErrUnavailable", toml, err)
		}
		check := registry.CheckHosts(hosts)
		for _, err := range []error{err, check} {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), "registry.test") {
				t.Errorf("%.60s: %v; want %q", toml, err, want)
			}
		}
	}
	if err := registry.CheckHosts(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("CheckHosts of an absent folder = %v", err)
	}
	if _, err := registry.New(registry.Options{HostsDir: "certs.d"}); err == nil {
		t.Error("New with a relative folder = nil; want an error")
	}
}

// An absent folder has no registries.
func TestAbsentFolderOfHosts(t *testing.T) {
	n := newNetwork(t)
	n.https("registry.test", serving("x"))
	c := n.client(registry.Options{HostsDir: filepath.Join(t.TempDir(), "absent")})
	if _, err := c.Repository(repository, admission.Login{}).Manifest(t.Context(), "1"); err != nil {
		t.Error(err)
	}
}

func TestLocalAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.8.8.8": true, "::1": true, "::ffff:127.0.0.1": true, "64:ff9b::7f00:1": true,
		"169.254.169.254": true, "::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "fe80::1%eth0": true,
		"fd00:ec2::254": true, "fd20:ce::254": true, "192.0.0.192": true, "100.100.100.200": true, "168.63.129.16": true,
		"0.0.0.0": true, "::": true, "224.0.0.1": true, "ff02::1": true,
		"10.0.0.1": false, "192.168.0.1": false, "93.184.216.34": false, "2001:db8::1": false, "64:ff9b::a00:1": false,
	} {
		if got := registry.IsLocal(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v; want %v", address, got, want)
		}
	}
}

// Registries that tenants choose are not asked at a local address, whatever name leads there, unless the operator has
// named the host.
func TestUntrustedHosts(t *testing.T) {
	for name, tc := range map[string]struct {
		repository, hosts string // name and content of hosts.toml
		asked             bool
	}{
		"a name":                    {"registry.test/app", "", false},
		"an address":                {"127.0.0.1:PORT/app", "", false},
		"localhost":                 {"localhost:PORT/app", "", false},
		"another registry is named": {"registry.test/app", "other.test/hosts.toml=", false},
		"settings for all":          {"registry.test/app", "_default/hosts.toml=skip_verify = true", false},
		"the registry is named":     {"registry.test/app", "registry.test/hosts.toml=skip_verify = true", true},
		"an empty folder":           {"registry.test/app", "registry.test/none=", true},
		"a mirror for all":          {"other.test/app", "_default/hosts.toml=server = 'https://registry.test'", true},
		"a named address":           {"127.0.0.1:PORT/app", "127.0.0.1_PORT_/none=", true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			h := images(true)
			put(t, h, "app", "1", ociManifest, []byte("{}"))
			address := n.https("registry.test", h).Listener.Addr().String()
			n.resolved["registry.test:443"] = address
			for _, host := range []string{"127.0.0.1", "localhost"} {
				n.resolved[host+address[strings.LastIndexByte(address, ':'):]] = address
			}
			port := func(s string) string {
				return strings.ReplaceAll(s, "PORT", address[strings.LastIndexByte(address, ':')+1:])
			}
			o := registry.Options{Untrusted: true}
			if tc.hosts != "" {
				file, content, _ := strings.Cut(port(tc.hosts), "=")
				o.HostsDir = write(t, t.TempDir(), map[string]string{file: content})
			}
			_, err := n.client(o).Repository(port(tc.repository), admission.Login{}).Manifest(t.Context(), "1")
			if asked := len(n.seen()) > 0; asked != tc.asked || (err == nil) != tc.asked {
				t.Errorf("asked: %v, %v; want %v", asked, err, tc.asked)
			}
			if err != nil && (!errors.Is(err, registry.ErrUnavailable) || !strings.Contains(err.Error(), "loopback")) {
				t.Errorf("Manifest = %v; want ErrUnavailable", err)
			}
		})
	}
}

// A redirect of a registry that a tenant chooses does not tell what is at an address.
func TestUntrustedHostsTellErrorsNotApart(t *testing.T) {
	for target, h := range map[string]http.Handler{"down.test": nil, "absent.test": http.NotFoundHandler(), "teapot.test": answerWith(418, ""), "other.test": answerWith(200, "x")} {
		n := newNetwork(t)
		n.https("registry.test", answerWith(307, "", "Location", "https://"+target+"/x"))
		if h != nil {
			n.https(target, h)
		}
		_, err := n.client(registry.Options{Untrusted: true}).Repository(repository, admission.Login{}).Blob(t.Context(), digest.FromString("content").String(), 100)
		for _, other := range []error{registry.ErrNotFound, registry.ErrDenied, registry.ErrMismatch, registry.ErrTooLarge, registry.ErrMalformed} {
			if errors.Is(err, other) || !errors.Is(err, registry.ErrUnavailable) {
				t.Errorf("%s: %v; want ErrUnavailable alone", target, err)
			}
		}
	}
}
