// Package criproxytest implements fakes for tests of a CRI proxy: a [Runtime] for judged calls, with a registry that
// accepts or denies credentials, and an [Echo] with the table of [Fidelity] rows, which compares everything that a
// client and a runtime see of a call, direct and through a proxy.
//
// Both listen on unix sockets in temporary directories and end with the test. They are fakes for
// speed: the same test cases run against a real containerd in the end-to-end suite.
package criproxytest
