// Package wire_test holds the gRPC and the HTTP/2 of the built pullgated to suites of other projects: h2spec, and the
// interoperability tests of gRPC. Each test runs against a server of grpc-go, which is the runtime, and through
// pullgated before it.
package wire_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// endpoints starts a runtime and a pullgated before it, and returns where they listen.
func endpoints(t *testing.T) map[string]string {
	t.Helper()
	dir := criproxytest.SocketDir(t)
	direct := "unix://" + filepath.Join(dir, "runtime.sock")
	server := grpc.NewServer(orca.CallMetricsServerOption(nil), grpc.ForceServerCodecV2(criproxytest.RawCodec{}),
		grpc.UnknownServiceHandler(criproxytest.NewRuntime(t).Handle))
	inRuntimeService := testpb.TestService_ServiceDesc // pullgated forwards the CRI alone
	inRuntimeService.ServiceName = runtimeapi.RuntimeService_ServiceDesc.ServiceName
	server.RegisterService(&inRuntimeService, interop.NewTestServer())
	l := criproxytest.Listen(t, strings.TrimPrefix(direct, "unix://"))
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	gate := node.RunPullgated(t, filepath.Join(dir, "pullgated"), direct)
	return map[string]string{"direct": direct, "proxied": gate.Endpoint()}
}
