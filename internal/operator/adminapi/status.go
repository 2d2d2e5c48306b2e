package adminapi

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// codeOf is the single table of the errors of a call, and what the caller can do about them. Every error that is not in
// it is Internal.
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
		{tracker.ErrDistrusted, codes.FailedPrecondition, "accept single images by image_id or repository, or end distrust first"},
		{tracker.ErrProved, codes.FailedPrecondition, "set including_proved if every pod is to use it"},
		{tracker.ErrChanged, codes.Aborted, "ask for a dry run again"},
		{tracker.ErrRivals, codes.FailedPrecondition, "give image_id as well if every pod is to use it"},
		{tracker.ErrTrusted, codes.FailedPrecondition, ""},
		{errUnasked, codes.Unavailable, "see that the runtime runs, and the log of pullgated"},
		{tracker.ErrRuntime, codes.Unavailable, "see that the runtime runs, and the log of pullgated"},
		{tracker.ErrBusy, codes.Unavailable, ""},
		{tracker.ErrStore, codes.Unavailable, "see the disk that holds stateDir, and the log of pullgated"},
		{errStopping, codes.Unavailable, "try again when it is back"},
		{errOtherKey, codes.FailedPrecondition, ""},
		{errWatchers, codes.ResourceExhausted, "end one of them"},
		{records.ErrNoRoom, codes.ResourceExhausted, "free space"},
		{errBackup, codes.DataLoss, "see the answer of VerifyStore, and the log of pullgated"},
		// Last, because the errors above may wrap one of them.
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, row.is) {
			return row.code, row.todo, true
		}
	}
	return codes.Internal, "", false
}

// answer makes the status of an error that ended a call, and reports whether the log should explain it.
func answer(err error) (explain bool, answered error) {
	if err == nil {
		return false, nil
	}
	code, todo, listed := codeOf(err)
	if !listed {
		if _, ok := status.FromError(err); ok { // from gRPC itself, for example when a stream is broken
			return false, err
		}
		return true, status.Error(codes.Internal, "internal error, see the log of pullgated")
	}
	text := err.Error()
	for _, of := range []string{"tracker: ", "back up records: "} {
		text = strings.TrimPrefix(text, of)
	}
	if todo != "" {
		text += "; " + todo
	}
	return false, status.Error(code, text)
}
