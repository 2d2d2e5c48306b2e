// Package sockets implements the servers of the project: Unix sockets that a program binds itself or inherits from
// systemd, the identity of the peer, also as credentials of gRPC, and an HTTP server. Limits keep clients that hang,
// send slowly, send too much or open many connections from taking the memory and the file descriptors of the process.
package sockets
