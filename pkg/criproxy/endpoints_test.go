package criproxy_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// A node may have an endpoint of its own for the ImageService.
func TestEndpointsThatDiffer(t *testing.T) {
	runtime, images := criproxytest.NewEcho(t), criproxytest.NewEcho(t)
	r, i := upstream(t, runtime.Endpoint()), upstream(t, images.Endpoint())
	handled := 0
	l := criproxytest.Listen(t, runtime.Endpoint()[len("unix://"):]+".proxy")
	_, stop := serveWith(t, l, criproxy.Config{
		Runtime: r, Image: i,
		Handlers: map[string]criproxy.Handler{
			runtimeapi.ImageService_ImageStatus_FullMethodName: func(ctx context.Context, c *criproxy.Call) ([]byte, error) {
				handled++
				return c.Forward(ctx)
			},
		},
	})
	t.Cleanup(stop)
	cc := client(t, "unix://"+l.Addr().String())
	const list, stream = runtimeapi.ImageService_ListImages_FullMethodName,
		runtimeapi.ImageService_StreamImages_FullMethodName
	for _, tc := range []struct {
		method  string
		at      *criproxytest.Echo
		do      criproxytest.Script
		answers int
		code    codes.Code
	}{
		{runtimeapi.RuntimeService_Version_FullMethodName, runtime, criproxytest.Script{}, 1, codes.OK},
		{runtimeapi.ImageService_ImageStatus_FullMethodName, images, criproxytest.Script{}, 1, codes.OK},
		{list, images, criproxytest.Script{}, 1, codes.OK},
		{list, images, criproxytest.Script{Silent: true, Fail: 9}, 0, codes.FailedPrecondition},
		{stream, images, criproxytest.Script{Replies: 500}, 500, codes.OK},
		{stream, images, criproxytest.Script{Replies: 3, Fail: 9}, 3, codes.FailedPrecondition},
		{"/runtime.v1.ImageService/NotYetInvented", images, criproxytest.Script{}, 1, codes.OK},
		{"/runtime.v1.RuntimeService/NotYetInvented", runtime, criproxytest.Script{}, 1, codes.OK},
	} {
		seen := tc.at.Next(tc.method)
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs("call", tc.method, "do", tc.do.String()))
		s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, tc.method)
		if err == nil {
			err = errors.Join(s.SendMsg(&runtimeapi.VersionRequest{Version: "x"}), s.CloseSend())
		}
		n := 0
		for ; err == nil; n++ {
			err = s.RecvMsg(&runtimeapi.VersionResponse{})
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != tc.code || n-1 != tc.answers {
			t.Errorf("%s %v = %v with %d answers; want %v with %d", tc.method, tc.do, err, n-1, tc.code, tc.answers)
			continue
		}
		if trailer := s.Trailer().Get("x-trailer"); len(trailer) != 2 {
			t.Errorf("trailer of %s = %v", tc.method, s.Trailer())
		}
		if got := <-seen; len(got.Messages) != 1 {
			t.Errorf("%s arrived with %d messages; want 1", tc.method, len(got.Messages))
		}
	}
	if handled != 1 {
		t.Errorf("handler has run %d times; want once", handled)
	}
}

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
