package report_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/nodecreds/report"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	request = `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"repo.test/team/app:1"}`
	canary  = "cAnary-Of-The-Mine"
)

// answer is an answer of a provider with these members after its header.
func answer(members string) string {
	return `{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",` + members + `}`
}

var good = answer(`"cacheKeyType":"Registry","cacheDuration":"6h0m0s","auth":{"*.repo.test":{"username":"u","password":"` + canary + `"}}`)

// A daemon takes reports and remembers them.
type daemon struct {
	*testing.T
	key         credential.Key
	dir, socket string

	mu   sync.Mutex
	got  map[string]string // images by ID
	till []time.Time
	log  bytes.Buffer
}

func (d *daemon) Add(patterns []string, id credential.ID, expiry time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, old := d.got[string(id)]
	d.got[string(id)] = strings.Join(patterns, " ")
	d.till = append(d.till, expiry)
	return !old
}

func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *daemon) keyFile() string { return filepath.Join(d.dir, "node.key") }

func (d *daemon) tell(request, answer string) error {
	return report.Tell(d.Context(), d.socket, d.keyFile(), report.Exchange{Request: []byte(request), Answer: []byte(answer)})
}

func (d *daemon) id(user, password string) string {
	return string(d.key.ID(credential.New(user, password, "", "", "", "")))
}

// expiries takes what was told since it was asked last.
func (d *daemon) expiries() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	till := d.till
	d.till = nil
	return till
}

func (d *daemon) want(what string, want map[string]string) {
	d.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(want, d.got); diff != "" {
		d.Errorf("%s: reported (-want +got):\n%s", what, diff)
	}
	clear(d.got)
}

// newDaemon serves until the test ends.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{T: t, dir: dir, socket: filepath.Join(dir, "credentials.sock"), got: map[string]string{}}
	if d.key, err = credential.CreateKey(d.keyFile()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(d), textlogger.Verbosity(10)))))
	done := make(chan error, 1)
	go func() { done <- report.Serve(ctx, l, d.key.Fingerprint(), d) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v; want nil", err)
		}
		if strings.Contains(d.log.String(), canary) || strings.Contains(d.log.String(), base64.StdEncoding.EncodeToString([]byte(canary))) {
			t.Errorf("the log shows a credential:\n%s", d.log.String())
		}
		_ = os.RemoveAll(dir)
	})
	return d
}

func TestTellReportsWhatWasGivenOut(t *testing.T) {
	d := newDaemon(t)
	for name, tc := range map[string]struct {
		answer string
		want   map[string]string
	}{
		"one":       {good, map[string]string{d.id("u", canary): "*.repo.test"}},
		"several":   {answer(`"auth":{"b.test":{"username":"u","password":"p"},"a.test/x":{"username":"u","password":"p"},"c.test":{"username":"v","password":"p"}}`), map[string]string{d.id("u", "p"): "a.test/x b.test", d.id("v", "p"): "c.test"}},
		"anonymous": {answer(`"auth":{"b.test":{"username":"","password":""},"c.test":{"username":"v","password":"p"}}`), map[string]string{d.id("v", "p"): "c.test"}},
		"unknown fields, which a kubelet passes over": {answer(`"more":1,"auth":{"c.test":{"username":"v","password":"p","more":{}}}`), map[string]string{d.id("v", "p"): "c.test"}},
		"nothing but anonymous":                       {answer(`"auth":{"b.test":{"username":"","password":""}}`), map[string]string{}},
		"no entry":                                    {answer(`"cacheDuration":"1h","auth":{}`), map[string]string{}},
		"no auth":                                     {answer(`"auth":null`), map[string]string{}},
	} {
		if err := d.tell(request, tc.answer); err != nil {
			t.Errorf("%s: Tell = %v; want nil", name, err)
		}
		d.want(name, tc.want)
	}
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		in := strings.NewReplacer("k8s.io/v1", "k8s.io/"+version)
		if err := d.tell(in.Replace(request), in.Replace(good)); err != nil {
			t.Errorf("%s: Tell = %v; want nil", version, err)
		}
		d.want(version, map[string]string{d.id("u", canary): "*.repo.test"})
	}
}

func TestTellSaysHowLongTheKubeletUsesIt(t *testing.T) {
	d := newDaemon(t)
	for duration, want := range map[string]time.Duration{
		`"cacheDuration":"6h0m0s",`: 7 * time.Hour, `"cacheDuration":"0s",`: time.Hour, `"cacheDuration":"-5h",`: time.Hour,
		`"cacheDuration":null,`: 24 * time.Hour, ``: 24 * time.Hour, `"cacheDuration":"2562046h",`: 2562047 * time.Hour,
	} {
		err := d.tell(request, answer(duration+`"auth":{"b.test":{"username":"u","password":"p"}}`))
		till := d.expiries()
		if err != nil || len(till) != 1 {
			t.Fatalf("%s: Tell = %v after %d reports; want one", duration, err, len(till))
		}
		if got := time.Until(till[0].Add(-want)).Abs(); got > time.Minute {
			t.Errorf("%s: expires %v; want in %v", duration, till[0], want)
		}
	}
}

// Nothing of these is the whole node's.
func TestTellKeepsToItselfWhatIsBoundToLess(t *testing.T) {
	d := newDaemon(t)
	with := func(member string) string { return strings.TrimSuffix(request, "}") + "," + member + "}" }
	for name, tc := range map[string]struct {
		request string
		refused bool
	}{
		"service account token":              {with(`"serviceAccountToken":"` + canary + `"`), false},
		"annotations alone":                  {with(`"serviceAccountAnnotations":{"a":"b"}`), false},
		"another spelling":                   {with(`"ServiceAccountToken":"` + canary + `"`), false},
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
		err := d.tell(tc.request, good)
		if (err != nil) != tc.refused || err != nil && (strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: Tell = %v; want an error in one line without the content: %v", name, err, tc.refused)
		}
		d.want(name, map[string]string{})
	}
	for name, a := range map[string]string{
		"no JSON": canary, "nothing": "", "a list": "[]", "cut off": good[:len(good)-2],
		"another kind":  strings.Replace(good, "Response", "Request", 1),
		"no kind":       `{"auth":{"b.test":{"username":"u","password":"` + canary + `"}}}`,
		"password type": answer(`"auth":{"b.test":{"username":"` + canary + `","password":5}}`),
		"duration":      answer(`"cacheDuration":"` + canary + `","auth":{"b.test":{"username":"u","password":"p"}}`),
		"duration type": answer(`"cacheDuration":5,"auth":{"b.test":{"username":"u","password":"p"}}`),
	} {
		err := d.tell(request, a)
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("answer is %s: Tell = %v; want an error without the content", name, err)
		}
		d.want(name, map[string]string{})
	}
}

func TestTellSaysWhatToDo(t *testing.T) {
	d := newDaemon(t)
	e := report.Exchange{Request: []byte(request), Answer: []byte(good)}
	other := filepath.Join(d.dir, "other.key")
	if _, err := credential.CreateKey(other); err != nil {
		t.Fatal(err)
	}
	exposed := filepath.Join(d.dir, "exposed.key")
	if err := os.WriteFile(exposed, []byte(strings.Repeat("0", 64)), 0o644); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(d.dir, "absent")
	for name, tc := range map[string]struct {
		socket, keyFile string
		want            []string
	}{
		"daemon away": {absent, d.keyFile(), []string{absent, "no such file or directory", "systemctl status pullgated", "nodeCredentials.listen"}},
		"no key":      {d.socket, absent, []string{absent, "no such file or directory", "--state-dir must be the stateDir"}},
		"another key": {d.socket, other, []string{"409", "another key", "--state-dir"}},
		"exposed key": {d.socket, exposed, []string{"exposed"}},
	} {
		err := report.Tell(t.Context(), tc.socket, tc.keyFile, e)
		if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: Tell = %v; want an error in one line without the credential", name, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Tell = %v; want it to say %q", name, err, want)
			}
		}
		d.want(name, map[string]string{})
	}
}

// A daemon that takes the connection and answers nothing costs the kubelet a second and no more.
func TestTellDoesNotWaitForADaemonThatHangs(t *testing.T) {
	d := newDaemon(t)
	mute := filepath.Join(d.dir, "mute.sock")
	l, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	began := time.Now()
	err = report.Tell(t.Context(), mute, d.keyFile(), report.Exchange{Request: []byte(request), Answer: []byte(good)})
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 3*time.Second {
		t.Errorf("Tell = %v after %v; want DeadlineExceeded after a second", err, took)
	}
}

// post sends bytes to the daemon and returns the status and the text of its answer.
func (d *daemon) post(method, path, body string) (int, string) {
	d.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		},
	}}
	req, err := http.NewRequestWithContext(d.Context(), method, "http://pullgated"+path, strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		d.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestServeRefusesWhatIsNoReport(t *testing.T) {
	d := newDaemon(t)
	id := strings.Repeat("0a", 32)
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	body := func(expires, credentials string) string {
		return fmt.Sprintf(`{"keyFingerprint":%q,"expires":%q,"credentials":[%s]}`, d.key.Fingerprint(), expires, credentials)
	}
	one := `{"id":"` + id + `","images":["a.test"]}`
	for name, tc := range map[string]struct {
		method, path, body string
		code               int
		want               string
	}{
		"right":              {"POST", "/v1/credentials", body(soon, one), 204, ""},
		"get":                {"GET", "/v1/credentials", "", 405, ""},
		"another path":       {"POST", "/v2/credentials", body(soon, one), 404, ""},
		"no JSON":            {"POST", "/v1/credentials", "x", 400, "not readable"},
		"unknown field":      {"POST", "/v1/credentials", strings.Replace(body(soon, one), `"id"`, `"pod":"p","id"`, 1), 400, "same version"},
		"two":                {"POST", "/v1/credentials", body(soon, one) + "{}", 400, "more than one"},
		"past":               {"POST", "/v1/credentials", body("2026-01-02T15:04:05Z", one), 400, "expires"},
		"none":               {"POST", "/v1/credentials", body(soon, ""), 400, "allowed are 1 to 256"},
		"too many":           {"POST", "/v1/credentials", body(soon, strings.Repeat(one+",", 256)+one), 400, "257 are given"},
		"short ID":           {"POST", "/v1/credentials", body(soon, one+`,{"id":"0a","images":["a.test"]}`), 400, "credentials[1].id"},
		"anonymous":          {"POST", "/v1/credentials", body(soon, `{"id":"","images":["a.test"]}`), 400, "credentials[0].id"},
		"upper case":         {"POST", "/v1/credentials", body(soon, strings.Replace(one, id, strings.ToUpper(id), 1)), 400, "credentials[0].id"},
		"no images":          {"POST", "/v1/credentials", body(soon, `{"id":"`+id+`","images":[]}`), 400, "credentials[0].images"},
		"too large":          {"POST", "/v1/credentials", body(soon, `{"id":"`+id+`","images":["`+strings.Repeat("a", 1<<20)+`"]}`), 400, "too large"},
		"another key":        {"POST", "/v1/credentials", strings.Replace(body(soon, one), d.key.Fingerprint(), id, 1), 409, "--state-dir"},
		"no key fingerprint": {"POST", "/v1/credentials", strings.Replace(body(soon, one), d.key.Fingerprint(), "", 1), 409, "--state-dir"},
	} {
		code, text := d.post(tc.method, tc.path, tc.body)
		if code != tc.code || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %d %q; want %d that says %q", name, code, text, tc.code, tc.want)
		}
		want := map[string]string{}
		if tc.code == http.StatusNoContent {
			want[id] = "a.test"
		}
		d.want(name, want)
	}
}

// The mode of the socket keeps others out already; this is the second lock.
func TestServeRefusesOthersThanRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	d := newDaemon(t)
	for _, path := range []string{d.dir, d.socket} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	// The user of one thread alone is another one, while it dials.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(euid uintptr) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), euid, ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	become(65534)
	conn, err := net.Dial("unix", d.socket)
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /v1/credentials HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reply, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(reply), "HTTP/1.1 403 ") || !strings.Contains(string(reply), "only root may report") {
		t.Errorf("nobody's report is answered with %q, %v; want 403 that says why", reply, err)
	}
	d.want("nobody", map[string]string{})
}

func TestServeLogsNewsOnce(t *testing.T) {
	d := newDaemon(t)
	for range 3 {
		if err := d.tell(request, good); err != nil {
			t.Fatal(err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := strings.Count(d.log.String(), "Node credentials reported"); got != 1 || !strings.Contains(d.log.String(), d.id("u", canary)) {
		t.Errorf("%d lines; want one with the ID:\n%s", got, d.log.String())
	}
}
