package criproxytest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type row struct {
	name   string
	method string
	// md is the metadata of the request, in pairs.
	md []string
	// subtype is that of the content type, "" for the content type that kubelets send, application/grpc.
	subtype string
	send    [][]byte
	// headerFirst waits for the header before anything is sent, lockstep for each echo before the
	// next message.
	headerFirst, lockstep bool
	// open leaves the client's direction open: it never half-closes.
	open bool
	// limit is the deadline of the call, 0 for none.
	limit time.Duration
	// cut ends the call once it hangs in the runtime and so many answers have come.
	cut     cut
	answers int
	// unseen says that the runtime does not see the call at all, or not to its end.
	unseen bool
}

// A cut is how a client ends a call that is under way.
type cut uint8

const (
	noCut       cut = iota
	cancels         // it cancels the call
	disconnects     // it closes its connection
)

const (
	known        = "/runtime.v1.RuntimeService/Version"
	knownStream  = "/runtime.v1.RuntimeService/GetContainerEvents"
	unknown      = "/runtime.v1.RuntimeService/NotYetInvented"
	unknownImage = "/runtime.v1.ImageService/NotYetInvented"
)

// readMethods are methods that a proxy which judges reads on their way; without a pod's annotations and
// with fields that it does not know, there is nothing to judge and nothing to change.
func readMethods() []string {
	return []string{
		runtimeapi.ImageService_ImageStatus_FullMethodName,
		runtimeapi.ImageService_RemoveImage_FullMethodName,
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName,
	}
}

func rows() []row { //nolint:revive // a table
	// Fields that no version of the CRI knows, and bytes that are not a message at all.
	odd := []byte{0xfa, 0x3e, 0x03, 'n', 'e', 'w', 0x08, 0x96, 0x01}
	garbage := []byte{0xff, 0xff, 0xff, 0xff}
	big := bytes.Repeat([]byte{7}, limit)
	over := append(bytes.Clone(big), 7)
	one := [][]byte{odd}
	many := make([][]byte, 2000)
	for i := range many {
		many[i] = bytes.Repeat([]byte{byte(i)}, i)
	}
	do := func(pairs ...string) []string { return pairs }
	replies := func(n, size int) []string { return do(doReplies, fmt.Sprint(n), doSize, fmt.Sprint(size)) }
	const failed, image = "9", runtimeapi.ImageService_ImageStatus_FullMethodName
	all := []row{
		// Unary.
		{name: "known unary method with unknown fields", method: known, send: one},
		{name: "known unary method with bytes that are not a message", method: known, send: [][]byte{garbage}},
		{name: "known unary method with an empty message", method: known, send: [][]byte{{}}},
		{name: "known unary method that fails", method: known, send: one, md: append(replies(0, 0), doFail, failed)},
		{
			name: "known unary method that fails without header and trailer", method: known, send: one,
			md: append(replies(0, 0), doFail, failed, doBare, "1"),
		},
		{name: "known unary method without header and trailer", method: known, send: one, md: do(doBare, "1")},
		{name: "known unary method with an unknown code", method: known, send: one, md: append(replies(0, 0), doFail, "77")},
		{name: "unknown unary method", method: unknown, send: one},
		{name: "unknown unary method of the image service", method: unknownImage, send: one},
		{
			name: "unknown method that is not implemented", method: unknown, send: one,
			md: append(replies(0, 0), doFail, "12", doBare, "1"),
		},
		{name: "unknown method that fails without a message", method: unknown, md: append(replies(0, 0), doFail, failed)},
		{name: "unknown method with an unknown code", method: unknown, send: one, md: append(replies(0, 0), doFail, "77")},

		// Streams.
		{name: "server stream", method: knownStream, send: one, md: replies(5, 3)},
		{name: "server stream of empty messages", method: knownStream, send: [][]byte{{}}, md: replies(3, 0)},
		{name: "server stream of many messages", method: knownStream, send: one, md: replies(3000, 1500)},
		{
			name: "server stream that fails after its messages", method: knownStream, send: one,
			md: append(replies(2, 1), doFail, failed),
		},
		{name: "client stream with half-close", method: unknown, send: [][]byte{odd, {}, garbage}, md: replies(1, 9)},
		{name: "client stream of many messages", method: unknown, send: many, md: replies(1, 9)},
		{name: "both directions at once", method: unknown, send: many},
		{name: "both directions in turn", method: unknown, send: [][]byte{odd, {}, garbage, odd}, lockstep: true},
		{name: "stream without any message", method: unknown, md: replies(0, 0)},
		{name: "stream that the runtime ends first", method: unknown, send: one, open: true, md: do(doRead, "1")},
		{
			name: "stream that fails before the client's end", method: unknown, send: one, open: true,
			md: do(doRead, "1", doFail, failed),
		},
		{name: "stream that ends before it is read", method: unknown, open: true, md: append(replies(2, 4), doRead, "0")},
		{name: "header before the first message", method: unknown, send: one, md: do(doHeaderFirst, "1"), headerFirst: true},

		// Metadata.
		{
			name: "repeated and binary metadata", method: known, send: one,
			md: do("k", "1", "k", "2", "k-bin", "\x00\x01\xff", "k-bin", "", "traceparent", "00-x"),
		},
		{
			name: "repeated and binary metadata of a stream", method: unknown, send: one,
			md: do("k", "1", "k", "2", "k-bin", "\x00\x01\xff", "k-bin", ""),
		},
		{name: "large metadata", method: known, send: one, md: do("k", strings.Repeat("v", 32<<10))},

		// Content types. A call of every other row has none but application/grpc.
		{name: "content subtype of a unary call", method: known, send: one, subtype: "proto"},
		{name: "content subtype of a stream", method: knownStream, send: one, subtype: "proto"},
		{name: "content subtype of a call that is read", method: image, send: one, subtype: "proto"},
		{name: "content subtype that no codec has", method: unknown, send: one, subtype: "x-new"},

		// Deadlines, and calls that end under way.
		{name: "deadline of a unary call", method: known, send: one, limit: callLimit},
		{name: "deadline of a stream", method: unknown, send: one, limit: callLimit},
		{name: "deadline of a unary call that passes", method: known, send: one, limit: shortLimit, md: do(doHang, "1")},
		{name: "deadline of a stream that passes", method: unknown, send: one, limit: shortLimit, md: do(doHang, "1")},
		{name: "client that cancels a unary call", method: known, send: one, md: do(doHang, "1"), cut: cancels},
		{name: "client that cancels a stream", method: knownStream, send: one, md: do(doHang, "1"), cut: cancels},
		{
			name: "client that cancels while it sends", method: unknown, send: one, open: true, md: do(doHang, "1", doRead, "1"),
			cut: cancels,
		},
		{
			name: "client that cancels after the first messages", method: knownStream, send: one,
			md: append(replies(2, 1), doHang, "1"), cut: cancels, answers: 2,
		},
		{name: "client that disconnects under a unary call", method: known, send: one, md: do(doHang, "1"), cut: disconnects},
		{
			name: "client that disconnects under a stream", method: unknown, send: one, open: true,
			md: do(doHang, "1", doRead, "1"), cut: disconnects,
		},

		// Sizes.
		{name: "request of 16 MiB", method: known, send: [][]byte{big}, md: replies(1, 1)},
		{name: "answer of 16 MiB", method: known, send: one, md: replies(1, limit)},
		{name: "answer of 16 MiB to a method that is read", method: image, send: one, md: replies(1, limit)},
		{name: "stream of 16 MiB both ways", method: unknown, send: [][]byte{big}},
		{name: "request over 16 MiB", method: known, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB to a method that is read", method: image, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB on a stream", method: unknown, send: [][]byte{over}, unseen: true},
		{name: "answer over 16 MiB", method: known, send: one, md: replies(1, limit+1), unseen: true},
		{
			name: "answer over 16 MiB to a method that is read", method: image, send: one, md: replies(1, limit+1),
			unseen: true,
		},
		{name: "answer over 16 MiB on a stream", method: unknown, send: one, md: replies(1, limit+1), unseen: true},

		{
			name: "pull that fails", method: runtimeapi.ImageService_PullImage_FullMethodName, send: [][]byte{pull(odd)},
			md: append(replies(0, 0), doFail, failed),
		},
		{name: "image status with bytes that are not an answer", method: image, send: one, md: replies(1, 5)},
		{name: "client that cancels a call that is read", method: image, send: one, md: do(doHang, "1"), cut: cancels},
		{name: "deadline of a call that is read", method: image, send: one, limit: callLimit},
		{
			name: "metadata of a call that is read", method: image, send: one,
			md: do("k", "1", "k", "2", "k-bin", "\x00\x01\xff"),
		},
	}
	for _, m := range readMethods() {
		all = append(all,
			row{name: m + " with unknown fields", method: m, send: one},
			row{name: m + " that fails", method: m, send: one, md: append(replies(0, 0), doFail, failed)},
			row{
				name: m + " that fails without header and trailer", method: m, send: one,
				md: append(replies(0, 0), doFail, "5", doBare, "1"),
			},
		)
	}
	return all
}

func pull(and []byte) []byte {
	m, err := proto.Marshal(&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "repo.test/fidelity:1"}})
	if err != nil {
		panic(err) // the message is a constant
	}
	return append(m, and...)
}
