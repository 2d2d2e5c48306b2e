// Package doctor implements checks of a node from outside the daemon: of files, sockets and processes, and of the daemon's status
// if it answers.
//
// The checks change nothing, need no daemon, and keep no secret. Only a connection to the socket of pullgate-policyd lets systemd start it, as
// a review does. A state that cannot be determined is Unknown and never OK, and
// every finding that is not OK has a remediation in one sentence. No check prevents another one, and none waits longer than a few
// seconds.
package doctor
