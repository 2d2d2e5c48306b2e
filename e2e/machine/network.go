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
func (m *Machine) Listen(ctx context.Context, address string) (_ net.Listener, err error) {
	defer host.Catch(&err)
	theirs := host.Must(os.Open(fmt.Sprintf("/proc/%d/ns/net", m.init)))
	defer func() { _ = theirs.Close() }() // nothing was written to it
	ours := host.Must(os.Open("/proc/thread-self/ns/net"))
	defer func() { _ = ours.Close() }()
	// The network is that of a thread, which ends with the goroutine unless it is unlocked: none is left in the machine.
	runtime.LockOSThread()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter the network of the machine: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back != nil {
		return nil, errors.Join(err, fmt.Errorf("leave the network of the machine: %w", back))
	}
	runtime.UnlockOSThread()
	return l, err
}
