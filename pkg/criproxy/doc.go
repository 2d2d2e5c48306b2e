// Package criproxy implements a transparent proxy for the CRI, between a kubelet and its container runtime.
//
//	kubelet ──▶ Server ──▶ runtime
//	              └─▶ Handler ──▶ Upstream ──▶ runtime      for the calls that have a handler
//
// The [Server] forwards every call of runtime.v1, also of methods that it does not know, unary or streaming: the frames of HTTP/2 pass
// unchanged, except the header blocks of requests, which are checked. Calls of any other service get Unimplemented, so
// that no other API of the runtime's socket is reachable.
//
// A unary call that has a [Handler] is handed to it. The handler answers by itself, or forwards the call: then the runtime gets the
// original bytes, and the client the runtime's, unless the handler says otherwise. The proxy does not depend on what handlers
// decide. A [Bypass] forwards some calls of a method with a handler as fast as calls without one.
//
// Package internal/pair has the HTTP/2 of the server. An [Upstream] is a client of grpc-go.
package criproxy
