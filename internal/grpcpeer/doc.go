// Package grpcpeer implements transport credentials for gRPC over Unix sockets: each side asks the kernel which user the process at the
// other end has.
package grpcpeer
