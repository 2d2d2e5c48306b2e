package outcome

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An Outcome is what came of a pull that was forwarded.
type Outcome uint8

// The zero value is the one of which the least is known.
const (
	Error       Outcome = iota // anything else, cancellation included
	Verified                   // the registry gave the image
	Denied                     // 401, 403, 404
	Unreached                  // the registry was not reached at all
	Unavailable                // it was reached and cannot answer: 429, 5xx, a timeout under way
)

// Label is the value of the outcome label of image_pull_secret_recheck_miss.
func (o Outcome) Label() string {
	switch o {
	case Verified:
		return "verified"
	case Denied:
		return "denied"
	case Unreached, Unavailable:
		return "unavailable"
	case Error:
		return "error"
	}
	return "error"
}

// resolving begins every error of containerd for a pull that ended before anything was fetched. A pull that fails
// later may already have stored the image: containerd looks it up again and tags it afterwards. It is matched at the
// beginning, since errors of a later stage can quote a registry.
var resolving = regexp.MustCompile(`^(?:failed to pull and unpack image(?: "[^" ]*")?: )?failed to resolve `)

// Definite reports whether a pull with this outcome and this error certainly brought nothing, so that
// its intent can go.
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

// Away reports whether the registry could not be asked.
func (o Outcome) Away() bool { return o == Unreached || o == Unavailable }

// mirrorText is in the URL of every request that containerd sends to a mirror, which is told whose images are asked
// for. No image name, which a tenant chooses, can hold it.
var mirrorText = regexp.MustCompile(`https?://[^ "]*\?ns=`)

// OfMirror reports whether the error tells of a request to a mirror. containerd then says nothing of the registry
// behind it, which may have been asked as well and refused.
func OfMirror(err error) bool { return mirrorText.MatchString(status.Convert(err).Message()) }

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

// Of tells what came of a pull from the runtime's answer.
//
// Only an answer that the runtime gave itself may be definite. Codes that grpc makes when the
// connection to the runtime breaks, or when the client goes away, never are: the runtime may
// complete such a pull.
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
		// grpc's own, for a message over the limit, has no such text.
		if unavailableText.MatchString(text) {
			return Unavailable
		}
		return Error
	case codes.Unavailable:
		// grpc's own, for a lost connection to the runtime, names a unix socket or the
		// transport; the runtime's names what it did to which reference.
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
