package fleet

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// egress makes the API server reach pods and Services through a proxy, as where another network separates them.
const egress = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}}
`

func (f *Fleet) serveEgress() (err error) {
	defer host.Catch(&err)
	socket := f.path("egress.sock")
	host.Check(os.WriteFile(f.path("egress.yaml"), fmt.Appendf(nil, egress, socket), 0o600))
	l := host.Must(net.Listen("unix", socket))
	f.egress = &http.Server{Handler: http.HandlerFunc(f.connect)}
	go func() { _ = f.egress.Serve(l) }() // until Close
	return nil
}

// connect connects the API server with an address, in the network of the node whose pods have it.
func (f *Fleet) connect(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	i := slices.IndexFunc(f.nodes, func(n *Node) bool { return strings.HasPrefix(r.Host, n.pods()) })
	if i < 0 {
		f.mu.Unlock()
		http.Error(w, "no node has pods with this address", http.StatusBadGateway)
		return
	}
	n := f.nodes[i]
	f.mu.Unlock()
	to, err := n.Dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = to.Close()
		return
	}
	join(from, to)
}
