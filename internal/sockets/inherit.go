package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/pullgate/pullgate/internal/hint"
)

// socketName is the name of the kubelet's socket in pullgated.socket (FileDescriptorName=).
const socketName = "cri"

// inherit returns the listener of the kubelet's socket that systemd has made and keeps over restarts, nil if systemd has passed
// none. It must be the socket that listen names. Closing the listener does not remove the socket, because it is systemd's.
// inherit unsets the environment variables that announce the socket.
func inherit(endpoint string) (_ net.Listener, err error) {
	files := activation.Files(true)
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close()) // a listener has a copy of its own
		}
	}()
	switch {
	case len(files) == 0:
		return nil, nil //nolint:nilnil // none was passed on
	case len(files) > 1 || files[0].Name() != socketName:
		return nil, hint.Wrap(fmt.Errorf("listen: systemd passes on sockets named %s, pullgated accepts one named %q", names(files), socketName),
			"see FileDescriptorName= and ListenStream= in: systemctl cat pullgated.socket")
	}
	l, err := net.FileListener(files[0])
	if err != nil {
		return nil, hint.Wrap(fmt.Errorf("listen: the file that systemd passes on is not a listening socket: %w", err), "see ListenStream= and Accept= in: systemctl cat pullgated.socket")
	}
	if path := l.Addr().String(); l.Addr().Network() != "unix" || !leadsTo(endpoint, path) {
		return nil, errors.Join(hint.Wrap(fmt.Errorf("listen: %s is configured, and systemd passes on %s", endpoint, path),
			"give the same path in the configuration and in ListenStream= of pullgated.socket (systemctl edit pullgated.socket)"), l.Close())
	}
	return l, nil
}

func names(files []*os.File) string {
	var all []string
	for _, f := range files {
		all = append(all, fmt.Sprintf("%q", f.Name()))
	}
	return strings.Join(all, ", ")
}

// leadsTo reports whether an endpoint is the socket at a path, also by another name such as one below /var/run.
func leadsTo(endpoint, path string) bool {
	configured := strings.TrimPrefix(endpoint, "unix://")
	if filepath.Clean(configured) == filepath.Clean(path) {
		return true
	}
	a, err := os.Stat(configured)
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
