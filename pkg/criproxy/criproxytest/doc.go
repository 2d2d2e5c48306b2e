// Package criproxytest holds what tests of a CRI proxy need, in process: a fake [Runtime] for judged
// calls, with a registry that tells good credentials from bad ones, and an [Echo] with the table of
// [Fidelity] rows, which compares everything that a client and a runtime see of a call, direct and
// through a proxy.
//
// Both listen on unix sockets in temporary directories and end with the test. They are fakes for
// speed: the same stories run against a real containerd in the end-to-end suite.
package criproxytest
