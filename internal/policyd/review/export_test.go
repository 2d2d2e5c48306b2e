package review

import (
	"crypto/tls"
	"net/http"

	"github.com/pullgate/pullgate/internal/imagepolicy"
)

// Limits for tests.
const (
	AttemptTimeout = attemptTimeout
	MaxReview      = maxReview
	CacheSize      = cacheSize
	MaxBody        = maxBody
)

// NewClientWith returns a client that sends its reviews with a transport.
func NewClientWith(b imagepolicy.Backend, transport http.RoundTripper) *Client {
	return newClient(b, &connection{&target{url: "https://backend.test/", tls: &tls.Config{}, authorize: func(*http.Request) {}}, transport})
}
