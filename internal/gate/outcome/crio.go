package outcome

import (
	"regexp"
	"strings"
)

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

// ofCRIO returns the outcome of a pull by CRI-O, and whether it ended before anything was fetched. ok is false for an
// error that may not be from CRI-O.
//
// CRI-O asks the mirrors of a registry first and the registry last, with the credential of the pull. Only the answer of
// the last source counts: a mirror that is down does not hide a denial, and a denial of a mirror does not show that the
// registry is up. If a text of a registry makes it uncertain which part belongs to which source, the outcome is Error.
func ofCRIO(text string) (out Outcome, early, ok bool) {
	begin := crioText.FindString(text)
	if begin == "" {
		return Error, false, crioPull.MatchString(text)
	}
	first, second, twice := strings.Cut(text[len(begin):], artifactErr)
	out = ofSource(first)
	if !twice {
		return out, out != Error, true
	}
	again := crioArtifact.FindString(second)
	if again == "" || strings.Contains(second, artifactErr) {
		return Error, false, true
	}
	out = both(out, ofSource(second[len(again):]))
	return out, out != Error, true
}

// both returns the outcome of two attempts at one registry. It was not reached only if neither got an answer.
func both(a, b Outcome) Outcome {
	for _, o := range []Outcome{Error, Denied, Unavailable} {
		if a == o || b == o {
			return o
		}
	}
	return Unreached
}

// ofSource returns the outcome of the last source.
func ofSource(text string) Outcome {
	if rest, mirrors := strings.CutPrefix(text, mirrorsBegin); mirrors {
		_, last, found := strings.Cut(rest, mirrorsEnd)
		source := crioSource.FindString(last)
		// The separator may be in an answer of a mirror, or once more in an answer of the registry.
		if !found || source == "" || strings.Contains(last, mirrorsEnd) {
			return Error
		}
		text = last[len(source):]
	}
	if answer := crioManifest.FindString(text); answer != "" {
		text = text[len(answer):]
	} else {
		text = text[len(crioStage.FindString(text)):]
		if request := crioRequest.FindString(text); request != "" {
			return ofRequest(text[len(request):])
		}
	}
	switch {
	case crioRefused.MatchString(text):
		return Denied
	case crioBusy.MatchString(text):
		return Unavailable
	}
	return Error
}

func ofRequest(text string) Outcome {
	switch {
	case crioUnreached.MatchString(text):
		return Unreached
	case crioBroke.MatchString(text):
		return Unavailable
	}
	return Error
}
