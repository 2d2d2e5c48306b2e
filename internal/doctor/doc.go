// Package doctor looks at a node from outside: files, sockets and processes, and what the daemon says of itself if it
// answers.
//
// It changes nothing, needs no daemon, and reads no secret. What could not be found out is Unknown and never OK, and every
// finding that is not OK says in a sentence what to do. No check keeps another from being made, and none waits
// for anybody longer than a few seconds.
package doctor
