package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/pullgate/pullgate/e2e/host"
)

// Listen returns a listener of this process on an address of the machine's network, which has nothing but a loopback.
func (m *Machine) Listen(ctx context.Context, address string) (l net.Listener, err error) {
	err = m.inNetwork(func() (err error) {
		var lc net.ListenConfig
		l, err = lc.Listen(ctx, "tcp", address)
		return err
	})
	return l, err
}

// Dial connects this process with an address of IP and port, as a process of the machine would be.
func (m *Machine) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = m.inNetwork(func() (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// inNetwork calls f, which makes a socket, in the machine's network.
func (m *Machine) inNetwork(f func() error) (err error) {
	defer host.Catch(&err)
	theirs := host.Must(os.Open(fmt.Sprintf("/proc/%d/ns/net", m.init)))
	defer func() { _ = theirs.Close() }() // nothing was written to it
	ours := host.Must(os.Open("/proc/thread-self/ns/net"))
	defer func() { _ = ours.Close() }()
	// The network is that of a thread, which ends with the goroutine unless it is unlocked: none is left in the machine.
	runtime.LockOSThread()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network of the machine: %w", err)
	}
	err = f()
	if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("leave the network of the machine: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
