// Package sockets implements Unix sockets that a program of the project serves: one that it binds itself, or one that systemd has
// bound and passes on.
package sockets
