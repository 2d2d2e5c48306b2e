package daemon

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// podSource adapts the pod source to gate.PodSource.
type podSource struct{ source *podsource.Source }

// openSource returns the configured pod source, nil if there is none. An API server that does not answer and a
// kubeconfig that does not exist yet are not errors.
func openSource(o Options, key credential.Key, m *metrics.Metrics) (*podSource, error) {
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
	return &podSource{source}, nil
}

// run syncs the source until ctx ends. If it fails, the daemon continues, and pods are judged more strictly.
func (s *podSource) run(ctx context.Context, log klog.Logger) {
	if err := s.source.Run(klog.NewContext(ctx, log)); err != nil {
		log.Error(err, "Pod source ended: falling back to CRI data only",
			"hint", "set podSource.nodeName and restart pullgated")
	}
}

// unlessNil returns an adapter of a source as an interface, nil if there is no source.
func unlessNil[I any](s *podSource, adapter I) (source I) {
	if s != nil {
		source = adapter
	}
	return source
}

// keep makes the source keep the fields that policies restrict.
func (s *podSource) keep(fields []string) {
	if s != nil {
		s.source.KeepFields(fields)
	}
}

// View returns what the API server has about a pod and its containers, if policies use any of it.
func (s *podSource) View(ctx context.Context, uid string) (_ admission.Pod, _ []admission.Container, ok bool) {
	if !s.source.KeepsFields() {
		return admission.Pod{}, nil, false
	}
	p, known := s.source.Await(ctx, uid)
	if !known {
		return admission.Pod{}, nil, false
	}
	return p.View()
}

// state returns the line for /readyz. A node stays ready if the API server does not answer.
func (s *podSource) state() string {
	switch {
	case s == nil:
		return ""
	case s.source.Synced():
		return "\npod source: synced with the API server"
	default:
		return "\npod source: not synced with the API server; known pods stay known, others are judged by CRI data only"
	}
}

// PullPolicies returns how a pod uses an image.
func (s *podSource) PullPolicies(uid string, image imageref.Ref) (policies []string, known bool) {
	p, known := s.source.ByUID(uid)
	return p.PullPolicies(image), known
}

// Secrets returns the known credentials of a pod's pull secrets for an image.
func (s *podSource) Secrets(ctx context.Context, uid string, image imageref.Ref) []tracker.Secret {
	found, _ := s.credentials(ctx, uid, image) // those of an incomplete list are the pod's, too
	return found
}

// credentials returns the credentials of a pod's pull secrets for an image, and whether the list is complete.
func (s *podSource) credentials(ctx context.Context, uid string, image imageref.Ref) ([]tracker.Secret, bool) {
	p, known := s.source.Await(ctx, uid)
	if !known {
		return nil, false
	}
	found, err := p.Credentials(ctx, image)
	return found, err == nil
}

// adminSource adapts the pod source to adminapi.PodSource.
type adminSource struct{ *podSource }

// status returns the state of the source for the admin API, nil if there is none.
func (s *podSource) status() *adminv1.PodSourceStatus {
	if s == nil {
		return nil
	}
	return &adminv1.PodSourceStatus{Node: s.source.NodeName(), Synced: s.source.Synced(), Pods: int64(s.source.Len())}
}

// Find returns the pod with the UID, or with the namespace and name.
func (s adminSource) Find(uid, namespace, name string) []tracker.Pod {
	p, known := s.source.ByUID(uid)
	if uid == "" {
		p, known = s.source.ByName(namespace, name)
	}
	if !known {
		return nil
	}
	return []tracker.Pod{p.Pod}
}

// Pods returns all pods, with the images that they use.
func (s adminSource) Pods() (pods []adminapi.SourcedPod) {
	for _, p := range s.source.All() {
		pods = append(pods, adminapi.SourcedPod{Pod: p.Pod, Ended: p.Ended(), Images: p.Images()})
	}
	return pods
}

// Uses returns how a pod uses an image.
func (s adminSource) Uses(uid string, image imageref.Ref) (uses []podsource.Use, known bool) {
	p, known := s.source.ByUID(uid)
	return p.Uses(image), known
}

// Secrets returns the credentials of a pod's pull secrets for an image, and whether the list is complete.
func (s adminSource) Secrets(ctx context.Context, uid string, image imageref.Ref) (_ []tracker.Secret, complete bool) {
	return s.credentials(ctx, uid, image)
}

// Candidates returns the UIDs of the pods that the kubelet may be asking for.
func (s *podSource) Candidates(annotations map[string]string, image imageref.Ref) (uids []string, ok bool) {
	found, ok := s.source.Pods(annotations, image)
	for _, p := range found {
		uids = append(uids, p.UID)
	}
	return uids, ok
}
