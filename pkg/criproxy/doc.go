// Package criproxy is a transparent proxy for the CRI, between a kubelet and its container runtime.
//
//	kubelet ──▶ Server ──▶ Upstream ──▶ runtime
//	              └─▶ Handler, for the calls that have one
//
// The [Server] forwards every call of runtime.v1 byte for byte, known or not yet invented, unary or
// streaming, with metadata, headers, trailers, status details, deadline and cancellation. Calls of
// any other service get Unimplemented, so that no other API of the runtime's socket is a way round.
//
// A unary call that has a [Handler] is handed to it. The handler answers by itself, or forwards the call: then the runtime gets the
// original bytes, and the client the runtime's, unless the handler says otherwise. The proxy knows nothing of what handlers
// decide.
//
// Messages are handed through by reference: a frame owns one reference to its buffers, and whoever
// receives it frees it after it was sent on.
package criproxy
