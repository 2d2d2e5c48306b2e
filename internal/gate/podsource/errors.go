package podsource

import "errors"

// ErrNotKnown says that the credentials of a pod may be incomplete: a Secret is missing, malformed or unreadable.
var ErrNotKnown = errors.New("podsource: not all credentials of the pod are known")

// ErrNodeName is returned if no node name is given and the kubeconfig does not determine one.
var ErrNodeName = errors.New("podsource: node name not known")

// ErrKubeconfig is returned for a kubeconfig that cannot be used.
var ErrKubeconfig = errors.New("podsource: kubeconfig cannot be used")
