package fleet

import (
	"io"
	"net"
	"sync"
)

// A line passes on the connections to a listener.
type line struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
	group  sync.WaitGroup
}

func open(l net.Listener, target string) *line {
	p := &line{listener: l, target: target, open: map[net.Conn]bool{}}
	p.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // close was called
			}
			p.group.Go(func() { p.pass(c) })
		}
	})
	return p
}

func (p *line) pass(from net.Conn) {
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = from.Close()
		return
	}
	p.mu.Lock()
	if p.closed {
		_, _ = from.Close(), to.Close()
	}
	p.open[from], p.open[to] = true, true
	p.mu.Unlock()
	join(from, to)
	p.mu.Lock()
	delete(p.open, from)
	delete(p.open, to)
	p.mu.Unlock()
}

// join passes on what two connections send each other, until one of them ends; then it ends both.
func join(a, b net.Conn) {
	end := func() { _, _ = a.Close(), b.Close() }
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(b, a); end() })
	both.Go(func() { _, _ = io.Copy(a, b); end() })
	both.Wait()
}

func (p *line) close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.group.Wait()
}
