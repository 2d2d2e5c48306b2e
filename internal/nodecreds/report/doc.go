// Package report tells the daemon which credentials a kubelet's credential provider gave out.
//
// The kubelet runs `pullgated credential-provider`, which runs the real provider and passes its answer
// through. Before it does so it tells the daemon, over a socket that is for root alone, the IDs of the
// credentials in the answer and the images that they are for:
//
//	POST /v1/credentials HTTP/1.1
//	{"keyFingerprint": "…", "expires": "2026-01-02T15:04:05Z",
//	 "credentials": [{"id": "<64 hexadecimal digits>", "images": ["*.registry.example/team"]}]}
//
// 204 says that it is noted. Anything else comes with one line of text that says why it is not, and what
// to do: 400 for a report that is wrong, 403 for a caller who is neither root nor the daemon's own user,
// 409 for IDs that were made with another key.
//
// No credential ever crosses the socket. What is not reported opens nothing, so whatever is not understood
// is not reported: a request of a newer version may be bound to less than the node.
package report
