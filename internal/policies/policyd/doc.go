// Package policyd implements pullgate-policyd, the process that verifies image signatures and asks image review
// backends for pullgated, and serves the admission webhook for kube-apiserver.
//
//	pullgated ──gRPC, Unix socket──▶ node server ──────┬──▶ review.Clients ──▶ backends
//	kube-apiserver ──────HTTPS─────▶ webhook.Handler ──┘
//	scrapes, probes ──────HTTP─────▶ /metrics, /healthz, /readyz
//
// It reads the policy folder of pullgated, with the kubeconfigs of the backends, all of it or nothing. A request of
// pullgated has the hash of the policy files that pullgated uses. If it differs, the folder is read again; if it still
// differs, the request is answered with FailedPrecondition.
package policyd
