// Package grpcpeer implements what gRPC servers and clients on Unix sockets share: transport credentials with which each side asks the kernel
// which user the process at the other end has, and the stop of a server.
package grpcpeer
