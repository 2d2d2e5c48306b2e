package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// DefaultBus is the socket of the system bus.
const DefaultBus = "/run/dbus/system_bus_socket"

const busLimit = 10 * time.Second

// A Bus starts units of the host's systemd over its system bus. It needs no program.
type Bus struct{ Socket string }

// Start starts a command as a transient unit. If the unit runs already, nothing is started, and there is no error.
func (b Bus) Start(ctx context.Context, unit, description string, command ...string) error {
	return b.do(ctx, func(ctx context.Context, c *systemd.Conn) error {
		property := func(name string, v any) systemd.Property {
			return systemd.Property{Name: name, Value: dbus.MakeVariant(v)}
		}
		done := make(chan string, 1)
		_, err := c.StartTransientUnitContext(ctx, unit, "fail", []systemd.Property{
			systemd.PropDescription(description), systemd.PropExecStart(command, true), systemd.PropType("exec"),
			property("CollectMode", "inactive-or-failed"),
			// Every stage can be killed, and a stop should not wait for the kubelet.
			property("KillSignal", int32(9)),
		}, done)
		var answer dbus.Error
		if errors.As(err, &answer) && answer.Name == "org.freedesktop.systemd1.UnitExists" {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case result := <-done:
			if result != "done" {
				return fmt.Errorf("start %s: %s", unit, result)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// Runs reports whether a unit runs.
func (b Bus) Runs(ctx context.Context, unit string) (runs bool, err error) {
	err = b.do(ctx, func(ctx context.Context, c *systemd.Conn) error {
		state, err := c.GetUnitPropertyContext(ctx, unit, "ActiveState")
		if err != nil {
			return err
		}
		s, _ := state.Value.Value().(string)
		runs = s == "active" || s == "activating" || s == "deactivating" || s == "reloading"
		return nil
	})
	return runs, err
}

func (b Bus) do(ctx context.Context, call func(context.Context, *systemd.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	c, err := systemd.NewConnection(func() (*dbus.Conn, error) {
		conn, err := dbus.Dial("unix:path="+b.Socket, dbus.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		// By number, because the image has no /etc/passwd.
		if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if err := conn.Hello(); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	})
	if err != nil {
		return program.WithHint(fmt.Errorf("connect to the system bus of the host, %s: %w", b.Socket, err),
			"the host needs systemd and D-Bus, and the pod its socket as a hostPath")
	}
	defer c.Close()
	if err := call(ctx, c); err != nil {
		return fmt.Errorf("ask systemd over %s: %w", b.Socket, err)
	}
	return nil
}
