// Package pair implements a proxy for gRPC that works on the frames of HTTP/2 (RFC 9113). It implements HTTP/2 and the wire format of
// gRPC, independently of the services that are called.
//
// Each connection of a client is paired with one connection to the runtime. Most calls are forwarded: their frames pass
// as they came. Some methods are answered by a handler in this process, on the same client connection.
//
//	             ┌───────────────────── pair ─────────────────────┐
//	             │  requests (1 goroutine)                        │
//	client ─────▶│  decode header block, route, encode again      │─────▶ runtime
//	             │      │ collect request      ▲ credit           │
//	             │      ▼                      │                  │
//	             │  local call (1 goroutine each) ──▶ Handler     │
//	             │      │ answer                                  │
//	client ◀─────│◀─────┴──────────── frames unchanged            │◀───── runtime
//	             │  responses (1 goroutine)                       │
//	             └────────────────────────────────────────────────┘
//
// Each direction reads once, handles all complete frames, and writes once. The hard parts have a file each, which
// begins with the rules that it keeps:
//
//   - request.go: header blocks of requests are decoded and encoded again, so that the runtime reads the method that was
//     routed, and so that a call can be left out;
//   - response.go: header blocks of responses pass unchanged, and need no dynamic table;
//   - ahead.go: a handler that gets the runtime's answer before the client does;
//   - window.go: flow control is between client and runtime, with corrections for what is answered or held here;
//   - leave.go: GOAWAY of the runtime, and the stop of this process;
//   - endpoint.go: a runtime that is absent.
//
// The runtime is trusted. The client is not trusted, not even to send valid HTTP/2: every frame of it is checked before it has an
// effect. Neither side can make a pair use more than a bounded amount of memory.
package pair
