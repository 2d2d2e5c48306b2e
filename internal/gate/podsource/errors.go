package podsource

import "errors"

// ErrNotKnown is returned with the credentials of a pod if the list may be incomplete: a Secret is missing, malformed
// or could not be read.
var ErrNotKnown = errors.New("podsource: not all credentials of the pod are known")

// ErrNodeName is returned if no node name is given and the kubeconfig does not determine one.
var ErrNodeName = errors.New("podsource: node name not known")

// ErrKubeconfig is returned for a kubeconfig that cannot be used.
var ErrKubeconfig = errors.New("podsource: kubeconfig cannot be used")
