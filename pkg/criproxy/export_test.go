package criproxy

import "google.golang.org/grpc"

// NewForTest is New with options of grpc.
func NewForTest(c Config, options ...grpc.ServerOption) *Server {
	c.options = options
	return New(c)
}

// PanicForTest makes every judged pull panic.
func (g *Gate) PanicForTest() { g.runtime = nil }
