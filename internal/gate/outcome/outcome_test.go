package outcome_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/gate/outcome"
)

// The texts are those of containerd 1.6 and 2.x for each kind of failure.
func TestOfDistinguishesDeniedAndUnavailable(t *testing.T) {
	const pulling = `failed to pull and unpack image "r.test/a:1": failed to resolve reference "r.test/a:1": `
	for _, tc := range []struct {
		code codes.Code
		text string
		want outcome.Outcome
	}{
		{
			codes.Unknown, pulling + "pulling from host r.test failed with status code [manifests 1]: 401 Unauthorized",
			outcome.Denied,
		},
		{
			codes.Unknown, pulling + "unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 403 Forbidden",
			outcome.Denied,
		},
		{codes.Unknown, pulling + "pull access denied, repository does not exist or may require authorization: server " +
			"message: insufficient_scope: authorization failed", outcome.Denied},
		{codes.NotFound, pulling + "r.test/a:1: not found", outcome.Denied},
		{codes.Unauthenticated, pulling + "unexpected status", outcome.Denied},
		{codes.PermissionDenied, pulling + "unexpected status", outcome.Denied},
		{
			codes.Unknown, pulling +
				`failed to do request: Head "https://r.test/v2/a/manifests/1": dial tcp 10.0.0.1:443: connect: connection refused`,
			outcome.Unreached,
		},
		{
			codes.Unknown, pulling +
				`failed to do request: Head "https://r.test/v2/a/manifests/1": dial tcp: lookup r.test: no such host`,
			outcome.Unreached,
		},
		{
			codes.Unknown, pulling +
				`failed to do request: Head "https://r.test/v2/a/manifests/1": dial tcp 10.0.0.1:443: i/o timeout`,
			outcome.Unreached,
		},
		{
			codes.Unknown, pulling + `failed to do request: Head "https://r.test/": net/http: TLS handshake timeout`,
			outcome.Unreached,
		},
		{
			codes.Unknown, pulling + "pulling from host r.test failed with status code [manifests 1]: 500 Internal Server Error",
			outcome.Unavailable,
		},
		{
			codes.Unknown, pulling + "pulling from host r.test failed with status code [manifests 1]: 503 Service Unavailable",
			outcome.Unavailable,
		},
		{codes.Unknown, pulling + "unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 429 Too Many " +
			"Requests", outcome.Unavailable},
		{
			codes.Unknown, `failed to copy: read tcp 10.0.0.2:1->10.0.0.1:443: read: connection reset by peer`,
			outcome.Unavailable,
		},
		{codes.Unavailable, pulling + "unexpected status from HEAD request: 503 Service Unavailable", outcome.Unavailable},
		// The result of these in the runtime is unknown.
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: ` +
			`dial unix /run/containerd/containerd.sock: connect: connection refused"`, outcome.Error},
		{codes.Unavailable, "error reading from server: EOF", outcome.Error},
		{codes.Canceled, "context canceled", outcome.Error},
		{codes.Canceled, pulling + "401 Unauthorized", outcome.Error},
		{codes.DeadlineExceeded, "context deadline exceeded", outcome.Error},
		{codes.Internal, "stream terminated by RST_STREAM", outcome.Error},
		{codes.ResourceExhausted, "grpc: received message larger than max (17 vs. 16)", outcome.Error},
		{codes.Unknown, "failed to extract layer: no space left on device", outcome.Error},
		{codes.Unknown, "", outcome.Error},
		// A tenant chooses the name that a text quotes.
		{codes.Unknown, `failed to extract "r.test/401/unauthorized/denied/403-forbidden:404"`, outcome.Error},
	} {
		if got := outcome.Of(status.Error(tc.code, tc.text)); got != tc.want {
			t.Errorf("outcome.Of(%v, %q) = %s (%d); want %s (%d)", tc.code, tc.text, got.Label(), got, tc.want.Label(), tc.want)
		}
	}
	if got := outcome.Of(nil); got != outcome.Verified {
		t.Errorf("outcome.Of(nil) = %s; want verified", got.Label())
	}
	if got := outcome.Of(errors.New("401 Unauthorized")); got != outcome.Error {
		t.Errorf("outcome of an error without a status = %s", got.Label())
	}
}

// An intent is deleted only for an error that came before anything was fetched: containerd may fail after it has stored
// the image.
func TestOnlyAFailedResolveIsDefinite(t *testing.T) {
	for _, tc := range []struct {
		code codes.Code
		text string
		want bool
	}{
		{codes.Unknown, `failed to pull and unpack image "r.test/a:1": ` +
			`failed to resolve reference "r.test/a:1": 401 Unauthorized`, true},
		{
			codes.NotFound, `failed to pull and unpack image "r.test/a:1": failed to resolve image: r.test/a:1: not found`,
			true,
		},
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
		if got := outcome.Of(err).Definite(err); got != tc.want {
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
		if got := outcome.FromMirror(status.Error(codes.Unknown, text)); got != want {
			t.Errorf("FromMirror(%s) = %t; want %t", text, got, want)
		}
	}
}
