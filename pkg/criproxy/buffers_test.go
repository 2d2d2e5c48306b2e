package criproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
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
	for name, tc := range map[string]struct {
		method string
		do     []string
		fails  bool
	}{
		"unary call": {method: "/runtime.v1.RuntimeService/Version"},
		"unary call that fails": {
			method: "/runtime.v1.RuntimeService/Version",
			do:     []string{"do-replies", "0", "do-fail", "9"}, fails: true,
		},
		"unary call that fails after all": {
			method: "/runtime.v1.RuntimeService/Version", do: []string{"do-fail", "9"},
			fails: true,
		},
		"unary call with an answer too many": {
			method: "/runtime.v1.RuntimeService/Version",
			do:     []string{"do-replies", "2", "do-size", strconv.Itoa(len(message))}, fails: true,
		},
		"call that is read": {method: runtimeapi.ImageService_ImageStatus_FullMethodName},
		"call that is read and fails": {
			method: runtimeapi.ImageService_ImageStatus_FullMethodName,
			do:     []string{"do-fail", "9"}, fails: true,
		},
		"stream": {method: "/runtime.v1.RuntimeService/NotYetInvented"},
		"stream that fails": {
			method: "/runtime.v1.RuntimeService/NotYetInvented",
			do:     []string{"do-fail", "9"}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			echo := criproxytest.NewEcho(t)
			proxied, _ := serveBefore(t, echo.Endpoint())
			cc := client(t, proxied)
			call := func(ctx context.Context) error {
				ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(tc.do...))
				got, err := criproxytest.CallRaw(ctx, cc, tc.method, message)
				if (err != nil) != tc.fails {
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
			before := criproxytest.Buffers().InUse()
			const calls = 50
			for range calls {
				testkit.Must(t, call(t.Context()))
			}
			// A leak of ours leaks a reference in every call, and a message has several buffers. grpc itself leaks one now and
			// then, to the garbage collector, when the answer to a message comes before SendMsg has noted that it was sent.
			most := before + 2*calls
			if after := criproxytest.Buffers().WaitInUse(most); after > most {
				t.Errorf("%d buffers are in use after %d calls, %d before", after, calls, before)
			}
		})
	}
}
