// Package httpserve implements an HTTP server with limits against clients that hang, send slowly, send too much, or open many
// connections, so that they take neither the memory nor the file descriptors that the rest of the process needs.
package httpserve
