package podsource

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	maxUses    = 1000        // how many uses of images by one pod are kept
	maxSecrets = 100         // how many pull secrets of one pod are read
	maxObject  = 256 << 10   // bytes of a pod that is kept whole: a tenant chooses its size
	maxObjects = 64 << 20    // bytes of all of them
	kubeletLag = time.Minute // how long after a change a kubelet may still have the previous state of a pod
	// mirrorAnnotation is on the API server's copies of static pods, which a kubelet does not run.
	mirrorAnnotation = corev1.MirrorPodAnnotationKey
)

// A Pod is a pod of this node as the API server had it at one moment. It is immutable. The methods of nil may be
// called: it uses no image, and its credentials are not known.
type Pod struct {
	tracker.Pod

	annotations [sha256.Size]byte
	changed     time.Time // when a change of annotations or uses was seen; zero if never
	uses        []Use
	secrets     []key       // those that the pod names, in the pod's order
	cut         bool        // the pod names more
	account     string      // its service account
	ended       bool        // its containers have ended, and no container will be started
	older       bool        // than the source, or it may be
	from        *secrets    // their contents
	view        *view       // nil if no policy uses a field
	logged      atomic.Bool // it was logged that its Secrets have too many wildcards
}

// A Use is one use of an image by a pod: by a container, or by a volume, which has no name here.
type Use struct {
	Container  string
	Image      imageref.Ref
	PullPolicy string // as the API server has it
}

// Uses returns each use of an image by the pod, in the order of its spec, which may write the name in another way.
func (p *Pod) Uses(image imageref.Ref) (uses []Use) {
	if p == nil || !image.Parsed() {
		return nil
	}
	for _, u := range p.uses {
		if u.Image.Name() == image.Name() {
			uses = append(uses, u)
		}
	}
	return uses
}

// reads returns what is read from the API server for the pod: its Secrets, and its service account if it has one.
func (p *Pod) reads() []key {
	if p.account == "" {
		return p.secrets
	}
	return append(slices.Clip(p.secrets), key{p.Namespace, p.account, true})
}

// Credentials returns the credentials of the pod's pull secrets for an image, each once, in the order in which a
// kubelet would send them, and at most one more than credential.MaxOffers. Before them is that of its service account,
// if service accounts are needed and it is known. It waits at most two seconds for what has to be read. ErrNotKnown
// means that the list of those of pull secrets is incomplete.
func (p *Pod) Credentials(ctx context.Context, image imageref.Ref) ([]tracker.Secret, error) {
	if p == nil || !image.Parsed() {
		return nil, ErrNotKnown
	}
	whole := !p.cut
	ring := make(credential.SealedKeyring, 0, len(p.secrets))
	from := make([]records.SecretRef, 0, len(p.secrets))
	var found []tracker.Secret
	keys := p.secrets
	if p.from.accounts() {
		keys = p.reads()
	}
	for i, s := range p.from.get(ctx, keys) {
		if keys[i].account {
			if account, ok := tracker.OfAccount(p.from.seal, p.Namespace, p.account, s.ref.UID); ok {
				found = append(found, account)
			}
			continue
		}
		whole = whole && s.whole
		ring = append(ring, s.sealed)
		from = append(from, s.ref)
	}
	offers, all := ring.First(image.Repository(), credential.MaxOffers+1)
	if !all {
		p.from.count(Excessive)
		whole = false
		if !p.logged.Swap(true) {
			klog.FromContext(ctx).Info("Pull secrets of a pod have too many wildcards, some entries are ignored; "+
				"remove entries from them", "pod", klog.KRef(p.Namespace, p.Name), "image", image.String())
		}
	}
	for _, o := range offers {
		found = append(found, tracker.Secret{Credential: o.ID, Ref: from[o.From]})
	}
	if !whole {
		return found, ErrNotKnown
	}
	return found, nil
}

// podOf returns the part of a pod that is stored. It omits an image whose name no kubelet would accept.
func podOf(api *corev1.Pod) *Pod {
	p := &Pod{
		Pod:         tracker.Pod{UID: string(api.UID), Namespace: api.Namespace, Name: api.Name},
		annotations: hash(api.Annotations), account: api.Spec.ServiceAccountName,
		ended: api.Status.Phase == corev1.PodSucceeded || api.Status.Phase == corev1.PodFailed,
	}
	for _, i := range podfile.ImagesOf(&api.Spec) {
		if ref := imageref.New(i.Name); ref.Parsed() && len(p.uses) < maxUses {
			p.uses = append(p.uses, Use{i.Container, ref, string(i.PullPolicy)})
		}
	}
	for _, s := range api.Spec.ImagePullSecrets {
		switch {
		case s.Name == "": // kubelets ignore it too
		case len(p.secrets) == maxSecrets:
			p.cut = true
		default:
			p.secrets = append(p.secrets, key{namespace: api.Namespace, name: s.Name})
		}
	}
	return p
}

// hash returns one value for all annotations except those that a kubelet overwrites: annotations can be large.
func hash(annotations map[string]string) [sha256.Size]byte {
	h := sha256.New()
	put := func(s string) {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s)))) // a hash never fails
		_, _ = h.Write([]byte(s))
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		switch name {
		case podindex.SeenAnnotation, podindex.SourceAnnotation, mirrorAnnotation:
		default:
			put(name)
			put(annotations[name])
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

type view struct {
	pod        admission.Pod
	containers []admission.Container
	size       int // of pod.Object; 0 if it is an error
}

// Why a pod is not kept whole.
var (
	errEnded    = errors.New("the pod has ended")
	errTooLarge = fmt.Errorf("the Pod of the API server has more than %d KiB", maxObject>>10)
	errNoRoom   = fmt.Errorf("the Pods of the API server on this node have more than %d MiB", maxObjects>>20)
)

// ReviewAnnotations is the field admission.Pod.ReviewAnnotations for KeepFields.
const ReviewAnnotations = "reviewAnnotations"

// Object is the field admission.Pod.Object for KeepFields.
const Object = "object"

// KeepFields sets the fields that views have, by the paths of restriction.Field; without fields there are no views. If
// they change while the source runs, it lists the pods again; until then, new fields are unknown.
func (s *Source) KeepFields(paths []string) {
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	if before := s.fields.Swap(&paths); before == nil && len(paths) == 0 || before != nil && slices.Equal(*before, paths) {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.relist != nil { // else the first list has them
		s.relist()
	}
}

// View returns the view of a pod and of its containers, if there is one. The caller must not modify it.
func (s *Source) View(ctx context.Context, uid string) (pod admission.Pod, containers []admission.Container, ok bool) {
	if len(s.kept()) == 0 {
		return pod, nil, false
	}
	if p, known := s.Await(ctx, uid); known && p.view != nil {
		return p.view.pod, p.view.containers, true
	}
	return pod, nil, false
}

func (s *Source) kept() []string {
	if fields := s.fields.Load(); fields != nil {
		return *fields
	}
	return nil
}

func (s *Source) untilRelist(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relist = cancel
	return ctx, cancel
}

// viewOf returns a view. room is how large a pod may be to be kept whole.
func viewOf(p *corev1.Pod, fields []string, ended bool, room int) *view {
	if len(fields) == 0 {
		return nil
	}
	pod, containers := podfile.ViewOf(p)
	v := &view{}
	v.pod, v.containers = restriction.Keep(&pod, containers, fields)
	v.pod.UID, v.pod.Namespace, v.pod.Name, v.pod.Static = pod.UID, pod.Namespace, pod.Name, pod.Static
	for i, c := range containers {
		v.containers[i].Name, v.containers[i].Kind = c.Name, c.Kind
	}
	if slices.Contains(fields, ReviewAnnotations) {
		v.pod.ReviewAnnotations = pod.ReviewAnnotations
	}
	if !slices.Contains(fields, Object) {
		return v
	}
	switch size := p.Size(); {
	case ended:
		v.pod.Object = errEnded
	case size > maxObject:
		v.pod.Object = errTooLarge
	case size > room:
		v.pod.Object = errNoRoom
	default:
		data, err := p.Marshal() // decoded, it would take up to ten times as much
		if v.pod.Object, v.size = data, size; err != nil {
			v.pod.Object, v.size = err, 0
		}
	}
	return v
}
