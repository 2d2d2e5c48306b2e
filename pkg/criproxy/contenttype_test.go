package criproxy_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// CRI-O's socket closes a connection whose calls have any other content type than application/grpc. The direct calls
// of the table of [criproxytest.Fidelity] must have it too, or the table compares the wrong thing.
func TestContentTypeThatReachesTheRuntime(t *testing.T) {
	echo := criproxytest.NewEcho(t)
	proxied, _ := serveBefore(t, echo.Endpoint())
	up := upstream(t, echo.Endpoint())
	direct, through := client(t, echo.Endpoint()), client(t, proxied)
	for _, tc := range []struct {
		name, want string
		call       func(call metadata.MD) error
	}{
		{"a kubelet's call", "application/grpc", func(id metadata.MD) error {
			return through.Invoke(metadata.NewOutgoingContext(t.Context(), id), runtimeapi.RuntimeService_Version_FullMethodName,
				&runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{})
		}},
		{"a raw call", "application/grpc", func(id metadata.MD) error {
			_, err := criproxytest.CallRaw(metadata.NewOutgoingContext(t.Context(), id), direct,
				runtimeapi.RuntimeService_Version_FullMethodName, nil)
			return err
		}},
		{"a call with a subtype", "application/grpc+proto", func(id metadata.MD) error {
			return through.Invoke(metadata.NewOutgoingContext(t.Context(), id), runtimeapi.RuntimeService_Version_FullMethodName,
				&runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{}, grpc.CallContentSubtype("proto"))
		}},
		{"a call of the proxy itself", "application/grpc", func(id metadata.MD) error {
			return up.Invoke(metadata.NewOutgoingContext(t.Context(), id), runtimeapi.RuntimeService_Version_FullMethodName,
				&runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{})
		}},
	} {
		seen := echo.Next(tc.name)
		if err := tc.call(metadata.Pairs("call", tc.name)); err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := (<-seen).Metadata.Get("content-type"); !slices.Equal(got, []string{tc.want}) {
			t.Errorf("content type of %s = %q; want %s", tc.name, got, tc.want)
		}
	}
}
