package criproxytest

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (r *Runtime) restoreLocked(checkpoint Image, name string) (on string, err error) {
	for _, b := range checkpoint.Brings {
		for _, n := range b.Names {
			r.addLocked(n, b)
		}
	}
	base, err := r.resolveLocked(checkpoint.Restores)
	if err != nil || base == nil {
		return "", status.Errorf(codes.Unknown, "failed to pull checkpoint base image %s: not found", checkpoint.Restores)
	}
	if checkpoint.Fails != nil {
		return "", checkpoint.Fails
	}
	on = base.ID
	if name != "" {
		r.addLocked(name, Image{ID: on})
	}
	if checkpoint.Claims != "" {
		on = checkpoint.Claims
	}
	return on, nil
}
