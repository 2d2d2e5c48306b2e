package adminapi

import "google.golang.org/grpc"

// Stream is the interceptor of streams.
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return s.stream(srv, stream, info, handler)
}
