package criproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"testing"

	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// Each reference to a forwarded message is released once, and not before the message is sent. A
// reference too many shows as a buffer that stays in use, one too few as other bytes or as a panic of grpc.
func TestBuffersAreReleased(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	message := bytes.Repeat([]byte{0xfa, 0x3e, 0x03, 'n', 'e', 'w'}, 20_000)
	fails := criproxytest.Script{Fail: 9}
	const version, status, unknown = runtimeapi.RuntimeService_Version_FullMethodName,
		runtimeapi.ImageService_ImageStatus_FullMethodName, "/runtime.v1.RuntimeService/NotYetInvented"
	for name, tc := range map[string]struct {
		method string
		do     criproxytest.Script
	}{
		"unary call":                         {method: version},
		"unary call that fails":              {version, criproxytest.Script{Silent: true, Fail: 9}},
		"unary call that fails after all":    {version, fails},
		"unary call with an answer too many": {version, criproxytest.Script{Replies: 2, Size: len(message)}},
		"call that is read":                  {method: status},
		"call that is read and fails":        {status, fails},
		"stream":                             {method: unknown},
		"stream that fails":                  {unknown, fails},
	} {
		t.Run(name, func(t *testing.T) {
			echo := criproxytest.NewEcho(t)
			proxied, _ := serveBefore(t, echo.Endpoint())
			cc := client(t, proxied)
			call := func(ctx context.Context) error {
				ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs("do", tc.do.String()))
				got, err := criproxytest.CallRaw(ctx, cc, tc.method, message)
				if (err != nil) != (tc.do != criproxytest.Script{}) {
					return fmt.Errorf("call: %w", err)
				}
				if err == nil && !bytes.Equal(got, message) {
					return fmt.Errorf("%d bytes came back as %d others", len(message), len(got))
				}
				return nil
			}
			if err := call(t.Context()); err != nil { // the connections are made
				t.Fatal(err)
			}
			before := criproxytest.Buffers().InUse(math.MaxInt64)
			const calls = 50
			for range calls {
				testkit.Must(t, call(t.Context()))
			}
			// A leak of ours leaks a reference in every call, and a message has several buffers. grpc itself leaks one now and
			// then, to the garbage collector, when the answer to a message comes before SendMsg has noted that it was sent.
			most := before + 2*calls
			if after := criproxytest.Buffers().InUse(most); after > most {
				t.Errorf("%d buffers are in use after %d calls, %d before", after, calls, before)
			}
		})
	}
}
