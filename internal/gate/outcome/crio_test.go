package outcome_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/gate/outcome"
)

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
// as in CRI-O.
var crioTexts = []struct {
	name, answer string
	twice        bool
	want         outcome.Outcome
}{
	{"127.0.0.1:5101/e401:1", "reading manifest 1 in 127.0.0.1:5101/e401: unauthorized", true, outcome.Denied},
	{
		"127.0.0.1:5101/e401plain:1", "reading manifest 1 in 127.0.0.1:5101/e401plain: authentication required", true,
		outcome.Denied,
	},
	{"127.0.0.1:5101/e401unauth:1", "reading manifest 1 in 127.0.0.1:5101/e401unauth: unauthorized: access to the " +
		"requested resource is not authorized", true, outcome.Denied},
	{"127.0.0.1:5101/e403:1", "reading manifest 1 in 127.0.0.1:5101/e403: denied", true, outcome.Denied},
	{
		"127.0.0.1:5101/e403plain:1",
		`reading manifest 1 in 127.0.0.1:5101/e403plain: StatusCode: 403, "<html>forbidden</html>"`, true, outcome.Denied,
	},
	{"127.0.0.1:5101/e404:1", "reading manifest 1 in 127.0.0.1:5101/e404: name unknown", true, outcome.Denied},
	{
		"127.0.0.1:5101/e404plain:1", `reading manifest 1 in 127.0.0.1:5101/e404plain: StatusCode: 404, "not here"`, true,
		outcome.Denied,
	},
	{"127.0.0.1:5101/e500:1", "reading manifest 1 in 127.0.0.1:5101/e500: received unexpected HTTP status: 500 Internal " +
		"Server Error", true, outcome.Unavailable},
	{"127.0.0.1:5101/e502:1", "reading manifest 1 in 127.0.0.1:5101/e502: received unexpected HTTP status: 502 Bad " +
		"Gateway", true, outcome.Unavailable},
	{"127.0.0.1:5101/e503:1", "reading manifest 1 in 127.0.0.1:5101/e503: received unexpected HTTP status: 503 Service " +
		"Unavailable", true, outcome.Unavailable},
	{"127.0.0.1:5101/close:1", `Get "http://127.0.0.1:5101/v2/close/manifests/1": EOF`, false, outcome.Unavailable},
	{
		"127.0.0.1:5101/e429:1", "reading manifest 1 in 127.0.0.1:5101/e429: toomanyrequests: slow down", true,
		outcome.Unavailable,
	},
	{
		"127.0.0.1:5102/tok401:1", "unable to retrieve auth token: invalid username/password: unauthorized", true,
		outcome.Denied,
	},
	{
		"127.0.0.1:5102/tok403:1", "Requesting bearer token: received unexpected HTTP status: 403 Forbidden", true,
		outcome.Denied,
	},
	{
		"127.0.0.1:5102/tok500:1", "Requesting bearer token: received unexpected HTTP status: 500 Internal Server Error",
		true, outcome.Unavailable,
	},
	{"127.0.0.1:5999/x:1", strings.ReplaceAll(downHost, "http:", "https:"), false, outcome.Unreached},
	{"mirr.test/e401:1", "(Mirrors also failed: [127.0.0.1:5999/e401:1: " + downHost +
		"]): 127.0.0.1:5101/e401:1: reading manifest 1 in 127.0.0.1:5101/e401: unauthorized", true, outcome.Denied},
	{"mirr.test/e404:1", "(Mirrors also failed: [127.0.0.1:5999/e404:1: " + downHost +
		"]): 127.0.0.1:5101/e404:1: reading manifest 1 in 127.0.0.1:5101/e404: name unknown", true, outcome.Denied},
	{
		"mirr2.test/e401plain:1", "(Mirrors also failed: [127.0.0.1:5101/e401plain:1: reading manifest 1 in " +
			"127.0.0.1:5101/e401plain: authentication required]): 127.0.0.1:5999/e401plain:1: " + downHost, false,
		outcome.Unreached,
	},
	{
		"nosuch.invalid/x:1",
		`pinging container registry nosuch.invalid: Get "https://nosuch.invalid/v2/": ` +
			`dial tcp: lookup nosuch.invalid on 10.0.0.10:53: no such host`, false, outcome.Unreached,
	},
	{
		"127.0.0.1:5100/alice/app:2", "reading manifest 2 in 127.0.0.1:5100/alice/app: authentication required", true,
		outcome.Denied,
	},
	{
		"127.0.0.1:5100/alice/app:zz", "reading manifest zz in 127.0.0.1:5100/alice/app: manifest unknown", true,
		outcome.Denied,
	},
}

// crioError returns the error as a version of CRI-O reports it.
func crioError(name, answer, artifact string) error {
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
	check := func(err error, want outcome.Outcome) {
		t.Helper()
		got := outcome.Of(err)
		if got != want {
			t.Errorf("outcome.Of(%v) = %s (%d); want %s (%d)", err, got.Label(), got, want.Label(), want)
		}
		// Each of them ended before anything was fetched.
		if definite := want == outcome.Denied || want == outcome.Unreached; got.Definite(err) != definite {
			t.Errorf("%v is definite: %v; want %v", err, !definite, definite)
		}
		if outcome.FromMirror(err) {
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
		check(status.Error(codes.Unknown, "initializing source docker://"+tc.name+": "+tc.answer), tc.want)
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
		if got := outcome.Of(err); got != outcome.Error || got.Definite(err) {
			t.Errorf("outcome.Of(%s) = %s, definite: %v; want error, false", text, got.Label(), got.Definite(err))
		}
	}
	err := status.Error(codes.Canceled, crioTwice+name+": "+again+crio136+again)
	if got := outcome.Of(err); got != outcome.Error {
		t.Errorf("outcome of a pull that was canceled = %s; want error", got.Label())
	}
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
		down,
		"x]): r.test/a:1: " + down,
		"x]): r.test/a:1: " + down + "\n",
		"(Mirrors also failed: [m.test/a:1: x]): r.test/a:1: " + down,
		"; artifact err: get manifest: build image source: " + down,
		"x" + crio136 + down,
		"initializing source docker://r.test/a:1: " + down,
		"\nRegistryUnavailable: " + crioOnce + name + ": " + down,
		"toomanyrequests: received unexpected HTTP status: 503 Service Unavailable",
		`https://m.test/v2/a/manifests/1?ns=r.test": EOF`,
		"dial unix /run/crio/crio.sock: connect: connection refused",
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
				if got := outcome.Of(err); got.RegistryDown() {
					t.Errorf("outcome of a refusal = %s; want denied or error: %v", got.Label(), err)
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
			if got := outcome.Of(err); got.Definite(err) {
				t.Errorf("%s is definite; want it not, something was fetched: %v", got.Label(), err)
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
		if got := outcome.Of(err); got == outcome.Denied {
			t.Errorf("outcome of a registry that is down = denied: %v", err)
		}
	}
}

// A tenant writes only the name of the image, and nothing else in the error that CRI-O reports.
func TestNameForgesNothing(t *testing.T) {
	for _, name := range []string{
		"401/unauthorized:denied", "[::1]:5000/denied/connection-refused:404",
		"connection.refused/eof:EOF",
	} {
		for answer, want := range map[string]outcome.Outcome{
			"reading manifest x in r.test/a: unknown: x":    outcome.Error,
			"reading manifest x in r.test/a: denied":        outcome.Denied,
			"reading manifest denied in r.test/EOF: denied": outcome.Denied,
			downHost: outcome.Unreached,
		} {
			if err := crioError(name, answer, ""); outcome.Of(err) != want {
				t.Errorf("outcome.Of(%v) = %s; want %s", err, outcome.Of(err).Label(), want.Label())
			}
		}
	}
}
