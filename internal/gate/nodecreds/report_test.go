package nodecreds_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1alpha1"
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1beta1"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	version = `"apiVersion":"credentialprovider.kubelet.k8s.io/v1",`
	request = `{"kind":"CredentialProviderRequest",` + version + `"image":"repo.test/team/app:1"}`
)

// answer returns an answer of a provider with these members after its header.
func answer(members string) string {
	return `{"kind":"CredentialProviderResponse",` + version + members + `}`
}

var good = answer(`"cacheKeyType":"Registry","cacheDuration":"6h0m0s",` +
	`"auth":{"*.repo.test":{"username":"u","password":"` + canary + `"}}`)

// A keyNode has a key.
type keyNode struct {
	*testing.T
	key     credential.Key
	keyFile string
}

func newKeyNode(t *testing.T) keyNode {
	t.Helper()
	n := keyNode{T: t, keyFile: filepath.Join(t.TempDir(), "node.key")}
	var err error
	if n.key, err = credential.CreateKey(n.keyFile); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n keyNode) report(request, answer string) (nodecreds.Report, error) {
	return nodecreds.ReportOf([]byte(request), []byte(answer), n.keyFile, time.Now())
}

func (n keyNode) id(user, password string) string {
	return string(n.key.ID(credential.New(credential.Login{Username: user, Password: password})))
}

// want compares the images of a report, by credential ID.
func (n keyNode) want(what string, r nodecreds.Report, want map[string]string) {
	n.Helper()
	got := map[string]string{}
	for _, c := range r.Credentials {
		got[string(c.ID)] = strings.Join(c.Images, " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.Errorf("%s: reported (-want +got):\n%s", what, diff)
	}
	if len(got) > 0 && r.KeyFingerprint != n.key.Fingerprint() {
		n.Errorf("%s: key fingerprint %s; want %s", what, r.KeyFingerprint, n.key.Fingerprint())
	}
}

func TestReportHasTheCredentialsOfThePlugin(t *testing.T) {
	n := newKeyNode(t)
	for name, tc := range map[string]struct {
		answer string
		want   map[string]string
	}{
		"one": {good, map[string]string{n.id("u", canary): "*.repo.test"}},
		"several": {
			answer(`"auth":{"b.test":{"username":"u","password":"p"},"a.test/x":{"username":"u","password":"p"},` +
				`"c.test":{"username":"v","password":"p"}}`),
			map[string]string{n.id("u", "p"): "a.test/x b.test", n.id("v", "p"): "c.test"},
		},
		"anonymous": {
			answer(`"auth":{"b.test":{"username":"","password":""},"c.test":{"username":"v","password":"p"}}`),
			map[string]string{n.id("v", "p"): "c.test"},
		},
		"unknown fields, which a kubelet ignores": {
			answer(`"more":1,"auth":{"c.test":{"username":"v","password":"p","more":{}}}`),
			map[string]string{n.id("v", "p"): "c.test"},
		},
		"nothing but anonymous": {answer(`"auth":{"b.test":{"username":"","password":""}}`), map[string]string{}},
		"no entry":              {answer(`"cacheDuration":"1h","auth":{}`), map[string]string{}},
		"no auth":               {answer(`"auth":null`), map[string]string{}},
	} {
		r, err := n.report(request, tc.answer)
		if err != nil {
			t.Errorf("%s: Report = %v; want nil", name, err)
		}
		n.want(name, r, tc.want)
	}
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		in := strings.NewReplacer("k8s.io/v1", "k8s.io/"+version)
		r, err := n.report(in.Replace(request), in.Replace(good))
		if err != nil {
			t.Errorf("%s: Report = %v; want nil", version, err)
		}
		n.want(version, r, map[string]string{n.id("u", canary): "*.repo.test"})
	}
}

func TestReportExpiresWithTheKubeletsCache(t *testing.T) {
	n := newKeyNode(t)
	for duration, want := range map[string]time.Duration{
		`"cacheDuration":"6h0m0s",`: 7 * time.Hour, `"cacheDuration":"0s",`: time.Hour, `"cacheDuration":"-5h",`: time.Hour,
		`"cacheDuration":null,`: 24 * time.Hour, ``: 24 * time.Hour, `"cacheDuration":"2562046h",`: 2562047 * time.Hour,
	} {
		r, err := n.report(request, answer(duration+`"auth":{"b.test":{"username":"u","password":"p"}}`))
		if err != nil || len(r.Credentials) != 1 {
			t.Fatalf("%s: Report = %v, %v; want one credential", duration, r, err)
		}
		if got := time.Until(r.Expires.Add(-want)).Abs(); got > time.Minute {
			t.Errorf("%s: expires %v; want in %v", duration, r.Expires, want)
		}
	}
}

func TestReportOmitsCredentialsThatAreNotTheNodes(t *testing.T) {
	n := newKeyNode(t)
	with := func(member string) string { return strings.TrimSuffix(request, "}") + "," + member + "}" }
	for name, tc := range map[string]struct {
		request string
		refused bool
	}{
		"token that is not one":              {with(`"serviceAccountToken":"` + canary + `"`), true},
		"annotations alone":                  {with(`"serviceAccountAnnotations":{"a":"b"}`), false},
		"another spelling":                   {with(`"ServiceAccountToken":"` + canary + `"`), true},
		"a field of a later version":         {with(`"podCertificate":"` + canary + `"`), true},
		"a later version":                    {strings.Replace(request, "k8s.io/v1", "k8s.io/v2", 1), true},
		"another kind":                       {strings.Replace(request, "Request", "Response", 1), true},
		"no JSON":                            {canary, true},
		"more than one value":                {request + request, true},
		"nothing":                            {"", true},
		"a token of another type":            {with(`"serviceAccountToken":1`), true},
		"another group":                      {strings.Replace(request, "kubelet.k8s.io", "example.com", 1), true},
		"answer to a request of another age": {strings.Replace(request, "k8s.io/v1", "k8s.io/v1beta1", 1), true},
	} {
		r, err := n.report(tc.request, good)
		if (err != nil) != tc.refused || err != nil && (strings.Contains(err.Error(), canary) ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: Report = %v; want an error in one line without the content: %v", name, err, tc.refused)
		}
		n.want(name, r, map[string]string{})
	}
	for name, a := range map[string]string{
		"no JSON": canary, "nothing": "", "a list": "[]", "cut off": good[:len(good)-2],
		"another kind":  strings.Replace(good, "Response", "Request", 1),
		"no kind":       `{"auth":{"b.test":{"username":"u","password":"` + canary + `"}}}`,
		"password type": answer(`"auth":{"b.test":{"username":"` + canary + `","password":5}}`),
		"duration":      answer(`"cacheDuration":"` + canary + `","auth":{"b.test":{"username":"u","password":"p"}}`),
		"duration type": answer(`"cacheDuration":5,"auth":{"b.test":{"username":"u","password":"p"}}`),
	} {
		r, err := n.report(request, a)
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("answer is %s: Report = %v; want an error without the content", name, err)
		}
		n.want(name, r, map[string]string{})
	}
}

func TestReportNeedsTheKey(t *testing.T) {
	n := newKeyNode(t)
	absent := filepath.Join(t.TempDir(), "absent")
	exposed := filepath.Join(t.TempDir(), "exposed.key")
	testkit.Must(t, os.WriteFile(exposed, []byte(strings.Repeat("0", 64)), 0o644))
	for keyFile, want := range map[string]string{
		absent: absent + ": no such file or directory; --state-dir must be the stateDir", exposed: "exposed",
	} {
		n.keyFile = keyFile
		r, err := n.report(request, good)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), canary) {
			t.Errorf("Report = %v; want one line with %q, without the credential", err, want)
		}
		n.want(keyFile, r, map[string]string{})
	}
}

// namesOf returns the names of a protocol type's members, without its header.
func namesOf(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// If this fails after an upgrade of k8s.io/kubelet, check what the new member binds an answer to.
func TestProtocolHasNoUnknownField(t *testing.T) {
	for want, all := range map[string][]reflect.Type{
		"image serviceAccountAnnotations serviceAccountToken": {reflect.TypeFor[v1.CredentialProviderRequest]()},
		"image": {
			reflect.TypeFor[v1beta1.CredentialProviderRequest](), reflect.TypeFor[v1alpha1.CredentialProviderRequest](),
		},
		"auth cacheDuration cacheKeyType": {
			reflect.TypeFor[v1.CredentialProviderResponse](),
			reflect.TypeFor[v1beta1.CredentialProviderResponse](), reflect.TypeFor[v1alpha1.CredentialProviderResponse](),
		},
		"password username": {
			reflect.TypeFor[v1.AuthConfig](), reflect.TypeFor[v1beta1.AuthConfig](), reflect.TypeFor[v1alpha1.AuthConfig](),
		},
	} {
		for _, typ := range all {
			if got := strings.Join(namesOf(typ), " "); got != want {
				t.Errorf("%s has %s; want %s", typ, got, want)
			}
		}
	}
}
