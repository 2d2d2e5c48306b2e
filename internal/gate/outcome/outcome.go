// Package outcome implements the classification of a runtime's answer to a pull.
//
// Runtimes report nearly every failure of a pull with the same code, so the text has to distinguish a registry that
// denied the pull from one that could not be asked, and both from a pull that may still bring the image. If this is not
// certain, the outcome is [Error], which is safe.
package outcome

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An Outcome is the result of a forwarded pull.
type Outcome uint8

// The zero value says least.
const (
	Error       Outcome = iota // anything else, including cancellation
	Verified                   // the pull succeeded
	Denied                     // 401, 403, 404
	Unreached                  // the registry was not reached
	Unavailable                // the registry was reached and could not answer: 429, 5xx, a timeout
)

// Label is the value of the outcome label of image_pull_secret_recheck_miss.
func (o Outcome) Label() string {
	return [...]string{
		Error: "error", Verified: "verified", Denied: "denied", Unreached: "unavailable", Unavailable: "unavailable",
	}[o]
}

// resolving is the beginning of every containerd error before anything was fetched. A pull that fails later may have
// stored the image. Only the beginning is matched, because later errors can quote a registry.
var resolving = regexp.MustCompile(`^(?:failed to pull and unpack image(?: "[^" ]*")?: )?failed to resolve `)

// Definite reports whether the pull certainly brought no image, so that its intent can be deleted.
func (o Outcome) Definite(err error) bool {
	if o != Denied && o != Unreached {
		return false
	}
	text := status.Convert(err).Message()
	if _, early, ok := ofCRIO(text); ok {
		return early
	}
	return resolving.MatchString(text)
}

// RegistryDown reports whether the registry could not be asked.
func (o Outcome) RegistryDown() bool { return o == Unreached || o == Unavailable }

// mirrorText matches the URL of every request of containerd to a mirror, and no image name, which a tenant chooses.
var mirrorText = regexp.MustCompile(`https?://[^ "]*\?ns=`)

// FromMirror reports whether a mirror was asked: the registry behind it may have denied the pull unreported.
func FromMirror(err error) bool { return mirrorText.MatchString(status.Convert(err).Message()) }

// The texts of containerd 1.6 to 2.4, which reports nearly everything with code Unknown. Each has a space or a capital
// letter, so an image name, which the text quotes and a tenant chooses, cannot contain it.
var (
	deniedText = regexp.MustCompile(`401 Unauthorized|403 Forbidden|404 Not Found|pull access denied|` +
		`authorization failed|insufficient_scope: |unauthorized: authentication|denied: requested access`)
	unreachedText = regexp.MustCompile(`dial tcp[ :].*(connection refused|no such host|i/o timeout|no route to host|` +
		`network is unreachable|server misbehaving|connection timed out)|TLS handshake|tls: |x509: |` +
		`server gave HTTP response to HTTPS client|proxyconnect tcp`)
	unavailableText = regexp.MustCompile(`\b(429 Too Many Requests|50[0-9] [A-Z][A-Za-z ]+|toomanyrequests: |` +
		`5[0-9]{2} Server Error)|` +
		`unexpected status.*: 5[0-9]{2}|i/o timeout|Client\.Timeout|context deadline exceeded \(Client|` +
		`connection reset by peer|: EOF$|unexpected EOF|failed to fetch (oauth|anonymous) token`)
)

// Of returns the outcome of a pull from the error of the runtime.
//
// Only an error of the runtime itself may be definite. The codes that gRPC returns when the connection to the runtime
// breaks, or when the client disconnects, are not: the runtime may complete such a pull.
func Of(err error) Outcome {
	if err == nil {
		return Verified
	}
	s, ok := status.FromError(err)
	if !ok {
		return Error
	}
	text := s.Message()
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.Aborted:
		return Error
	case codes.NotFound, codes.Unauthenticated, codes.PermissionDenied:
		return Denied
	case codes.ResourceExhausted:
		// The error of gRPC for a message over its limit has no such text.
		if unavailableText.MatchString(text) {
			return Unavailable
		}
		return Error
	case codes.Unavailable:
		// The runtime names its operation and the reference; gRPC names a unix socket or the transport.
		if strings.Contains(text, "failed to ") && !strings.Contains(text, "dial unix") {
			return Unavailable
		}
		return Error
	default:
	}
	if out, _, ok := ofCRIO(text); ok {
		return out
	}
	switch {
	case strings.Contains(text, "dial unix"):
		return Error
	case deniedText.MatchString(text):
		return Denied
	case unreachedText.MatchString(text):
		return Unreached
	case unavailableText.MatchString(text):
		return Unavailable
	}
	return Error
}
