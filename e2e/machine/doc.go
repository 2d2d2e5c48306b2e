// Package machine runs a Debian with its own systemd in a container. Its changes stay in memory and end with it; the
// systemd of the host, if there is one, is not used.
package machine
