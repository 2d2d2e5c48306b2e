// Package criproxy implements a transparent proxy for the CRI, between a kubelet and its container runtime.
//
//	kubelet ──▶ Server ──▶ Upstream ──▶ runtime
//	              └─▶ Handler, for the calls that have one
//
// The [Server] forwards every call of runtime.v1, also of methods that it does not know, unary or streaming: messages
// pass byte for byte, with metadata, headers, trailers, status details, deadline and cancellation. Calls of any other
// service get Unimplemented, so that no other API of the runtime's socket is reachable.
//
// A unary call that has a [Handler] is handed to it. The handler answers by itself, or forwards the call: then the
// runtime gets the original bytes, and the client the runtime's, unless the handler says otherwise. The proxy does not
// depend on what handlers decide.
//
// The HTTP/2 of both sides is that of grpc-go. The proxy sets no limit that a runtime does not have: not on
// connections, not on streams, and none on header lists below that of grpc-go.
package criproxy
