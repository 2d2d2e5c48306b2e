package wire_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // the compressor of the cases that compress
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The cases of the client of grpc-go, without those that need TLS, credentials, a server with a name (pick_first_unary)
// or a service that is not the CRI (orca_oob).
type interopCase func(ctx context.Context, connect func() *grpc.ClientConn, opts ...grpc.CallOption)

var cases = map[string]interopCase{
	"empty_unary":                 on(interop.DoEmptyUnaryCall),
	"large_unary":                 on(interop.DoLargeUnaryCall),
	"client_streaming":            on(interop.DoClientStreaming),
	"server_streaming":            on(interop.DoServerStreaming),
	"ping_pong":                   on(interop.DoPingPong),
	"empty_stream":                on(interop.DoEmptyStream),
	"timeout_on_sleeping_server":  on(interop.DoTimeoutOnSleepingServer),
	"cancel_after_begin":          on(interop.DoCancelAfterBegin),
	"cancel_after_first_response": on(interop.DoCancelAfterFirstResponse),
	"status_code_and_message":     on(interop.DoStatusCodeAndMessage),
	"special_status_message":      on(interop.DoSpecialStatusMessage),
	"custom_metadata":             on(interop.DoCustomMetadata),
	"unimplemented_method": func(ctx context.Context, connect func() *grpc.ClientConn, _ ...grpc.CallOption) {
		interop.DoUnimplementedMethod(ctx, connect())
	},
	"unimplemented_service": func(ctx context.Context, connect func() *grpc.ClientConn, _ ...grpc.CallOption) {
		interop.DoUnimplementedService(ctx, testpb.NewUnimplementedServiceClient(connect()))
	},
	"orca_per_rpc": func(ctx context.Context, connect func() *grpc.ClientConn, _ ...grpc.CallOption) {
		interop.DoORCAPerRPCTest(ctx, testpb.NewTestServiceClient(connect()))
	},
	"rpc_soak": func(ctx context.Context, connect func() *grpc.ClientConn, _ ...grpc.CallOption) {
		cc := connect()
		soak(ctx, func() (*grpc.ClientConn, func()) { return cc, func() {} })
	},
	"channel_soak": func(ctx context.Context, connect func() *grpc.ClientConn, _ ...grpc.CallOption) {
		soak(ctx, func() (*grpc.ClientConn, func()) {
			cc := connect()
			return cc, func() { _ = cc.Close() }
		})
	},
}

func soak(ctx context.Context, channel func() (*grpc.ClientConn, func())) {
	interop.DoSoakTest(ctx, interop.SoakTestConfig{
		RequestSize: 271828, ResponseSize: 314159,
		PerIterationMaxAcceptableLatency: 10 * time.Second, OverallTimeout: time.Minute,
		NumWorkers: 8, Iterations: 32, ChannelForTest: channel,
	})
}

func on(do func(context.Context, testpb.TestServiceClient, ...grpc.CallOption)) interopCase {
	return func(ctx context.Context, connect func() *grpc.ClientConn, opts ...grpc.CallOption) {
		do(ctx, testpb.NewTestServiceClient(connect()), opts...)
	}
}

func TestInterop(t *testing.T) {
	grpclog.SetLoggerV2(fatalPanics{grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)})
	for way, endpoint := range endpoints(t) {
		for name, do := range cases {
			for compression, opts := range map[string][]grpc.CallOption{"": nil, "/gzip": {grpc.UseCompressor("gzip")}} {
				t.Run(way+"/"+name+compression, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					defer func() {
						if failure := recover(); failure != nil {
							t.Error(failure)
						}
					}()
					do(ctx, func() *grpc.ClientConn { return interopClient(t, endpoint) }, opts...)
				})
			}
		}
	}
}

// interopClient returns a client that calls methods of the TestService as methods of the RuntimeService.
func interopClient(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	as := func(method string) string {
		prefix := "/" + testpb.TestService_ServiceDesc.ServiceName + "/"
		if name, ok := strings.CutPrefix(method, prefix); ok {
			return "/" + runtimeapi.RuntimeService_ServiceDesc.ServiceName + "/" + name
		}
		return method
	}
	cc, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// of orca_per_rpc
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`),
		grpc.WithUnaryInterceptor(func(
			ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker, o ...grpc.CallOption,
		) error {
			return do(ctx, as(m), req, reply, cc, o...)
		}),
		grpc.WithStreamInterceptor(func(
			ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, do grpc.Streamer, o ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return do(ctx, d, cc, as(m), o...)
		}))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// fatalPanics panics where a case of the suite would end the process.
type fatalPanics struct{ grpclog.LoggerV2 }

func (fatalPanics) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (fatalPanics) Fatalln(args ...any)               { panic(fmt.Sprint(args...)) }
func (fatalPanics) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
