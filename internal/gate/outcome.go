package gate

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An outcome is the result of a forwarded pull. Runtimes report nearly every failure with the same code, so the text
// has to distinguish a registry that denied the pull from one that could not be asked, and both from a pull that may
// still bring the image. If this is not certain, the outcome is pullError, which is safe.
type outcome uint8

// The zero value says least. Of two attempts at one registry the lower outcome counts.
const (
	pullError       outcome = iota // anything else, including cancellation
	pullVerified                   // the pull succeeded
	pullDenied                     // 401, 403, 404
	pullUnavailable                // the registry was reached and could not answer: 429, 5xx, a timeout
	pullUnreached                  // the registry was not reached
)

func (o outcome) label() string {
	return [...]string{"error", "verified", "denied", "unavailable", "unavailable"}[o]
}

// resolving is the beginning of every containerd error before anything was fetched. A pull that fails later may have
// stored the image. Only the beginning is matched, because later errors can quote a registry.
var resolving = regexp.MustCompile(`^(?:failed to pull and unpack image(?: "[^" ]*")?: )?failed to resolve `)

// definite reports whether the pull certainly brought no image, so that its intent can be deleted.
func (o outcome) definite(err error) bool {
	if o != pullDenied && o != pullUnreached {
		return false
	}
	text := status.Convert(err).Message()
	if of, ok := ofCRIO(text); ok {
		return of != pullError
	}
	return resolving.MatchString(text)
}

func (o outcome) registryDown() bool { return o == pullUnreached || o == pullUnavailable }

// mirrorText matches the URL of every request of containerd to a mirror, and no image name, which a tenant chooses.
var mirrorText = regexp.MustCompile(`https?://[^ "]*\?ns=`)

// fromMirror reports whether a mirror was asked: the registry behind it may have denied the pull unreported.
func fromMirror(err error) bool { return mirrorText.MatchString(status.Convert(err).Message()) }

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

// outcomeOf returns the outcome of a pull from the error of the runtime. The codes that gRPC returns when the
// connection to the runtime breaks, or the client disconnects, are not definite: the runtime may complete the pull.
func outcomeOf(err error) outcome {
	if err == nil {
		return pullVerified
	}
	s, ok := status.FromError(err)
	if !ok {
		return pullError
	}
	text := s.Message()
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.Aborted:
		return pullError
	case codes.NotFound, codes.Unauthenticated, codes.PermissionDenied:
		return pullDenied
	case codes.ResourceExhausted:
		// The error of gRPC for a message over its limit has no such text.
		if unavailableText.MatchString(text) {
			return pullUnavailable
		}
		return pullError
	case codes.Unavailable:
		// The runtime names its operation and the reference; gRPC names a unix socket or the transport.
		if strings.Contains(text, "failed to ") && !strings.Contains(text, "dial unix") {
			return pullUnavailable
		}
		return pullError
	default:
	}
	if out, ok := ofCRIO(text); ok {
		return out
	}
	switch {
	case strings.Contains(text, "dial unix"):
		return pullError
	case deniedText.MatchString(text):
		return pullDenied
	case unreachedText.MatchString(text):
		return pullUnreached
	case unavailableText.MatchString(text):
		return pullUnavailable
	}
	return pullError
}

// crioText matches an error of CRI-O before anything was fetched, up to the answer of the last source:
//
//	[RegistryUnavailable: ][pull image: ][unable to pull image[ or OCI artifact: pull image err]: ]
//	initializing source docker://NAME:
//
// The name is the only part that a tenant chooses. CRI-O has parsed it, so it contains no space. All texts of
// registries come later. Therefore all patterns here match from the beginning, and are never searched for.
var crioText = regexp.MustCompile(`^(?:RegistryUnavailable: )?(?:pull image: )?` +
	`(?:unable to pull image(?: or OCI artifact: pull image err)?: )?initializing source docker://\S+: `)

// crioPull matches every pull error of CRI-O 1.33 and newer.
var crioPull = regexp.MustCompile(`^(?:RegistryUnavailable: )?(?:pull image: )?` +
	`unable to pull image(?: or OCI artifact)?: `)

// CRI-O tries a source that is not an image once more as an OCI artifact, and reports both errors. crioArtifact begins
// a second error that also ended before anything was fetched (1.33 and 1.34; 1.35 and newer).
const artifactErr = "; artifact err: "

var crioArtifact = regexp.MustCompile(`^(?:get manifest: build image source: |` +
	`image reference: get manifest from ref: create image source: )`)

const (
	mirrorsBegin = "(Mirrors also failed: ["
	mirrorsEnd   = "]): "
)

// crioSource is the source of an answer, after the errors of the mirrors.
var crioSource = regexp.MustCompile(`^\S+: `)

// The answers of a source, from their beginning. In crioRefused and crioBusy the registry's own text may follow.
var (
	crioManifest = regexp.MustCompile(`^reading manifest \S+ in \S+: `)
	crioStage    = regexp.MustCompile(`^(?:pinging container registry \S+: |Requesting bearer token: )`)
	crioRequest  = regexp.MustCompile(`^(?:Get|Head|Post) "[^" ]*": `)

	crioRefused = regexp.MustCompile(`^(?:unable to retrieve auth token: invalid username/password: |` +
		`StatusCode: 40[134], |received unexpected HTTP status: 40[134] |invalid status code from registry 40[134] |` +
		`(?:unauthorized|denied|name unknown|manifest unknown)(?:: |$)|` +
		`(?:authentication required|requested access to the resource is denied|repository name not known to registry)$)`)
	crioBusy = regexp.MustCompile(`^(?:received unexpected HTTP status: (?:429|5[0-9]{2}) |` +
		`invalid status code from registry (?:429|5[0-9]{2}) |` +
		`StatusCode: 429, |(?:toomanyrequests|unavailable)(?:: |$)|` +
		`(?:too many requests|too many requests to registry|service unavailable)$)`)

	// The errors of Go's HTTP client for a request.
	crioUnreached = regexp.MustCompile(`^(?:proxyconnect tcp: |dial tcp[ :][^"]*(?:connection refused|no such host|` +
		`i/o timeout|no route to host|network is unreachable|server misbehaving|connection timed out)$|` +
		`net/http: TLS handshake timeout|tls: |x509: |remote error: tls: |http: server gave HTTP response to HTTPS client)`)
	crioBroke = regexp.MustCompile(`^(?:EOF$|unexpected EOF$|read tcp [^"]*(?:connection reset by peer|i/o timeout)$|` +
		`net/http: timeout awaiting response headers|context deadline exceeded \(Client|` +
		`net/http: request canceled[^"]*\(Client\.Timeout)`)
)

// ofCRIO returns the outcome of a pull by CRI-O. ok is false for an error that may not be from CRI-O. With any other
// outcome than pullError the pull ended before anything was fetched. CRI-O asks the mirrors of a registry first and the
// registry last. Only the answer of the last source counts: a mirror that is down does not hide a denial, and a denial
// of a mirror does not show that the registry is up.
func ofCRIO(text string) (out outcome, ok bool) {
	begin := crioText.FindString(text)
	if begin == "" {
		return pullError, crioPull.MatchString(text)
	}
	first, second, twice := strings.Cut(text[len(begin):], artifactErr)
	if !twice {
		return ofSource(first), true
	}
	again := crioArtifact.FindString(second)
	if again == "" || strings.Contains(second, artifactErr) {
		return pullError, true
	}
	return min(ofSource(first), ofSource(second[len(again):])), true
}

func ofSource(text string) outcome {
	if rest, mirrors := strings.CutPrefix(text, mirrorsBegin); mirrors {
		_, last, found := strings.Cut(rest, mirrorsEnd)
		source := crioSource.FindString(last)
		// The separator may be in an answer of a mirror, or once more in an answer of the registry.
		if !found || source == "" || strings.Contains(last, mirrorsEnd) {
			return pullError
		}
		text = last[len(source):]
	}
	request := ""
	if answer := crioManifest.FindString(text); answer != "" {
		text = text[len(answer):]
	} else {
		text = text[len(crioStage.FindString(text)):]
		request = crioRequest.FindString(text)
		text = text[len(request):]
	}
	switch {
	case request != "" && crioUnreached.MatchString(text):
		return pullUnreached
	case request != "" && crioBroke.MatchString(text), request == "" && crioBusy.MatchString(text):
		return pullUnavailable
	case request == "" && crioRefused.MatchString(text):
		return pullDenied
	}
	return pullError
}
