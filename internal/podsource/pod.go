package podsource

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	// maxUses is how many images of one pod are kept. A use beyond is not known, and so the image
	// is one that the pod does not use.
	maxUses = 1000
	// maxSecrets is how many pull secrets of one pod are read.
	maxSecrets = 100
)

// kubeletLag is how long a kubelet may still ask by what a pod was before a change.
const kubeletLag = time.Minute

// mirrorAnnotation is on the API server's copies of static pods, which no kubelet runs.
const mirrorAnnotation = corev1.MirrorPodAnnotationKey

// A Kind is what a pod uses an image for.
type Kind uint8

// The values of a Kind.
const (
	Container Kind = iota
	InitContainer
	EphemeralContainer
	ImageVolume
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case Container:
		return "Container"
	case InitContainer:
		return "InitContainer"
	case EphemeralContainer:
		return "EphemeralContainer"
	case ImageVolume:
		return "ImageVolume"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Use is one use of an image by a pod.
type Use struct {
	Kind Kind
	// Name is that of the container or volume.
	Name string
	// PullPolicy is "Always", "IfNotPresent" or "Never", as the API server has it.
	PullPolicy string
}

// A Pod is a pod of this node as the API server had it at one moment. It does not change. The zero
// value uses no image and has no credentials that are known.
type Pod struct {
	tracker.Pod
	// Deleting says that the pod is being deleted.
	Deleting bool

	known   *known
	secrets *secrets
}

// Uses returns what the pod uses an image for, in the order of its spec; nothing if it does not use
// it. The name may be the one in the spec or the one that the kubelet sends.
func (p Pod) Uses(image imageref.Ref) []Use {
	if !image.Parsed() || p.known == nil {
		return nil
	}
	var uses []Use
	for _, u := range p.known.uses {
		if u.image == image.Name() {
			uses = append(uses, u.Use)
		}
	}
	return uses
}

// Credentials returns the credentials of the pod's pull secrets for an image, in the order in which
// a kubelet would send them. It waits for a Secret that has to be got, at most two seconds, and for
// none that is known and cannot be got again at present.
//
// It returns at most one more than are considered, credential.MaxOffers, and each credential of a Secret
// once.
//
// With ErrNotKnown the list is not whole: some Secret is missing, malformed, could not be read or has too many
// wildcards. What
// is in the list belongs to the pod nevertheless. An empty list never means that the pull would be
// anonymous; without an error it means that the pod's Secrets have nothing for this image, and the node
// may still have credentials of its own.
func (p Pod) Credentials(ctx context.Context, image imageref.Ref) ([]tracker.Secret, error) {
	if p.known == nil || !image.Parsed() {
		return nil, ErrNotKnown
	}
	whole := !p.known.cut
	ring := make(credential.SealedKeyring, 0, len(p.known.secrets))
	from := make([]records.SecretRef, 0, len(p.known.secrets))
	for _, s := range p.secrets.get(ctx, p.known.secrets) {
		whole = whole && s.whole
		ring = append(ring, s.sealed)
		from = append(from, s.ref)
	}
	var found []tracker.Secret
	offers, all := ring.First(image.Repository(), credential.MaxOffers+1)
	if !all {
		p.secrets.count(Excessive)
		whole = false
		if !p.known.told.Swap(true) {
			klog.FromContext(ctx).Info("Pull secrets of a pod have too many wildcards, some entries are ignored; remove entries from them",
				"pod", klog.KRef(p.Namespace, p.Name), "image", image.String())
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

// known is what is kept of a pod.
type known struct {
	pod         tracker.Pod
	deleting    bool
	annotations [sha256.Size]byte
	changed     time.Time // when annotations or uses were seen to change; zero if never
	uses        []use
	secrets     []key       // those that the pod names, in its order
	cut         bool        // the pod names more
	told        atomic.Bool // that its Secrets have too many wildcards
}

type use struct {
	Use
	image imageref.Name
}

// learn takes from a pod what is kept of it. An image whose name no kubelet would accept is left out.
func learn(p *corev1.Pod) *known {
	k := &known{
		pod:         tracker.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name},
		deleting:    p.DeletionTimestamp != nil,
		annotations: hash(p.Annotations),
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		k.use(InitContainer, c.Name, c.Image, c.ImagePullPolicy)
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		k.use(Container, c.Name, c.Image, c.ImagePullPolicy)
	}
	for i := range p.Spec.EphemeralContainers {
		c := &p.Spec.EphemeralContainers[i]
		k.use(EphemeralContainer, c.Name, c.Image, c.ImagePullPolicy)
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Image != nil {
			k.use(ImageVolume, v.Name, v.Image.Reference, v.Image.PullPolicy)
		}
	}
	for _, s := range p.Spec.ImagePullSecrets {
		switch {
		case s.Name == "": // kubelets pass over it too
		case len(k.secrets) == maxSecrets:
			k.cut = true
		default:
			k.secrets = append(k.secrets, key{p.Namespace, s.Name})
		}
	}
	return k
}

func (k *known) use(kind Kind, name, image string, policy corev1.PullPolicy) {
	if ref := imageref.New(image); ref.Parsed() && len(k.uses) < maxUses {
		k.uses = append(k.uses, use{Use{kind, name, string(policy)}, ref.Name()})
	}
}

// has reports whether the pod uses an image.
func (k *known) has(image imageref.Name) bool {
	return slices.ContainsFunc(k.uses, func(u use) bool { return u.image == image })
}

// hash returns one value for all annotations but those that a kubelet writes over what is there, so
// that large annotations are not kept.
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
