package hook

import (
	"errors"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

//nolint:gochecknoglobals // a constant
var typeMeta = metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}

// Creation completes a request about a pod that is created.
func Creation(r admissionv1.AdmissionRequest) admissionv1.AdmissionRequest {
	r.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	r.Resource = metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	r.RequestKind, r.RequestResource, r.Operation = &r.Kind, &r.Resource, admissionv1.Create
	r.Options = runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)}
	return r
}

// A Set has the clients of all hooks. It may be used concurrently. The zero value has none.
type Set struct {
	set    outbound.Set[policyfiles.Hook, *target, *Client]
	once   sync.Once
	shared *shared
}

// Checked are hooks without errors, with what files say about them.
type Checked struct {
	hooks   policyfiles.Hooks
	targets []*target
}

// Replace makes a set ask these hooks. A hook that the set has already keeps its connections and its circuit.
func (s *Set) Replace(c Checked) {
	s.once.Do(func() { s.shared = newShared() })
	s.set.Replace(c.hooks, c.targets, func(h policyfiles.Hook, t *target) *Client { return newClient(h, t, s.shared) })
}

func checked(h policyfiles.Hook) (*target, error) {
	t, err := targetOf(h)
	_, invalid := conditionsOf(h)
	return t, errors.Join(err, invalid)
}

// Check reads all client certificates. It returns the errors of all of them, and of the conditions.
func Check(hooks policyfiles.Hooks) (Checked, error) {
	targets, err := outbound.Read(hooks, checked)
	return Checked{hooks, targets}, err
}

// Reload reads all client certificates again. It returns the errors of those that are invalid; the last valid ones stay
// in use.
func (s *Set) Reload() error {
	return s.set.Reload(func(h policyfiles.Hook) (*target, error) {
		if h.Certificate == "" {
			return nil, nil //nolint:nilnil // nothing can have changed
		}
		return targetOf(h)
	})
}

// Clients returns the clients in the order of the hooks. They can be asked until Close, also after Replace.
func (s *Set) Clients() []*Client { return s.set.Clients() }

// Open returns which hooks are not asked about pods of some namespaces, after time-outs.
func (s *Set) Open() map[string]bool {
	open := map[string]bool{}
	for _, c := range s.set.Clients() {
		open[c.Name] = open[c.Name] || c.circuit.anyOpen() // a hook and an initialiser can have one name
	}
	return open
}

// Close closes all clients; see Client.Close. The set must not be used afterwards.
func (s *Set) Close() { s.set.Close() }
