package pair

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// gRPC over HTTP/2, as far as local calls need it:
//
//	request   :path, content-type, grpc-timeout, metadata │ message
//	header    :status 200, content-type, metadata         │ message
//	trailer   grpc-status, grpc-message, grpc-status-details-bin, metadata
//
// Header blocks consist of the static entry for :status 200 and of literals that are never indexed, without Huffman coding
// (RFC 7541 6.1 and 6.2.3). They begin with an update that leaves no dynamic table, see response.go.

const grpcType = "application/grpc"

// isGRPC reports whether a content type is that of gRPC with messages of protobuf. With any other one the runtime might decode
// another message than a handler or a Bypass.
func isGRPC(contentType string) bool {
	return contentType == grpcType || contentType == grpcType+"+proto"
}

// reserved reports whether a key is none of metadata, but is gRPC's own.
func reserved(key string) bool {
	switch key {
	case "te", "content-type", "content-length", "grpc-encoding", "grpc-message", "grpc-message-type", "grpc-status", "grpc-status-details-bin", "grpc-timeout", "user-agent":
		return true
	}
	return false
}

// parseTimeout reads the value of grpc-timeout: up to 8 digits and a unit.
func parseTimeout(text string) (time.Duration, error) {
	if len(text) < 2 || len(text) > 9 {
		return 0, fmt.Errorf("%q has not 2 to 9 characters", text)
	}
	digits, unit := text[:len(text)-1], text[len(text)-1]
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': 1}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || units[unit] == 0 {
		return 0, fmt.Errorf("%q is not a number and a unit", text)
	}
	if n > uint64(math.MaxInt64/units[unit]) { //nolint:gosec // a positive constant
		return math.MaxInt64, nil
	}
	return time.Duration(n) * units[unit], nil
}

// decodeMetadata decodes the value of a key whose name says that it is binary.
func decodeMetadata(key, value string) (string, error) {
	if !strings.HasSuffix(key, "-bin") {
		return value, nil
	}
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	return string(b), err
}

func appendMetadata(b []byte, md metadata.MD) []byte {
	for key, values := range md {
		if reserved(key) || !validName(key) {
			continue
		}
		for _, value := range values {
			if strings.HasSuffix(key, "-bin") {
				value = base64.RawStdEncoding.EncodeToString([]byte(value))
			}
			if validValue(value) {
				b = appendLiteral(b, key, value)
			}
		}
	}
	return b
}

const (
	// status200 is the index of :status 200 in the static table.
	status200 = 0x88
	// noTable is an update of the dynamic table's size, to 0. An update has tableUpdate in the bits of tableMask.
	noTable                = 0x20
	tableUpdate, tableMask = 0x20, 0xe0
)

// appendHeader appends the fields of a header. "" is the content type of gRPC.
func appendHeader(b []byte, contentType string, md metadata.MD) []byte {
	if contentType == "" {
		contentType = grpcType
	}
	return appendMetadata(appendLiteral(append(b, status200), "content-type", contentType), md)
}

// appendTrailer appends the fields of a trailer.
func appendTrailer(b []byte, s *status.Status, md metadata.MD) []byte {
	b = appendLiteral(b, "grpc-status", strconv.FormatUint(uint64(s.Code()), 10))
	b = appendLiteral(b, "grpc-message", percentEncode(s.Message()))
	if p := s.Proto(); len(p.GetDetails()) > 0 {
		if raw, err := proto.Marshal(p); err == nil {
			b = appendLiteral(b, "grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(raw))
		}
	}
	return appendMetadata(b, md)
}

// percentEncode encodes a grpc-message. What is not UTF-8 becomes U+FFFD.
func percentEncode(text string) string {
	plain := func(r rune) bool { return r >= ' ' && r <= '~' && r != '%' }
	if !slices.ContainsFunc([]rune(text), func(r rune) bool { return !plain(r) }) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if plain(r) {
			b.WriteRune(r)
			continue
		}
		for _, c := range []byte(string(r)) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// statusOf returns the status of an error, as a server of grpc-go does.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// wholeMessage returns the message of a request or an answer that consists of one uncompressed message.
func wholeMessage(b []byte) ([]byte, bool) {
	if len(b) < messageHead || b[0] != 0 || int64(binary.BigEndian.Uint32(b[1:])) != int64(len(b)-messageHead) {
		return nil, false
	}
	return b[messageHead:], true
}

// errTooLarge is the status with which grpc refuses a message.
func errTooLarge(size int) error {
	return status.Error(codes.ResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", size, maxMessage))
}

// errPanic is the error of a call that panicked, if Config.Panicked returns none.
var errPanic = errors.New("the call panicked")

func appendLiteral(b []byte, name, value string) []byte {
	b = append(b, 0x10) // never indexed, new name
	return appendString(appendString(b, name), value)
}

// appendString appends a string: its length, as an integer with a prefix of 7 bits (RFC 7541 5.1), and itself.
func appendString(b []byte, s string) []byte {
	const limit = 1<<7 - 1
	if len(s) < limit {
		b = append(b, byte(len(s))) //nolint:gosec // it is below limit
	} else {
		b = binary.AppendUvarint(append(b, limit), uint64(len(s)-limit)) //nolint:gosec // not negative
	}
	return append(b, s...)
}
