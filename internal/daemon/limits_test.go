package daemon_test

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

// holdConnections opens connections and keeps them open until the test ends.
func holdConnections(t *testing.T, n int, network, address string, use func(net.Conn)) {
	t.Helper()
	for range n {
		c, err := net.DialTimeout(network, address, 5*time.Second)
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		use(c)
	}
}

// probe makes a request on a connection that stays open; the server may answer or not.
func probe(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")); err != nil {
		return
	}
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		_ = resp.Body.Close()
	}
}

// Idle connections to the other sockets leave the file descriptors that a kubelet's connection needs.
func TestIdleConnectionsDoNotDelayTheCRI(t *testing.T) {
	for name, socket := range map[string]string{"metrics": "", "admin": "run/admin.sock"} {
		t.Run(name, func(t *testing.T) {
			p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
			p.maxFiles = 256
			p.start()
			if socket == "" {
				holdConnections(t, 300, "tcp", p.metrics, probe)
			} else {
				holdConnections(t, 300, "unix", p.path(socket), func(net.Conn) {})
			}
			began := time.Now()
			p.kubelet().Pod("alice") // over a new connection
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a call over a new CRI connection took %v; want it not delayed", took)
			}
			if got := strings.Count(p.out.String(), "Too many connections"); got != 1 {
				t.Errorf("%d log lines about too many connections; want 1:\n%s", got, p.out)
			}
		})
	}
}

// The daemon refuses more connections to a process that does not close its connections to the CRI, but not to the kubelet, which
// is another process.
func TestOneProcessCannotTakeAllConnectionsOfTheCRI(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.maxFiles = 256
	p.start()
	holdConnections(t, 300, "unix", p.path("run/cri.sock"), func(net.Conn) {})
	other := prepare(t, p.endpoint()) // its upstream connection is from another process
	other.start()
	if !strings.Contains(p.out.String(), "the limit of one process is") {
		t.Errorf("log = %q; want the process named", p.out)
	}
}
