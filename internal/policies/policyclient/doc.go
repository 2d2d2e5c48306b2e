// Package policyclient implements the client of pullgate-policyd in pullgated.
//
// # Trust
//
// An answer can admit a container, so the client uses a socket only if root owns it and the process that listens on it is root's: with
// pullgate-policyd.socket that is systemd, which passes the socket on to pullgate-policyd. If this process is not root, as in tests, its own
// user counts as root does.
//
// # Failures
//
// Every error of [Client.Review] means that no backend has answered, so that the caller applies the failure policy of each of them. The
// sentinel errors say why. Only an answer for the policy files and the images of the request is returned without an error.
//
// Every error of [Client.Verify] means that nothing is known about the image, so that it still needs its signatures. Only an answer for the
// policy files, the trusted root and each requirement of the request is returned without an error.
package policyclient
