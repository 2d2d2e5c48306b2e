package criproxy

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An outcome is what came of a pull that was forwarded.
type outcome uint8

// The zero value is the one of which the least is known.
const (
	outcomeError       outcome = iota // anything else, cancellation included
	outcomeVerified                   // the registry gave the image
	outcomeDenied                     // 401, 403, 404
	outcomeUnreached                  // the registry was not reached at all
	outcomeUnavailable                // it was reached and cannot answer: 429, 5xx, a timeout under way
)

// label is the value of the outcome label of image_pull_secret_recheck_miss.
func (o outcome) label() string {
	switch o {
	case outcomeVerified:
		return "verified"
	case outcomeDenied:
		return "denied"
	case outcomeUnreached, outcomeUnavailable:
		return "unavailable"
	case outcomeError:
		return "error"
	}
	return "error"
}

// resolving stands in every error of a pull that ended before anything was fetched. A pull that fails
// later may already have stored the image: containerd looks it up again and tags it afterwards.
const resolving = "failed to resolve "

// definite reports whether a pull with this outcome and this error certainly brought nothing, so that
// its intent can go.
func (o outcome) definite(err error) bool {
	return (o == outcomeDenied || o == outcomeUnreached) && strings.Contains(status.Convert(err).Message(), resolving)
}

// unavailable reports whether the registry could not be asked.
func (o outcome) unavailable() bool { return o == outcomeUnreached || o == outcomeUnavailable }

// The texts of containerd 1.6 to 2.4, which reports nearly everything as code Unknown. Each has a
// space or a capital, so no image name, which the text quotes and a tenant chooses, can hold it.
var (
	deniedText = regexp.MustCompile(`401 Unauthorized|403 Forbidden|404 Not Found|pull access denied|` +
		`authorization failed|insufficient_scope: |unauthorized: authentication|denied: requested access`)
	unreachedText = regexp.MustCompile(`dial tcp[ :].*(connection refused|no such host|i/o timeout|no route to host|` +
		`network is unreachable|server misbehaving|connection timed out)|TLS handshake|tls: |x509: |` +
		`server gave HTTP response to HTTPS client|proxyconnect tcp`)
	unavailableText = regexp.MustCompile(`\b(429 Too Many Requests|50[0-9] [A-Z][A-Za-z ]+|toomanyrequests: |5[0-9]{2} Server Error)|` +
		`unexpected status.*: 5[0-9]{2}|i/o timeout|Client\.Timeout|context deadline exceeded \(Client|` +
		`connection reset by peer|: EOF$|unexpected EOF|failed to fetch (oauth|anonymous) token`)
)

// classify tells what came of a pull from the runtime's answer.
//
// Only an answer that the runtime gave itself may be definite. Codes that grpc makes when the
// connection to the runtime breaks, or when the client goes away, never are: the runtime may
// complete such a pull.
func classify(err error) outcome {
	if err == nil {
		return outcomeVerified
	}
	s, ok := status.FromError(err)
	if !ok {
		return outcomeError
	}
	text := s.Message()
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.Aborted:
		return outcomeError
	case codes.NotFound, codes.Unauthenticated, codes.PermissionDenied:
		return outcomeDenied
	case codes.ResourceExhausted:
		// grpc's own, for a message over the limit, has no such text.
		if unavailableText.MatchString(text) {
			return outcomeUnavailable
		}
		return outcomeError
	case codes.Unavailable:
		// grpc's own, for a lost connection to the runtime, names a unix socket or the
		// transport; the runtime's names what it did to which reference.
		if strings.Contains(text, "failed to ") && !strings.Contains(text, "dial unix") {
			return outcomeUnavailable
		}
		return outcomeError
	default:
	}
	switch {
	case strings.Contains(text, "dial unix"):
		return outcomeError
	case deniedText.MatchString(text):
		return outcomeDenied
	case unreachedText.MatchString(text):
		return outcomeUnreached
	case unavailableText.MatchString(text):
		return outcomeUnavailable
	}
	return outcomeError
}
