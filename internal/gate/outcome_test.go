package gate

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The texts are those of containerd 1.6 and 2.x for each kind of failure.
func TestOfDistinguishesDeniedAndUnavailable(t *testing.T) {
	const (
		resolving = `failed to pull and unpack image "r.test/a:1": failed to resolve reference "r.test/a:1": `
		pulling   = resolving + "pulling from host r.test failed with status code [manifests 1]: "
		head      = resolving + "unexpected status from HEAD request to https://r.test/v2/a/manifests/1: "
		request   = resolving + `failed to do request: Head "https://r.test/v2/a/manifests/1": `
	)
	for _, tc := range []struct {
		code codes.Code
		text string
		want outcome
	}{
		{codes.Unknown, pulling + "401 Unauthorized", pullDenied},
		{codes.Unknown, head + "403 Forbidden", pullDenied},
		{codes.Unknown, resolving + "pull access denied, repository does not exist or may require authorization: server " +
			"message: insufficient_scope: authorization failed", pullDenied},
		{codes.NotFound, resolving + "r.test/a:1: not found", pullDenied},
		{codes.Unauthenticated, resolving + "unexpected status", pullDenied},
		{codes.PermissionDenied, resolving + "unexpected status", pullDenied},
		{codes.Unknown, request + "dial tcp 10.0.0.1:443: connect: connection refused", pullUnreached},
		{codes.Unknown, request + "dial tcp: lookup r.test: no such host", pullUnreached},
		{codes.Unknown, request + "dial tcp 10.0.0.1:443: i/o timeout", pullUnreached},
		{codes.Unknown, request + "net/http: TLS handshake timeout", pullUnreached},
		{codes.Unknown, pulling + "500 Internal Server Error", pullUnavailable},
		{codes.Unknown, pulling + "503 Service Unavailable", pullUnavailable},
		{codes.Unknown, head + "429 Too Many Requests", pullUnavailable},
		{codes.Unknown, "failed to copy: read tcp 10.0.0.2:1->10.0.0.1:443: read: connection reset by peer", pullUnavailable},
		{codes.Unavailable, resolving + "unexpected status from HEAD request: 503 Service Unavailable", pullUnavailable},
		// The result of these in the runtime is unknown.
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: ` +
			`dial unix /run/containerd/containerd.sock: connect: connection refused"`, pullError},
		{codes.Unavailable, "error reading from server: EOF", pullError},
		{codes.Canceled, "context canceled", pullError},
		{codes.Canceled, resolving + "401 Unauthorized", pullError},
		{codes.DeadlineExceeded, "context deadline exceeded", pullError},
		{codes.Internal, "stream terminated by RST_STREAM", pullError},
		{codes.ResourceExhausted, "grpc: received message larger than max (17 vs. 16)", pullError},
		{codes.Unknown, "failed to extract layer: no space left on device", pullError},
		{codes.Unknown, "", pullError},
		// A tenant chooses the name that a text quotes.
		{codes.Unknown, `failed to extract "r.test/401/unauthorized/denied/403-forbidden:404"`, pullError},
	} {
		checkOutcome(t, status.Error(tc.code, tc.text), tc.want)
	}
	checkOutcome(t, nil, pullVerified)
	checkOutcome(t, errors.New("401 Unauthorized"), pullError)
}

func checkOutcome(t *testing.T, err error, want outcome) {
	t.Helper()
	if got := outcomeOf(err); got != want {
		t.Errorf("outcome of %v is %s (%d); want %s (%d)", err, got.label(), got, want.label(), want)
	}
}

// An intent is deleted only for an error that came before anything was fetched: containerd may fail after it has stored
// the image.
func TestOnlyAFailedResolveIsDefinite(t *testing.T) {
	const unpack = `failed to pull and unpack image "r.test/a:1": `
	for _, tc := range []struct {
		code codes.Code
		text string
		want bool
	}{
		{codes.Unknown, unpack + `failed to resolve reference "r.test/a:1": 401 Unauthorized`, true},
		{codes.NotFound, unpack + "failed to resolve image: r.test/a:1: not found", true},
		{codes.Unknown, `failed to resolve reference "r.test/a:1": dial tcp 10.0.0.1:443: connect: connection refused`, true},
		{codes.Unknown, `failed to resolve reference "r.test/a:1": 503 Service Unavailable`, false},
		{codes.NotFound, `failed to get image from containerd "r.test/a:1": image "r.test/a:1": not found`, false},
		{codes.PermissionDenied, "permission denied: unknown", false},
		{codes.Unknown, "failed to copy: httpReadSeeker: 403 Forbidden", false},
		{codes.Unknown, "open /var/lib/x: permission denied: unknown", false},
		{codes.Unavailable, `failed to resolve reference: connection error: desc = "dial unix"`, false},
		{codes.Canceled, "failed to resolve reference: context canceled", false},
	} {
		err := status.Error(tc.code, tc.text)
		if got := outcomeOf(err).definite(err); got != tc.want {
			t.Errorf("%v %q is definite: %v; want %v", tc.code, tc.text, got, tc.want)
		}
	}
}

func TestOfMirror(t *testing.T) {
	const resolve = `failed to resolve reference "r.test/a:1": failed to do request: Head `
	for text, want := range map[string]bool{
		resolve + `"https://mirror.test:5000/v2/a/manifests/1?ns=r.test": dial tcp: lookup mirror.test: no such host`: true,
		`unexpected status from HEAD request to http://10.0.0.1/v2/a/manifests/1?ns=docker.io: 500 Server Error`:      true,
		resolve + `"https://r.test/v2/a/manifests/1": dial tcp 10.0.0.1:443: connect: connection refused`:             false,
		`pull access denied: "r.test/a:1?ns=x"`: false,
		"":                                      false,
	} {
		if got := fromMirror(status.Error(codes.Unknown, text)); got != want {
			t.Errorf("FromMirror(%s) = %t; want %t", text, got, want)
		}
	}
}

// The text of CRI-O 1.36.3 before the error of a pull. A second error, of the attempt to pull an OCI artifact, follows
// all errors except those of the network.
const (
	crioOnce  = "unable to pull image: initializing source docker://"
	crioTwice = "unable to pull image or OCI artifact: pull image err: initializing source docker://"
	crio136   = "; artifact err: image reference: get manifest from ref: create image source: "
	crio134   = "; artifact err: get manifest: build image source: "

	refused  = `Get "http://127.0.0.1:5999/v2/": dial tcp 127.0.0.1:5999: connect: connection refused`
	downHost = "pinging container registry 127.0.0.1:5999: " + refused
)

// Recorded errors of CRI-O 1.36.3 with registries that answered with each kind of failure; name and answer are joined
// as in CRI-O. "@" is "reading manifest TAG in REPOSITORY".
var crioTexts = []struct {
	name, answer string
	twice        bool
	want         outcome
}{
	{"127.0.0.1:5101/e401:1", "@: unauthorized", true, pullDenied},
	{"127.0.0.1:5101/e401plain:1", "@: authentication required", true, pullDenied},
	{
		"127.0.0.1:5101/e401unauth:1", "@: unauthorized: access to the requested resource is not authorized", true,
		pullDenied,
	},
	{"127.0.0.1:5101/e403:1", "@: denied", true, pullDenied},
	{"127.0.0.1:5101/e403plain:1", `@: StatusCode: 403, "<html>forbidden</html>"`, true, pullDenied},
	{"127.0.0.1:5101/e404:1", "@: name unknown", true, pullDenied},
	{"127.0.0.1:5101/e404plain:1", `@: StatusCode: 404, "not here"`, true, pullDenied},
	{"127.0.0.1:5101/e500:1", "@: received unexpected HTTP status: 500 Internal Server Error", true, pullUnavailable},
	{"127.0.0.1:5101/e502:1", "@: received unexpected HTTP status: 502 Bad Gateway", true, pullUnavailable},
	{"127.0.0.1:5101/e503:1", "@: received unexpected HTTP status: 503 Service Unavailable", true, pullUnavailable},
	{"127.0.0.1:5101/close:1", `Get "http://127.0.0.1:5101/v2/close/manifests/1": EOF`, false, pullUnavailable},
	{"127.0.0.1:5101/e429:1", "@: toomanyrequests: slow down", true, pullUnavailable},
	{
		"127.0.0.1:5102/tok401:1", "unable to retrieve auth token: invalid username/password: unauthorized", true,
		pullDenied,
	},
	{
		"127.0.0.1:5102/tok403:1", "Requesting bearer token: received unexpected HTTP status: 403 Forbidden", true,
		pullDenied,
	},
	{
		"127.0.0.1:5102/tok500:1", "Requesting bearer token: received unexpected HTTP status: 500 Internal Server Error",
		true, pullUnavailable,
	},
	{"127.0.0.1:5999/x:1", strings.ReplaceAll(downHost, "http:", "https:"), false, pullUnreached},
	{"mirr.test/e401:1", "(Mirrors also failed: [127.0.0.1:5999/e401:1: " + downHost +
		"]): 127.0.0.1:5101/e401:1: reading manifest 1 in 127.0.0.1:5101/e401: unauthorized", true, pullDenied},
	{"mirr.test/e404:1", "(Mirrors also failed: [127.0.0.1:5999/e404:1: " + downHost +
		"]): 127.0.0.1:5101/e404:1: reading manifest 1 in 127.0.0.1:5101/e404: name unknown", true, pullDenied},
	{"mirr2.test/e401plain:1", "(Mirrors also failed: [127.0.0.1:5101/e401plain:1: reading manifest 1 in 127.0.0.1:5101/" +
		"e401plain: authentication required]): 127.0.0.1:5999/e401plain:1: " + downHost, false, pullUnreached},
	{"nosuch.invalid/x:1", `pinging container registry nosuch.invalid: Get "https://nosuch.invalid/v2/": ` +
		`dial tcp: lookup nosuch.invalid on 10.0.0.10:53: no such host`, false, pullUnreached},
	{"127.0.0.1:5100/alice/app:2", "@: authentication required", true, pullDenied},
	{"127.0.0.1:5100/alice/app:zz", "@: manifest unknown", true, pullDenied},
}

// crioError returns the error as a version of CRI-O reports it.
func crioError(name, answer, artifact string) error {
	tag := strings.LastIndex(name, ":")
	answer = strings.Replace(answer, "@", "reading manifest "+name[tag+1:]+" in "+name[:tag], 1)
	text := crioOnce + name + ": " + answer
	if artifact != "" {
		text = crioTwice + name + ": " + answer + artifact + answer
	}
	if strings.HasSuffix(answer, "connection refused") {
		text = "RegistryUnavailable: " + text
	}
	return status.Error(codes.Unknown, text)
}

func TestOfRecordedErrorsOfCRIO(t *testing.T) {
	check := func(err error, want outcome) {
		t.Helper()
		checkOutcome(t, err, want)
		// Each of them ended before anything was fetched.
		if definite := want == pullDenied || want == pullUnreached; outcomeOf(err).definite(err) != definite {
			t.Errorf("%v is definite: %v; want %v", err, !definite, definite)
		}
		if fromMirror(err) {
			t.Errorf("FromMirror(%v) = true; want false, the last source is the registry", err)
		}
	}
	for _, tc := range crioTexts {
		if !tc.twice {
			check(crioError(tc.name, tc.answer, ""), tc.want)
			continue
		}
		check(crioError(tc.name, tc.answer, crio136), tc.want)
		check(crioError(tc.name, tc.answer, crio134), tc.want)
		// CRI-O before 1.33 does not support artifacts, and reports less.
		shorter := strings.TrimPrefix(status.Convert(crioError(tc.name, tc.answer, "")).Message(), "unable to pull image: ")
		check(status.Error(codes.Unknown, shorter), tc.want)
	}
}

func TestOfCRIOIsErrorWhereNothingIsCertain(t *testing.T) {
	const name, again = "r.test/a:1", "reading manifest 1 in r.test/a: unauthorized"
	for _, text := range []string{
		// The manifest was fetched, so more may have been fetched.
		"unable to pull image: reading blob sha256:00: fetching blob: StatusCode: 403, \"x\"",
		"unable to pull image or OCI artifact: pull image err: Source image rejected: unauthorized; artifact err: get " +
			"manifest: build image source: unauthorized",
		"unable to pull image or OCI artifact: create store err: dial tcp 10.0.0.1:443: connect: connection refused",
		crioTwice + name + ": " + again + "; artifact err: pull artifact: reading blob sha256:00: unauthorized",
		crioTwice + name + ": " + again + "; artifact err: image reference: parse manifest list: x",
		crioOnce + name + ": registry r.test is blocked in /etc/containers/registries.conf",
		crioOnce + name + ": reading manifest 1 in r.test/a: unknown: unauthorized",
		crioOnce + name + ": reading manifest 1 in r.test/a: unknown: dial tcp 10.0.0.1:443: connect: connection refused",
		crioOnce + name + `: Get "https://r.test/v2/": local error: dial tcp: no such host, or so`,
		`short-name "pause" did not resolve to an alias and no unqualified-search registries are defined in ` +
			`"/etc/containers/registries.conf"`,
	} {
		err := status.Error(codes.Unknown, text)
		if got := outcomeOf(err); got != pullError || got.definite(err) {
			t.Errorf("outcomeOf(%s) = %s, definite: %v; want error, false", text, got.label(), got.definite(err))
		}
	}
	checkOutcome(t, status.Error(codes.Canceled, crioTwice+name+": "+again+crio136+again), pullError)
}

// A registry writes part of the error that CRI-O reports. No text of a registry makes a refusal look like an outage,
// which the gate would answer with the grace of an expired proof. No text makes an error after the first request look
// like one that certainly brought nothing.
func TestTextOfARegistryForgesNothing(t *testing.T) {
	const (
		name     = "r.test/a:1"
		manifest = "reading manifest 1 in r.test/a: "
		down     = `pinging container registry r.test: Get "https://r.test/v2/": ` +
			`dial tcp 10.0.0.1:443: connect: connection refused`
		mirrors = "(Mirrors also failed: [m.test/a:1: " + down + "]): r.test/a:1: "
	)
	for _, body := range []string{
		down, "x]): r.test/a:1: " + down, "x]): r.test/a:1: " + down + "\n",
		"(Mirrors also failed: [m.test/a:1: x]): r.test/a:1: " + down,
		"; artifact err: get manifest: build image source: " + down, "x" + crio136 + down,
		"initializing source docker://r.test/a:1: " + down, "\nRegistryUnavailable: " + crioOnce + name + ": " + down,
		"toomanyrequests: received unexpected HTTP status: 503 Service Unavailable",
		`https://m.test/v2/a/manifests/1?ns=r.test": EOF`, "dial unix /run/crio/crio.sock: connect: connection refused",
		"dial tcp 10.0.0.1:443: i/o timeout",
	} {
		for _, answer := range []string{
			manifest + "unauthorized: " + body,
			manifest + "denied: " + body,
			manifest + "unknown: " + body,
			manifest + "manifest unknown: " + body,
			manifest + `StatusCode: 403, "` + body,
			"unable to retrieve auth token: invalid username/password: unauthorized: " + body,
			mirrors + manifest + "unauthorized: " + body,
			"(Mirrors also failed: [m.test/a:1: " + manifest + "denied: " + body + "]): r.test/a:1: " + manifest +
				"unauthorized: " + body,
		} {
			for _, err := range []error{
				crioError(name, answer, ""), crioError(name, answer, crio134), crioError(name, answer, crio136),
				crioError(name, answer, "; artifact err: "+body), // a second error that a registry wrote
			} {
				if got := outcomeOf(err); got.registryDown() {
					t.Errorf("outcome of a refusal = %s; want denied or error: %v", got.label(), err)
				}
			}
		}
		for _, text := range []string{
			"unable to pull image: reading blob sha256:00 in r.test/a: fetching blob: unauthorized: " + body,
			"unable to pull image: reading blob sha256:00 in r.test/a: fetching blob: unauthorized: " + crioOnce + name + ": " +
				body,
			"unable to pull image: copying config: unauthorized: failed to resolve " + body,
			crioTwice + name + ": " + manifest + "denied: " + body + "; artifact err: pull artifact: copy: " + body,
			`failed to pull and unpack image "r.test/a:1": failed to copy: httpReadSeeker: failed open: ` +
				`unexpected status code https://r.test/v2/a/blobs/sha256:00: 403 Forbidden - ` +
				`Server message: denied: failed to resolve ` + body,
		} {
			err := status.Error(codes.Unknown, text)
			if got := outcomeOf(err); got.definite(err) {
				t.Errorf("%s is definite; want it not, something was fetched: %v", got.label(), err)
			}
		}
	}
}

// A refusal of a mirror, with any text, is not a refusal of the registry.
func TestRefusalOfAMirrorIsNotOneOfTheRegistry(t *testing.T) {
	for _, body := range []string{"", ": x]): r.test/a:1: reading manifest 1 in r.test/a: unauthorized", ": x]): "} {
		err := crioError("r.test/a:1",
			"(Mirrors also failed: [m.test/a:1: reading manifest 1 in m.test/a: denied"+body+
				"]\n[n.test/a:1: x]): r.test/a:1: "+downHost, "")
		if got := outcomeOf(err); got == pullDenied {
			t.Errorf("outcome of a registry that is down = denied: %v", err)
		}
	}
}

// A tenant writes only the name of the image, and nothing else in the error that CRI-O reports.
func TestNameForgesNothing(t *testing.T) {
	names := []string{
		"401/unauthorized:denied", "[::1]:5000/denied/connection-refused:404", "connection.refused/eof:EOF",
	}
	for _, name := range names {
		for answer, want := range map[string]outcome{
			"reading manifest x in r.test/a: unknown: x":    pullError,
			"reading manifest x in r.test/a: denied":        pullDenied,
			"reading manifest denied in r.test/EOF: denied": pullDenied,
			downHost: pullUnreached,
		} {
			checkOutcome(t, crioError(name, answer, ""), want)
		}
	}
}
