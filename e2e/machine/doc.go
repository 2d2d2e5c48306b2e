// Package machine is a Debian with a systemd of its own, in a container. What is done in it stays in memory and
// ends with it; the systemd of the host, if there is one, is not asked.
package machine
