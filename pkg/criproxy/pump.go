package criproxy

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pump passes a call on without knowing whether either side streams: messages in both directions
// until the runtime ends the call.
func (s *Server) pump(client grpc.ServerStream, method string, u *Upstream) error {
	ctx, cancel := context.WithCancelCause(client.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()

	runtime, err := u.conn.NewStream(outgoing(ctx), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, contentSubtype(ctx))
	if err != nil {
		return streamEnd(ctx, err)
	}
	// This direction may block in a read from the client until the call has been answered, so it
	// is waited for at Shutdown and not here.
	s.pumps.Go(func() {
		if err := s.guard(method, func() error { return toRuntime(client, runtime) }); err != nil {
			cancel(err)
		}
	})
	err = toClient(client, runtime)
	u.dialer.answer(err)
	client.SetTrailer(runtime.Trailer())
	return streamEnd(ctx, err)
}

// streamEnd is the status with which a stream ends that ended with err: the runtime's own, but for a
// stop of ours, and for what went wrong on the way to the runtime, of which the runtime only knows
// that the call was cancelled.
func streamEnd(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, errStopping) {
		return Refuse(codes.Unavailable, "STOPPING", "pullgated is stopping")
	}
	if _, ours := status.FromError(cause); cause != nil && ours {
		return cause
	}
	return err
}

// toRuntime passes the client's messages and its half-close on.
func toRuntime(client grpc.ServerStream, runtime grpc.ClientStream) error {
	for {
		var f frame
		if err := client.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return runtime.CloseSend()
			}
			return err
		}
		err := runtime.SendMsg(&f)
		f.free()
		if errors.Is(err, io.EOF) {
			return nil // the runtime has ended the call; toClient has its status
		}
		if err != nil {
			return err
		}
	}
}

// toClient passes the runtime's header on as soon as it is there, then its messages, and returns the
// status of the call.
func toClient(client grpc.ServerStream, runtime grpc.ClientStream) error {
	header, err := runtime.Header()
	if err != nil {
		return err
	}
	if header != nil {
		if err := client.SendHeader(header); err != nil {
			return err
		}
	}
	for {
		var f frame
		if err := runtime.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		err := client.SendMsg(&f)
		f.free()
		if err != nil {
			return err
		}
	}
}
