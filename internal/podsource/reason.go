package podsource

import (
	"context"
	"errors"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A Reason is the reason of a failure. The set is fixed: see Reasons.
type Reason string

// The values of a Reason.
const (
	// Kubeconfig is a kubeconfig, or a file that it names, that is absent or cannot be read.
	Kubeconfig Reason = "kubeconfig"
	// Unreachable is an API server that cannot be reached.
	Unreachable Reason = "unreachable"
	// Timeout is an API server that does not answer in time.
	Timeout Reason = "timeout"
	// Unauthorized is a 401: the API server does not accept the identity.
	Unauthorized Reason = "unauthorized"
	// Forbidden is a 403: the identity lacks a permission.
	Forbidden Reason = "forbidden"
	// Missing is a Secret that a pod names and that does not exist.
	Missing Reason = "missing"
	// Malformed is a pull secret that cannot be read.
	Malformed Reason = "malformed"
	// Excessive are pull secrets of one pod with so many wildcards that some are ignored.
	Excessive Reason = "excessive"
	// Expired is a 410: the watch fell behind and is restarted.
	Expired Reason = "expired"
	// Throttled is a 429.
	Throttled Reason = "throttled"
	// Server is a 5xx of the API server.
	Server Reason = "server"
	// Other is everything else.
	Other Reason = "other"
)

// Reasons returns every value of a Reason.
func Reasons() []Reason {
	return []Reason{Kubeconfig, Unreachable, Timeout, Unauthorized, Forbidden, Missing, Malformed, Excessive, Expired, Throttled, Server, Other}
}

// reasonOf sorts an error of a request.
func reasonOf(err error) Reason {
	var network net.Error
	var status apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsNotFound(err):
		return Missing
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return Expired
	case apierrors.IsTooManyRequests(err):
		return Throttled
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), errors.Is(err, errSlow), errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.As(err, &status):
		if status.Status().Code >= 500 {
			return Server
		}
		return Other
	case errors.As(err, &network):
		if network.Timeout() {
			return Timeout
		}
		return Unreachable
	default:
		return Unreachable // the connection ended, or no answer could be read from it
	}
}
