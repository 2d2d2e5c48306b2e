// Package sockets implements Unix sockets that a program of the project serves: one that it binds itself, or one that
// systemd has bound and passes on; a limit for the connections of a listener; and who is at the other end of one.
package sockets
