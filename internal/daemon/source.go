package daemon

import (
	"fmt"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/pkg/credential"
)

// openSource returns the configured pod source, nil if there is none. The API server and the kubeconfig may come later.
func openSource(o Options, key credential.Key, m *metrics.Metrics) (*podsource.Source, error) {
	if o.Config.PodSource.Kubeconfig == "" {
		return nil, nil //nolint:nilnil // the configuration has no pod source
	}
	source, err := podsource.New(podsource.Options{
		Kubeconfig: o.Config.PodSource.Kubeconfig,
		NodeName:   o.Config.PodSource.NodeName,
		Key:        key,
		Failed:     m.PodSourceError,
	})
	if err != nil {
		return nil, program.WithHint(fmt.Errorf("open pod source: %w", err),
			"podSource.kubeconfig is normally the kubelet's own, as in /etc/kubernetes/kubelet.conf; "+
				"give podSource.nodeName if it is another one")
	}
	m.SetPodSource(source.Synced)
	return source, nil
}

// sourceState returns the line for /readyz. A node stays ready if the API server does not answer.
func sourceState(s *podsource.Source) string {
	switch {
	case s == nil:
		return ""
	case s.Synced():
		return "\npod source: synced with the API server"
	default:
		return "\npod source: not synced with the API server; known pods stay known, others are judged by CRI data only"
	}
}
