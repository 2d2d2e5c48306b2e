package review

import (
	"net/http"

	"github.com/pullgate/pullgate/internal/imagepolicy"
)

// Limits for tests.
const (
	AttemptTimeout = attemptTimeout
	MaxReview      = maxReview
	CacheSize      = cacheSize
)

// NewClientWith returns a client that sends its reviews with a transport.
func NewClientWith(b imagepolicy.Backend, transport http.RoundTripper) *Client {
	return newClient(b, &connection{&target{url: "https://backend.test/", authorize: func(*http.Request) {}}, transport})
}
