// Package criproxy stands between a kubelet and its container runtime on the CRI socket.
//
//	kubelet ──▶ Server ──▶ Upstream ──▶ runtime
//	              │ judged calls (intercept.go)
//	              └─▶ Gate ──▶ tracker, pods
//
// The [Server] forwards every call of runtime.v1 byte for byte, known or not yet invented, unary or
// streaming, with metadata, headers, trailers, status details, deadline and cancellation. Calls of
// any other service get Unimplemented, so that no other API of the runtime's socket is a way round.
//
// The calls in the table of intercept.go are handed to the [Gate], which decodes them, asks for a
// verdict and acts on it. Even for those, what is forwarded are the original bytes, and what is
// answered are the runtime's bytes, unless the answer is the gate's own.
//
// Messages are handed through by reference: a frame owns one reference to its buffers, and whoever
// receives it frees it after it was sent on.
package criproxy
