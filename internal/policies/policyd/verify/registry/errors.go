package registry

import "errors"

// Each error of a Repository is one of these, with text that names host and object. The text holds no credential, no
// query and no user information of a URL. Only ErrUnavailable is a failure; the others are answers of the registry.
var (
	// ErrNotFound means that the registry does not have the object.
	ErrNotFound = errors.New("registry: not found")
	// ErrDenied means that the registry or its token server denied the request: 401, 403 or 429 with the credential
	// that there is.
	ErrDenied = errors.New("registry: denied")
	// ErrUnavailable means that no registry could be asked: no connection, no answer in time, 5xx, or a hosts.toml
	// that is invalid.
	ErrUnavailable = errors.New("registry: unavailable")
	// ErrMismatch means that the content does not have the digest that was asked for.
	ErrMismatch = errors.New("registry: content has another digest")
	// ErrTooLarge means that the answer exceeds a limit: its size, its number of entries, or the time of the context
	// after the registry had begun to answer.
	ErrTooLarge = errors.New("registry: limit exceeded")
	// ErrMalformed means that the answer is not one that a registry may give: other content, a redirect that is not
	// followed, an unusable challenge. A name or digest that is not valid is one too.
	ErrMalformed = errors.New("registry: invalid answer")
)

// Outcome returns the label of a request that ended with this error, for metrics: ok, not_found, denied, unavailable,
// invalid or too_large.
func Outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrDenied):
		return "denied"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrTooLarge):
		return "too_large"
	}
	return "invalid"
}

// Outcomes returns the results that [Outcome] has, so that a metric can begin with all of them.
func Outcomes() []string {
	return []string{"ok", "not_found", "denied", "unavailable", "too_large", "invalid"}
}
