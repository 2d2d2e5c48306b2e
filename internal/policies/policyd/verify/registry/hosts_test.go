package registry_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/testkit"
)

// serving answers each request with the content of a digest, by its name.
func serving(content string) http.Handler { return answerWith(200, content) }

// hostsOf returns the hosts of requests in their order, without repetitions.
func hostsOf(requests []string) string {
	for i, r := range requests {
		requests[i], _, _ = strings.Cut(r, "/")
	}
	return strings.Join(slices.Compact(requests), " ")
}

func TestHostsAreAskedInOrder(t *testing.T) {
	data := string(manifest("image", "", ""))
	const mirrors = "[host.'https://z.test']\n[host.'https://a.test']\n"
	const pulls = "[host.'https://z.test']\ncapabilities = ['pull']"
	const pushes = "[host.'https://z.test']\ncapabilities = ['push']"
	for _, tc := range []struct {
		name, toml string
		servers    string // with their answer: data, other content, or a status
		tag        bool
		want       string // that are asked
		err        error
	}{
		{"order of the file", mirrors, "z.test=data a.test=data", true, "z.test", nil},
		{"the next if the first is down", mirrors, "a.test=data", true, "a.test", nil},
		{"the next if the first does not have it", mirrors, "z.test=404 a.test=data", true, "z.test a.test", nil},
		{"the next if the first denies", mirrors, "z.test=403 a.test=data", true, "z.test a.test", nil},
		{"the next if the first has other content", mirrors, "z.test=other a.test=data", false, "z.test a.test", nil},
		{
			"the registry at the end", mirrors, "z.test=500 a.test=404 registry.test=data", true,
			"z.test a.test registry.test", nil,
		},
		{
			"the error is that of the registry", mirrors, "z.test=500 registry.test=404", true,
			"z.test registry.test", registry.ErrNotFound,
		},
		{"down is no answer", mirrors, "z.test=404", true, "z.test", registry.ErrUnavailable},
		{
			"invalid content is reported in any case", mirrors, "z.test=other registry.test=503", false,
			"z.test registry.test", registry.ErrMismatch,
		},
		{"server in place of the registry", "server = 'https://z.test'", "z.test=data a.test=data", true, "z.test", nil},
		{"server without scheme", "server = 'z.test'", "z.test=data", true, "z.test", nil},
		{"_default", mirrors, "z.test=data", true, "z.test", nil},
		{"other.test", mirrors, "z.test=data registry.test=data", true, "registry.test", nil},
		{"no resolve for tags", pulls, "z.test=data registry.test=data", true, "registry.test", nil},
		{"pull for digests", pulls, "z.test=data registry.test=data", false, "z.test", nil},
		{"push is neither", pushes, "z.test=data registry.test=data", false, "registry.test", nil},
		{
			"no host at all", "server = 'https://registry.test'\ncapabilities = ['push']", "registry.test=data", false,
			"", registry.ErrUnavailable,
		},
		{"http", "server = 'http://plain.test'", "plain.test=data", true, "plain.test", nil},
		{"dial_timeout", "[host.'https://z.test']\ndial_timeout = '1s'", "registry.test=data", true, "registry.test", nil},
		{"unknown keys", "new = 1\n[host.'https://z.test']\nnew = {a = 1}", "z.test=data", true, "z.test", nil},
		{"an empty file", "", "registry.test=data", true, "registry.test", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			for server := range strings.FieldsSeq(tc.servers) {
				name, answer, _ := strings.Cut(server, "=")
				h := serving(strings.Replace(answer, "data", data, 1))
				if code, err := strconv.Atoi(answer); err == nil {
					h = status(code)
				}
				if name == "plain.test" {
					n.http(name, h)
				} else {
					n.https(name, h)
				}
			}
			folder, ref := "registry.test", digest.FromString(data).String()
			if tc.name == "_default" || tc.name == "other.test" {
				folder = tc.name
			}
			if tc.tag {
				ref = "1"
			}
			hosts := write(t, t.TempDir(), map[string]string{folder + "/hosts.toml": tc.toml})
			_, err := n.client(registry.Options{HostsDir: hosts}).Repository(repository, alice).Manifest(t.Context(), ref)
			if got := hostsOf(n.seen()); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("asked %v, %v; want %v, %v", got, err, tc.want, tc.err)
			}
		})
	}
}

// The first request of a name, with the folder of hosts.toml.
func TestPathsOfHosts(t *testing.T) {
	const own, port, path = "registry.test/team/app", "registry.test:5000/app", "/v2/team/app/manifests/1"
	for _, tc := range []struct{ name, folder, toml, want string }{
		{own, "registry.test", "server = 'https://registry.test'", "registry.test" + path},
		{own, "registry.test", "server = 'https://z.test'", "z.test" + path + "?ns=registry.test"},
		{own, "registry.test", "server = 'https://z.test/'", "z.test" + path + "?ns=registry.test"},
		{own, "registry.test", "server = 'https://z.test/v2/cache/'", "z.test/v2/cache" + path + "?ns=registry.test"},
		{own, "registry.test", "server = 'https://z.test/cache'", "z.test/cache" + path + "?ns=registry.test"},
		{own, "registry.test", "server = 'https://z.test/cache/v2'", "z.test/cache" + path + "?ns=registry.test"},
		{
			own, "registry.test", "server = 'https://z.test/v2/cache/'\noverride_path = true",
			"z.test/v2/cache/team/app/manifests/1?ns=registry.test",
		},
		{
			own, "registry.test", "server = 'https://z.test'\noverride_path = true",
			"z.test/team/app/manifests/1?ns=registry.test",
		},
		{port, "registry.test_5000_", "server = 'https://z.test'", "z.test/v2/app/manifests/1?ns=registry.test%3A5000"},
		{port, "registry.test:5000", "server = 'https://z.test'", "z.test/v2/app/manifests/1?ns=registry.test%3A5000"},
		{"docker.io/library/busybox", "none", "", "registry-1.docker.io/v2/library/busybox/manifests/1"},
	} {
		n := newNetwork(t)
		for _, name := range []string{"z.test", "registry.test", "registry-1.docker.io"} {
			n.https(name, serving("x"))
		}
		files := map[string]string{tc.folder + "/hosts.toml": tc.toml}
		if tc.name == port { // other folders
			files["registry.test/hosts.toml"] = "server = 'https://wrong.test'"
			files["_default/hosts.toml"] = files["registry.test/hosts.toml"]
			files["registry.test_443_/wrong.md"] = ""
		}
		hosts := write(t, t.TempDir(), files)
		err := tagged(t, n.client(registry.Options{HostsDir: hosts}).Repository(tc.name, admission.Login{}))
		if got := n.seen(); err != nil || !cmp.Equal(got, []string{tc.want}) {
			t.Errorf("%s, %s: requests %v, %v; want %s", tc.name, tc.toml, got, err, tc.want)
		}
	}
}

// A registry on this machine is asked over https, without verification, and over http if it does not speak https.
func TestLocalhost(t *testing.T) {
	n := newNetwork(t)
	for _, serve := range []func(string, http.Handler) *httptest.Server{n.http, n.https} {
		address := serve("localhost:5000", basic(serving("x"))).Listener.Addr().String()
		for _, name := range []string{address, strings.Replace(address, "127.0.0.1", "localhost", 1)} {
			n.servers[name] = address
			c := n.client(registry.Options{RootCAs: x509.NewCertPool()})
			if err := tagged(t, c.Repository(name+"/app", alice)); err != nil {
				t.Errorf("%s: %v; want nil", name, err)
			}
		}
	}
}

// A registry that is not on this machine is never asked over http, also where go-containerregistry would.
func TestNoHTTPWithoutConfiguration(t *testing.T) {
	for _, name := range []string{"10.0.0.1:5000", "192.168.1.1:80", "registry.local:5000", "registry.test:80"} {
		n := newNetwork(t)
		n.http(name, basic(serving("x")))
		err := tagged(t, n.client(registry.Options{}).Repository(name+"/app", alice))
		if got := n.seen(); !errors.Is(err, registry.ErrUnavailable) || got != nil {
			t.Errorf("%s: %v, requests %v; want ErrUnavailable and none", name, err, got)
		}
	}
}

func TestTLSOfHosts(t *testing.T) {
	a := testkit.Value(authority())(t)
	pair := testkit.Value(a.Issue(pkix.Name{CommonName: "node"}, time.Time{}))(t)
	ca, both := string(a.PEM()), string(pair.Certificate)+string(pair.Key)
	files := map[string]string{
		"registry.test/ca.pem":     ca,
		"registry.test/node.crt.":  string(pair.Certificate),
		"registry.test/node.key":   string(pair.Key),
		"registry.test/both.pem":   both,
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
		{"another host", "[host.'https://down.test']\nskip_verify = true\nca='ca.pem'", nil, false, registry.ErrUnavailable},
		{"no client certificate", `ca = "ca.pem"`, nil, true, registry.ErrUnavailable},
		{"client in one file", "ca = \"ca.pem\"\nclient = \"both.pem\"", nil, true, nil},
		{"client in a list", "ca = \"ca.pem\"\nclient = [\"both.pem\"]", nil, true, nil},
		{"client in pairs", "ca = \"ca.pem\"\nclient = [[\"node.crt.\", \"node.key\"]]", nil, true, nil},
		{"client in a pair with one file", "ca = \"ca.pem\"\nclient = [[\"both.pem\", \"\"]]", nil, true, nil},
		{"docker's names", "", map[string]string{
			"registry.test/x.crt": ca, "registry.test/x.cert": string(pair.Certificate), "registry.test/x.key": string(pair.Key),
		}, true, nil},
		{"docker's, no key", "", map[string]string{"registry.test/x.crt": ca, "registry.test/x.cert": both}, true, nil},
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
			c := n.client(registry.Options{HostsDir: hosts, RootCAs: x509.NewCertPool()})
			if err := tagged(t, c.Repository(repository, alice)); !errors.Is(err, tc.want) {
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
	testkit.Must(t, tagged(t, n.configured(`[host."https://z.test"]
[host."https://z.test".header]
  Authorization = "Basic `+canary+`"
  x-list = ["a", "b"]
`, admission.Login{})))
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
		{"a mirror that may resolve", "[host.'https://z.test']\ncapabilities = ['pull', 'resolve']", []string{"z.test"}},
		{"server", `server = "https://z.test"`, []string{"z.test"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("z.test", basic(serving("x")))
			n.https("registry.test", basic(serving("x")))
			testkit.Value(n.configured(tc.toml, alice).Blob(t.Context(), digest.FromString("x").String(), 10))(t)
			if got := n.leaked(); !cmp.Equal(got, tc.want) {
				t.Errorf("%v received the credential; want %v", got, tc.want)
			}
		})
	}
}

// What a list of signatures leads to is judged by its signature, so that a host need not be trusted with tags.
func TestSignaturesAreReadFromHostsThatMayPull(t *testing.T) {
	subject := digest.FromString("subject").String()
	tag := strings.Replace(subject, ":", "-", 1)

	n, h := newNetwork(t), images(true)
	n.https("z.test", h)
	put(t, h, "team/app", tag+".sig", ociManifest, manifest("old signature", "", ""))
	put(t, h, "team/app", "", ociManifest, manifest("signature", "", subject))
	r := n.configured("[host.'https://z.test']\ncapabilities = ['pull']", admission.Login{})
	if list, _, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 1 {
		t.Errorf("Referrers = %v, %v; want one", list, err)
	}
	if _, err := r.Manifest(t.Context(), tag+".sig"); err != nil {
		t.Errorf("Manifest of the signature tag: %v", err)
	}
	// Without any, the next host is asked; as it is down, there may be some.
	other := digest.FromString("other").String()
	if list, _, err := r.Referrers(t.Context(), other); !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("Referrers = %v, %v; want ErrUnavailable", list, err)
	}
	n.https("registry.test", images(true))
	if list, _, err := r.Referrers(t.Context(), other); err != nil || len(list) != 0 {
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
		err := tagged(t, c.Repository(repository, admission.Login{}))
		if got := hostsOf(n.seen()); got != step.want || (err == nil) != (got != "") {
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
		`server = "https://u:` + canary + `@a"`:      `host "https://[redacted]@a": must be an http or https URL`,
		`server = "https://a?k=` + canary + `"`:      `server or host "https://a": must be`,
		`capabilities = ["pull", "delete"]`:          `capabilities: "delete": must be pull, resolve, push or referrers`,
		`capabilities = "pull"`:                      `capabilities: not valid TOML, or a value of a wrong type`,
		`dial_timeout = "fast"`:                      `dial_timeout: "fast": must be a positive duration such as "10s"`,
		`dial_timeout = "-1s"`:                       `dial_timeout: "-1s": must be a positive duration`,
		`ca = 1`:                                     "ca: must be a string or a list of strings",
		`ca = [1]`:                                   "ca: must be a string or a list of strings",
		`ca = "absent.pem"`:                          "registry.test/absent.pem: no such file or directory",
		`ca = "hosts.toml"`:                          "ca: hosts.toml: no certificate in PEM",
		`client = [["hosts.toml"]]`:                  "client: must be a path, a list of paths, or a list of [certificate",
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
		err := tagged(t, n.client(registry.Options{HostsDir: hosts}).Repository(repository, admission.Login{}))
		if !errors.Is(err, registry.ErrUnavailable) || n.seen() != nil {
			t.Errorf("%.60s: Manifest = %v; want ErrUnavailable", toml, err)
		}
		check := registry.CheckHosts(hosts)
		for _, err := range []error{err, check} {
			text := fmt.Sprint(err)
			if !strings.Contains(text, want) || strings.Contains(text, canary) || !strings.Contains(text, "registry.test") {
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
			err := tagged(t, n.client(o).Repository(port(tc.repository), admission.Login{}))
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
	for target, h := range map[string]http.Handler{
		"down.test": nil, "absent.test": http.NotFoundHandler(), "teapot.test": status(418), "other.test": serving("x"),
	} {
		n := newNetwork(t)
		n.https("registry.test", answerWith(307, "", "Location", "https://"+target+"/x"))
		if h != nil {
			n.https(target, h)
		}
		r := n.client(registry.Options{Untrusted: true}).Repository(repository, admission.Login{})
		_, err := r.Blob(t.Context(), digest.FromString("content").String(), 100)
		for _, other := range []error{
			registry.ErrNotFound, registry.ErrDenied, registry.ErrMismatch, registry.ErrTooLarge, registry.ErrMalformed,
		} {
			if errors.Is(err, other) || !errors.Is(err, registry.ErrUnavailable) {
				t.Errorf("%s: %v; want ErrUnavailable alone", target, err)
			}
		}
	}
}

// Verifications that begin together share the connections to a registry, and so their number is bounded.
func TestHostsAreMadeOnce(t *testing.T) {
	for range 50 {
		c := testkit.Value(registry.New(registry.Options{}))(t)
		var all sync.WaitGroup
		var made sync.Map
		for range 8 {
			all.Go(func() {
				host, err := c.Hosts("registry.test")
				if made.Store(host, true); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		n := 0
		for range made.Range {
			n++
		}
		testkit.Equal(t, "sets of hosts", n, 1)
	}
}
