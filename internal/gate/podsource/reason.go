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
	// Kubeconfig means that a kubeconfig, or a file that it names, is absent or cannot be read.
	Kubeconfig Reason = "kubeconfig"
	// Unreachable means that the API server cannot be reached.
	Unreachable Reason = "unreachable"
	// Timeout means that the API server does not answer in time.
	Timeout Reason = "timeout"
	// Unauthorized means 401: the API server does not accept the identity.
	Unauthorized Reason = "unauthorized"
	// Forbidden means 403: the identity lacks a permission.
	Forbidden Reason = "forbidden"
	// Missing means that a Secret that a pod names does not exist.
	Missing Reason = "missing"
	// Malformed means that a pull secret cannot be parsed.
	Malformed Reason = "malformed"
	// Excessive means that the pull secrets of one pod have so many wildcards that some are ignored.
	Excessive Reason = "excessive"
	// Expired means 410: the watch fell behind and is restarted.
	Expired Reason = "expired"
	// Throttled means 429.
	Throttled Reason = "throttled"
	// Server means a 5xx of the API server.
	Server Reason = "server"
	// Other means every other failure.
	Other Reason = "other"
)

// Reasons returns every value of a Reason.
func Reasons() []Reason {
	return []Reason{
		Kubeconfig, Unreachable, Timeout, Unauthorized, Forbidden, Missing, Malformed, Excessive, Expired, Throttled, Server,
		Other,
	}
}

// reasonOf returns the reason for an error of a request, or of what it needs.
func reasonOf(err error) Reason {
	var network net.Error
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, ErrKubeconfig):
		return Kubeconfig
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
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err),
		errors.Is(err, errSlow), errors.Is(err, context.DeadlineExceeded):
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
