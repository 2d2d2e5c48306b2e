// Package policyd implements pullgate-policyd, the process that asks image review backends for pullgated and serves the admission webhook
// for kube-apiserver.
//
//	pullgated ──gRPC, Unix socket──▶ node server ──▶ Reviewer ──▶ backends
//	kube-apiserver ──────HTTPS─────▶ Handler
//	scrapes, probes ──────HTTP─────▶ /metrics, /healthz, /readyz
//
// It reads the policy folder that pullgated reads, all of it or nothing, at the start, when it changes and on SIGHUP. A request of
// pullgated has the hash of the policy files that pullgated uses. If it differs, the folder is read again; if it still differs, the
// request is answered with FailedPrecondition.
package policyd
