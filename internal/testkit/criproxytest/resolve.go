package criproxytest

import (
	"errors"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errAmbiguous is what containerd finds for the beginning of several image IDs.
var errAmbiguous = errors.New("ambiguous digest string")

// normal is a name as containerd stores it, the name itself if it is none.
func normal(name string) string {
	if named, err := reference.ParseDockerRef(name); err == nil {
		return named.String()
	}
	return name
}

func isID(name string) bool {
	hex, ok := strings.CutPrefix(name, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

func (i *Image) named(name string) bool {
	name = normal(name)
	return slices.ContainsFunc(i.Names, func(n string) bool { return normal(n) == name })
}

// resolveLocked finds an image as containerd does: by a whole ID; else by its name, normalised; else by
// the beginning of an ID, with or without the algorithm. Nothing is the beginning of all.
func (r *Runtime) resolveLocked(name string) (*Image, error) {
	if r.profile != Containerd {
		return r.resolveCRIOLocked(name)
	}
	whole := isID(name)
	for i := range r.images {
		if r.images[i].ID == name || !whole && r.images[i].named(name) {
			return &r.images[i], nil
		}
	}
	if whole {
		return nil, nil //nolint:nilnil // absent
	}
	var found *Image
	for i := range r.images {
		algorithm, hex, _ := strings.Cut(r.images[i].ID, ":")
		begins := strings.HasPrefix(hex, name) || len(name) > len(algorithm)+1 && strings.HasPrefix(r.images[i].ID, name)
		if !begins {
			continue
		}
		if found != nil {
			return nil, errAmbiguous
		}
		found = &r.images[i]
	}
	return found, nil
}

// unresolved is the answer to a call about an ambiguous image.
func (r *Runtime) unresolved(name string, err error) error {
	if r.profile != Containerd {
		return status.Errorf(codes.Unknown, "cannot parse input: %q: %v", name, err)
	}
	return status.Errorf(codes.Unknown, "can not resolve %q locally: %v", name, err)
}

// Denied is what containerd answers for a pull that the registry refuses.
func Denied(name string) error {
	return status.Errorf(codes.Unknown, "failed to pull and unpack image %q: failed to resolve reference %q: pulling "+
		"from host repo.test failed with status code [manifests 1]: 401 Unauthorized", name, name)
}

// Unreached is what containerd answers for a pull when the registry cannot be reached.
func Unreached(name string) error {
	return status.Errorf(codes.Unknown, "failed to pull and unpack image %q: failed to resolve reference %q: failed to "+
		"do request: Head \"https://repo.test/v2/\": dial tcp 10.0.0.1:443: connect: connection refused", name, name)
}
