package admin

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// codeOf is the one table of what a call can end with, and what the caller may do about it. What it does not list is
// Internal.
func codeOf(err error) (code codes.Code, todo string, listed bool) {
	for _, row := range []struct {
		is   error
		code codes.Code
		todo string
	}{
		{errInvalid, codes.InvalidArgument, ""},
		{tracker.ErrNothingSelected, codes.InvalidArgument, "name what is meant"},
		{errNotFound, codes.NotFound, ""},
		{tracker.ErrNotPresent, codes.NotFound, "see what is there with ListImages"},
		{errSeveral, codes.FailedPrecondition, ""},
		{tracker.ErrDistrusted, codes.FailedPrecondition, ""},
		{tracker.ErrTrusted, codes.FailedPrecondition, ""},
		{errUnasked, codes.Unavailable, "see that the runtime runs, and the log of pullgated"},
		{tracker.ErrRuntime, codes.Unavailable, "see that the runtime runs, and the log of pullgated"},
		{tracker.ErrBusy, codes.Unavailable, ""},
		{tracker.ErrStore, codes.Unavailable, "see the disk that holds stateDir, and the log of pullgated"},
		{errStopping, codes.Unavailable, "try again when it is back"},
		{errWatchers, codes.ResourceExhausted, "end one of them"},
		{errBackup, codes.DataLoss, "see what VerifyStore says"},
		// Last, since what is listed above may hold one of them as its cause.
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, row.is) {
			return row.code, row.todo, true
		}
	}
	return codes.Internal, "", false
}

// answer makes the status of an error that a call ended with, and reports whether it is one that the log is to explain.
func answer(err error) (answered error, explain bool) {
	if err == nil {
		return nil, false
	}
	code, todo, listed := codeOf(err)
	if !listed {
		if _, ok := status.FromError(err); ok { // of gRPC itself, as when a stream is broken
			return err, false
		}
		return status.Error(codes.Internal, "internal error, see the log of pullgated"), true
	}
	text := strings.TrimPrefix(err.Error(), "tracker: ")
	if todo != "" {
		text += "; " + todo
	}
	return status.Error(code, text), false
}
