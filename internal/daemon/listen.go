package daemon

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
)

const (
	programName = "pullgated"     // and of its units
	criSocket   = "cri"           // FileDescriptorName= of pullgated.socket
	bindRetry   = 2 * time.Second // between two attempts to bind an optional listener
)

// listeners are the listeners of the daemon; a listener that the configuration turns off is nil.
type listeners struct {
	cri        net.Listener
	admin, web *optional
}

// An optional is a listener that is not needed to serve the CRI.
type optional struct {
	field, address string
	bind           func(ctx context.Context) (net.Listener, error)
	log            klog.Logger
	bound          func(field string, err error) // called when it could not be bound, and with nil when it is bound

	listener net.Listener // nil until it is bound
}

// start tries to bind the listener. It returns an error if another process, probably another pullgated, serves the
// socket. It logs every other failure, and wait tries again.
func (l *optional) start(ctx context.Context) (err error) {
	l.listener, err = l.bind(ctx)
	if err == nil || errors.Is(err, sockets.ErrInUse) {
		return err
	}
	l.bound(l.field, err)
	advice := cmp.Or(program.HintOf(err), "free the address, or set "+l.field+" to another one")
	l.log.Error(err, "Failed to listen, will retry: pullgated serves the CRI meanwhile",
		"field", l.field, "every", bindRetry, "hint", advice)
	return nil
}

// wait returns the listener once it is bound, nil if ctx ends first.
func (l *optional) wait(ctx context.Context) net.Listener {
	if l.listener != nil {
		return l.listener
	}
	again := time.NewTicker(bindRetry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		listener, err := l.bind(ctx)
		if err != nil {
			l.bound(l.field, err)
			continue
		}
		l.bound(l.field, nil)
		l.log.Info("Listening now", "field", l.field, "address", l.address)
		return listener
	}
}

// listenAll listens on the CRI's socket, or on none, and on those of the other listeners that can be bound.
func listenAll(ctx context.Context, log klog.Logger, c config.Config,
	bound func(field string, err error),
) (on listeners, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, on.close())
		}
	}()
	cri := sockets.Socket{Program: programName, Field: "listen", Endpoint: c.Listen, Name: criSocket}
	if on.cri, err = cri.Listen(ctx); err != nil {
		return on, err
	}
	if c.Admin.Listen != "" {
		socket := sockets.Socket{Program: programName, Field: "admin.listen", Endpoint: c.Admin.Listen}
		on.admin = &optional{field: socket.Field, address: socket.Endpoint, log: log, bound: bound, bind: socket.Bind}
		if err := on.admin.start(ctx); err != nil {
			return on, err
		}
	}
	if c.Metrics.Listen != "" {
		bind := func(ctx context.Context) (net.Listener, error) {
			return sockets.ListenTCP(ctx, "metrics.listen", c.Metrics.Listen)
		}
		on.web = &optional{field: "metrics.listen", address: c.Metrics.Listen, log: log, bound: bound, bind: bind}
		return on, on.web.start(ctx)
	}
	return on, nil
}

func (on listeners) close() error {
	var err error
	for _, o := range []*optional{{listener: on.cri}, on.admin, on.web} {
		if o != nil && o.listener != nil {
			err = errors.Join(err, o.listener.Close())
		}
	}
	return err
}
