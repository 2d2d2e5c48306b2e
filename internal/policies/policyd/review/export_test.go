package review

import (
	"crypto/tls"
	"net/http"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// Limits for tests.
const (
	AttemptTimeout = attemptTimeout
	MaxReview      = maxReview
	CacheSize      = cacheSize
	MaxBody        = maxBody
)

// NewClient returns a client by the kubeconfig of a backend.
func NewClient(b policyfiles.Backend) (*Client, error) {
	t, err := targetOf(b)
	if err != nil {
		return nil, err
	}
	return newClient(b, t), nil
}

// NewClientWith returns a client that sends its reviews with a transport.
func NewClientWith(b policyfiles.Backend, transport http.RoundTripper) *Client {
	t := &target{url: "https://backend.test/", tls: &tls.Config{}, authorize: func(*http.Request) {}}
	t.transport = transport
	return newClient(b, t)
}
