// Package drain lets a server stop without an error at its clients: accepted connections complete their handshake, calls under way end,
// and connections in the accept queue are left to the next server on the socket.
package drain
