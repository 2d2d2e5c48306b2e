// Package drain lets a server stop so that its clients do not notice: what it has taken it greets, what it has begun it
// ends, and what it has not taken is left to whoever serves the socket next.
package drain
