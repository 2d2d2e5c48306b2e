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
	Kubeconfig   Reason = "kubeconfig"   // a kubeconfig, or a file that it names, is absent or cannot be read
	Unreachable  Reason = "unreachable"  // the API server cannot be reached
	Timeout      Reason = "timeout"      // the API server does not answer in time
	Unauthorized Reason = "unauthorized" // means 401: the API server does not accept the identity
	Forbidden    Reason = "forbidden"    // means 403: the identity lacks a permission
	Missing      Reason = "missing"      // a Secret that a pod names does not exist
	Malformed    Reason = "malformed"    // a pull secret cannot be parsed
	// Excessive means that the pull secrets of one pod have so many wildcards that some are ignored.
	Excessive Reason = "excessive"
	Expired   Reason = "expired"   // means 410: the watch fell behind and is restarted
	Throttled Reason = "throttled" // means 429
	Server    Reason = "server"    // means a 5xx of the API server
	Other     Reason = "other"     // means every other failure
)

// Reasons returns every value of a Reason.
func Reasons() []Reason {
	return []Reason{
		Kubeconfig, Unreachable, Timeout, Unauthorized, Forbidden, Missing, Malformed, Excessive, Expired, Throttled, Server,
		Other,
	}
}

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
