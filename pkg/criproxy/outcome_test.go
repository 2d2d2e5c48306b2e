package criproxy

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The texts are those of containerd 1.6 and 2.x for each kind of failure.
func TestClassifyTellsDeniedFromUnavailable(t *testing.T) {
	const pulling = `failed to pull and unpack image "r.test/a:1": failed to resolve reference "r.test/a:1": `
	for _, tc := range []struct {
		code codes.Code
		text string
		want outcome
	}{
		{codes.Unknown, pulling + "pulling from host r.test failed with status code [manifests 1]: 401 Unauthorized", outcomeDenied},
		{codes.Unknown, pulling + "unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 403 Forbidden", outcomeDenied},
		{codes.Unknown, pulling + "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed", outcomeDenied},
		{codes.NotFound, pulling + "r.test/a:1: not found", outcomeDenied},
		{codes.Unauthenticated, pulling + "unexpected status", outcomeDenied},
		{codes.PermissionDenied, pulling + "unexpected status", outcomeDenied},
		{codes.Unknown, pulling + `failed to do request: Head "https://r.test/v2/a/manifests/1": dial tcp 10.0.0.1:443: connect: connection refused`, outcomeUnreached},
		{codes.Unknown, pulling + `failed to do request: Head "https://r.test/v2/a/manifests/1": dial tcp: lookup r.test: no such host`, outcomeUnreached},
		{codes.Unknown, pulling + `failed to do request: Head "https://r.test/v2/a/manifests/1": dial tcp 10.0.0.1:443: i/o timeout`, outcomeUnreached},
		{codes.Unknown, pulling + `failed to do request: Head "https://r.test/": net/http: TLS handshake timeout`, outcomeUnreached},
		{codes.Unknown, pulling + "pulling from host r.test failed with status code [manifests 1]: 500 Internal Server Error", outcomeUnavailable},
		{codes.Unknown, pulling + "pulling from host r.test failed with status code [manifests 1]: 503 Service Unavailable", outcomeUnavailable},
		{codes.Unknown, pulling + "unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 429 Too Many Requests", outcomeUnavailable},
		{codes.Unknown, `failed to copy: read tcp 10.0.0.2:1->10.0.0.1:443: read: connection reset by peer`, outcomeUnavailable},
		{codes.Unavailable, pulling + "unexpected status from HEAD request: 503 Service Unavailable", outcomeUnavailable},
		// Nobody knows what the runtime made of these.
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /run/containerd/containerd.sock: connect: connection refused"`, outcomeError},
		{codes.Unavailable, "error reading from server: EOF", outcomeError},
		{codes.Canceled, "context canceled", outcomeError},
		{codes.Canceled, pulling + "401 Unauthorized", outcomeError},
		{codes.DeadlineExceeded, "context deadline exceeded", outcomeError},
		{codes.Internal, "stream terminated by RST_STREAM", outcomeError},
		{codes.ResourceExhausted, "grpc: received message larger than max (17 vs. 16)", outcomeError},
		{codes.Unknown, "failed to extract layer: no space left on device", outcomeError},
		{codes.Unknown, "", outcomeError},
		// A tenant chooses the name that a text quotes.
		{codes.Unknown, `failed to extract "r.test/401/unauthorized/denied/403-forbidden:404"`, outcomeError},
	} {
		if got := classify(status.Error(tc.code, tc.text)); got != tc.want {
			t.Errorf("classify(%v, %q) = %s (%d); want %s (%d)", tc.code, tc.text, got.label(), got, tc.want.label(), tc.want)
		}
	}
	if got := classify(nil); got != outcomeVerified {
		t.Errorf("classify(nil) = %s; want verified", got.label())
	}
	if got := classify(errors.New("401 Unauthorized")); got != outcomeError {
		t.Errorf("classify of an error without a status = %s", got.label())
	}
}

func TestUserAgentTellsWhetherAlwaysIsPrechecked(t *testing.T) {
	for agent, want := range map[string]bool{
		"grpc-go/1.58.3": false, "grpc-go/1.65.0": false, "grpc-go/1.68.0": true, "grpc-go/1.72.1": true, "grpc-go/1.79.0-dev": true,
		"kubelet/1.34 grpc-go/1.72.1": true, "grpc-go/2.1.0": false, "grpc-go/": false, "grpc-go/1": false, "grpc-go/1.x": false, "": false, "grpc-c++/1.72.1": false,
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("user-agent", agent))
		if got := AlwaysPrecheckAuto.skips(ctx); got != want {
			t.Errorf("skips(%q) = %v; want %v", agent, got, want)
		}
		if !AlwaysPrecheckSkipped.skips(ctx) || AlwaysPrecheckSent.skips(ctx) {
			t.Errorf("%q overrules what was configured", agent)
		}
	}
	if AlwaysPrecheckAuto.skips(t.Context()) {
		t.Error("a call without a user agent is taken for a new kubelet's")
	}
}

func TestHiddenForgetsTheOldestBeyondItsBound(t *testing.T) {
	var h hidden
	for i := range maxHidden + 10 {
		if !h.set(keyOf(fmt.Sprint(i), "busybox")) {
			t.Fatalf("pre-check %d was hidden before", i)
		}
	}
	if len(h.keys) != maxHidden || len(h.order) != maxHidden {
		t.Errorf("%d keys, %d in order; want %d", len(h.keys), len(h.order), maxHidden)
	}
	if h.has(keyOf("9", "busybox")) || !h.has(keyOf("10", "busybox")) {
		t.Error("not the oldest were forgotten")
	}
	if h.set(keyOf("10", "docker.io/library/busybox:latest")) {
		t.Error("two spellings of a name are told apart")
	}
	h.clear(keyOf("10", "busybox"))
	h.clear(keyOf("10", "busybox"))
	if h.has(keyOf("10", "busybox")) || len(h.order) != maxHidden-1 {
		t.Error("a cleared pre-check is still hidden")
	}
}

// An intent goes only with an error that came before anything was fetched: containerd may fail after it
// has stored the image.
func TestOnlyAFailedResolveIsDefinite(t *testing.T) {
	for _, tc := range []struct {
		code codes.Code
		text string
		want bool
	}{
		{codes.Unknown, `failed to pull and unpack image "r.test/a:1": failed to resolve reference "r.test/a:1": 401 Unauthorized`, true},
		{codes.NotFound, `failed to pull and unpack image "r.test/a:1": failed to resolve image: r.test/a:1: not found`, true},
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
		if got := classify(err).definite(err); got != tc.want {
			t.Errorf("%v %q is definite: %v; want %v", tc.code, tc.text, got, tc.want)
		}
	}
}
