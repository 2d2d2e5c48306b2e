package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// holdConnections opens connections and keeps them open until the test ends.
func holdConnections(t *testing.T, n int, network, address string, use func(net.Conn)) {
	t.Helper()
	for range n {
		c, err := net.DialTimeout(network, address, 5*time.Second)
		testkit.Must(t, err)
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
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a call over a new CRI connection took %v; want it not delayed", took)
			}
			if got := strings.Count(p.out.String(), "Too many connections"); got != 1 {
				t.Errorf("%d log lines about too many connections; want 1:\n%s", got, p.out)
			}
		})
	}
}

// A client may keep as many connections to the CRI open as to the runtime. Each takes little memory.
func TestManyConnectionsOfOneProcessToTheCRI(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	first := p.kubelet()
	first.Pod("alice")
	before := p.resident()
	connections, most := 5000, 64
	if testkit.Raced {
		connections, most = 500, 512
	}
	holdConnections(t, connections, "unix", p.path("run/cri.sock"), func(c net.Conn) {
		const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		_, err := c.Write([]byte(preface + settings))
		testkit.Must(t, err)
		_, err = io.ReadFull(c, make([]byte, 2*len(settings))) // the server's SETTINGS, and its acknowledgement of ours
		testkit.Must(t, err)
	})
	each := (p.resident() - before) / connections
	t.Logf("%d kB resident with one connection, %d kB more for each of %d that are idle", before, each, connections)
	if each > most {
		t.Errorf("an idle connection takes %d kB; want %d at most", each, most)
	}
	first.Pod("alice")
	p.kubelet().Pod("alice") // over a new connection
	if strings.Contains(p.out.String(), "Too many connections") {
		t.Errorf("log = %q; want no connection closed", p.out)
	}
}

// resident returns the resident memory of the daemon in kB.
func (p *process) resident() (kB int) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	testkit.Must(p.t, err)
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	_, err = fmt.Sscan(after, &kB)
	testkit.Must(p.t, err)
	return kB
}
