package doctor

import "errors"

// ErrNoKubelet is returned for a host on which no unit is known to run a kubelet.
var ErrNoKubelet = errors.New("doctor: no kubelet found")

// ErrSeveralKubelets is returned for a host with more than one unit that may run the kubelet, none or several of
// which run.
var ErrSeveralKubelets = errors.New("doctor: several units may run the kubelet")
