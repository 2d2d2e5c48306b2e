package criproxy_test

import (
	"context"
	"errors"
	"io"
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
			runtimeapi.ImageService_ImageStatus_FullMethodName: func(ctx context.Context, c *criproxy.Call) ([]byte,
				error,
			) {
				handled++
				return c.Forward(ctx)
			},
		},
	})
	t.Cleanup(stop)
	cc := client(t, "unix://"+l.Addr().String())
	for _, tc := range []struct {
		method  string
		at      *criproxytest.Echo
		do      []string
		answers int
		code    codes.Code
	}{
		{runtimeapi.RuntimeService_Version_FullMethodName, runtime, nil, 1, codes.OK},
		{runtimeapi.ImageService_ImageStatus_FullMethodName, images, nil, 1, codes.OK},
		{runtimeapi.ImageService_ListImages_FullMethodName, images, nil, 1, codes.OK},
		{
			runtimeapi.ImageService_ListImages_FullMethodName, images,
			[]string{"do-replies", "0", "do-fail", "9"},
			0,
			codes.FailedPrecondition,
		},
		{
			runtimeapi.ImageService_StreamImages_FullMethodName, images,
			[]string{"do-replies", "500", "do-size", "0"},
			500,
			codes.OK,
		},
		{
			runtimeapi.ImageService_StreamImages_FullMethodName, images,
			[]string{"do-replies", "3", "do-size", "0", "do-fail", "9"},
			3, codes.FailedPrecondition,
		},
		{"/runtime.v1.ImageService/NotYetInvented", images, nil, 1, codes.OK},
		{"/runtime.v1.RuntimeService/NotYetInvented", runtime, nil, 1, codes.OK},
	} {
		seen := tc.at.Next(tc.method)
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs(append([]string{"call", tc.method}, tc.do...)...))
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

// A method whose name a runtime could decode to another one is not forwarded.
func TestMethodsUnderAnotherSpellingAreNotPassedOn(t *testing.T) {
	echo := criproxytest.NewEcho(t)
	proxied, _ := serveBefore(t, echo.Endpoint())
	cc := client(t, proxied)
	for _, method := range []string{
		"/runtime.v1.ImageService/Image%53tatus", "/runtime.v1.ImageService//ImageStatus",
		"//runtime.v1.ImageService/ImageStatus",
		"/runtime.v1.ImageService/ImageStatus/", "/runtime.v1.ImageService/ImageStatus?x",
		"/runtime.v1.ImageService/./ImageStatus",
		"/runtime.v1.ImageService/", "/runtime.v1.ImageService/ImageStatus#", "/RUNTIME.v1.ImageService/ImageStatus",
	} {
		if _, err := criproxytest.CallRaw(t.Context(), cc, method, nil); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s = %v; want Unimplemented", method, err)
		}
	}
}
