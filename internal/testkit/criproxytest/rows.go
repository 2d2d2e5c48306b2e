package criproxytest

import (
	"bytes"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type row struct {
	name    string
	method  string
	do      Script
	md      []string // more metadata of the request, in pairs
	subtype string   // of the content type; "" for the content type that kubelets send, application/grpc
	send    [][]byte
	// lockstep waits for each echo before the next message. With Script.HeaderFirst, the header comes before the first.
	lockstep bool
	open     bool // the client never half-closes
	cut      cut  // ends the call once it hangs in the runtime and so many answers have come
	answers  int
	unseen   bool // the runtime does not see the call at all, or not to its end
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

// readMethods are methods that a proxy which judges reads. The messages of the rows have nothing to judge or to change.
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
	replies := func(n, size int) Script { return Script{Replies: n, Size: size} }
	fails := Script{Silent: true, Fail: 9}
	hangs := Script{Hang: true}
	bare := Script{Bare: true}
	bareFails := func(code uint32) Script { return Script{Silent: true, Bare: true, Fail: code} }
	lasts := func(d time.Duration) Script { return Script{Deadline: d, Hang: d == shortLimit} }
	pairs := []string{"k", "1", "k", "2", "k-bin", "\x00\x01\xff", "k-bin", "", "traceparent", "00-x"}
	const image = runtimeapi.ImageService_ImageStatus_FullMethodName
	all := []row{
		// Unary.
		{name: "known unary method with unknown fields", method: known, send: one},
		{name: "known unary method with bytes that are not a message", method: known, send: [][]byte{garbage}},
		{name: "known unary method with an empty message", method: known, send: [][]byte{{}}},
		{name: "known unary method that fails", method: known, send: one, do: fails},
		{name: "known unary method that fails without header and trailer", method: known, send: one, do: bareFails(9)},
		{name: "known unary method without header and trailer", method: known, send: one, do: bare},
		{name: "known unary method with an unknown code", method: known, send: one, do: Script{Silent: true, Fail: 77}},
		{name: "unknown unary method", method: unknown, send: one},
		{name: "unknown unary method of the image service", method: unknownImage, send: one},
		{name: "unknown method that is not implemented", method: unknown, send: one, do: bareFails(12)},
		{name: "unknown method that fails without a message", method: unknown, do: fails},
		{name: "unknown method with an unknown code", method: unknown, send: one, do: Script{Silent: true, Fail: 77}},

		// Streams.
		{name: "server stream", method: knownStream, send: one, do: replies(5, 3)},
		{name: "server stream of empty messages", method: knownStream, send: [][]byte{{}}, do: replies(3, 0)},
		{name: "server stream of many messages", method: knownStream, send: one, do: replies(3000, 1500)},
		{name: "failing server stream", method: knownStream, send: one, do: Script{Replies: 2, Size: 1, Fail: 9}},
		{name: "client stream with half-close", method: unknown, send: [][]byte{odd, {}, garbage}, do: replies(1, 9)},
		{name: "client stream of many messages", method: unknown, send: many, do: replies(1, 9)},
		{name: "both directions at once", method: unknown, send: many},
		{name: "both directions in turn", method: unknown, send: [][]byte{odd, {}, garbage, odd}, lockstep: true},
		{name: "stream without any message", method: unknown, do: Script{Silent: true}},
		{name: "stream that the runtime ends first", method: unknown, send: one, open: true, do: Script{Read: new(1)}},
		{
			name: "stream that fails before the client's end", method: unknown, send: one, open: true,
			do: Script{Read: new(1), Fail: 9},
		},
		{
			name: "stream that ends before it is read", method: unknown, open: true,
			do: Script{Read: new(0), Replies: 2, Size: 4},
		},
		{name: "header before the first message", method: unknown, send: one, do: Script{HeaderFirst: true}},

		// Metadata.
		{name: "repeated and binary metadata", method: known, send: one, md: pairs},
		{name: "repeated and binary metadata of a stream", method: unknown, send: one, md: pairs},
		{name: "large metadata", method: known, send: one, md: []string{"k", strings.Repeat("v", 32<<10)}},

		// Content types. A call of every other row has none but application/grpc.
		{name: "content subtype of a unary call", method: known, send: one, subtype: "proto"},
		{name: "content subtype of a stream", method: knownStream, send: one, subtype: "proto"},
		{name: "content subtype of a call that is read", method: image, send: one, subtype: "proto"},
		{name: "content subtype that no codec has", method: unknown, send: one, subtype: "x-new"},

		// Deadlines, and calls that end under way.
		{name: "deadline of a unary call", method: known, send: one, do: lasts(callLimit)},
		{name: "deadline of a stream", method: unknown, send: one, do: lasts(callLimit)},
		{name: "deadline of a unary call that passes", method: known, send: one, do: lasts(shortLimit)},
		{name: "deadline of a stream that passes", method: unknown, send: one, do: lasts(shortLimit)},
		{name: "client that cancels a unary call", method: known, send: one, do: hangs, cut: cancels},
		{name: "client that cancels a stream", method: knownStream, send: one, do: hangs, cut: cancels},
		{
			name: "client that cancels while it sends", method: unknown, send: one, open: true,
			do: Script{Hang: true, Read: new(1)}, cut: cancels,
		},
		{
			name: "client that cancels after the first messages", method: knownStream, send: one,
			do: Script{Replies: 2, Size: 1, Hang: true}, cut: cancels, answers: 2,
		},
		{name: "client that disconnects under a unary call", method: known, send: one, do: hangs, cut: disconnects},
		{
			name: "client that disconnects under a stream", method: unknown, send: one, open: true,
			do: Script{Hang: true, Read: new(1)}, cut: disconnects,
		},

		// Sizes.
		{name: "request of 16 MiB", method: known, send: [][]byte{big}, do: replies(1, 1)},
		{name: "answer of 16 MiB", method: known, send: one, do: replies(1, limit)},
		{name: "answer of 16 MiB to a method that is read", method: image, send: one, do: replies(1, limit)},
		{name: "stream of 16 MiB both ways", method: unknown, send: [][]byte{big}},
		{name: "request over 16 MiB", method: known, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB to a method that is read", method: image, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB on a stream", method: unknown, send: [][]byte{over}, unseen: true},
		{name: "answer over 16 MiB", method: known, send: one, do: replies(1, limit+1), unseen: true},
		{name: "answer over 16 MiB to one that is read", method: image, send: one, do: replies(1, limit+1), unseen: true},
		{name: "answer over 16 MiB on a stream", method: unknown, send: one, do: replies(1, limit+1), unseen: true},

		{
			name: "pull that fails", method: runtimeapi.ImageService_PullImage_FullMethodName, send: [][]byte{pull(odd)},
			do: fails,
		},
		{name: "image status with bytes that are not an answer", method: image, send: one, do: replies(1, 5)},
		{name: "client that cancels a call that is read", method: image, send: one, do: hangs, cut: cancels},
		{name: "deadline of a call that is read", method: image, send: one, do: lasts(callLimit)},
		{name: "metadata of a call that is read", method: image, send: one, md: pairs},
	}
	for _, m := range readMethods() {
		all = append(all,
			row{name: m + " with unknown fields", method: m, send: one},
			row{name: m + " that fails", method: m, send: one, do: fails},
			row{name: m + " that fails without header and trailer", method: m, send: one, do: bareFails(5)},
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
