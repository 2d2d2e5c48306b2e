package pullsecrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Report is about one pod.
type Report struct {
	Namespace      string   `json:"namespace"`
	Pod            string   `json:"pod"`
	ServiceAccount string   `json:"serviceAccount"`
	Images         []Image  `json:"images"`
	Secrets        []Secret `json:"secrets"`
	Notes          []string `json:"notes"`
	// Events are those of pullgate on the pod; empty as well if the caller may not list Events.
	Events []Event `json:"events"`
}

// Whether a Secret of the pod has a credential for an image.
const (
	Sent    = "sent"    // the kubelet sends at least one
	None    = "none"    // it sends none
	Unknown = "unknown" // it may send that of a Secret whose content is not known
)

// An Image is one use of an image by the pod.
type Image struct {
	Container   string   `json:"container"` // "" if a volume uses it
	Image       string   `json:"image"`
	PullPolicy  string   `json:"pullPolicy"`
	Credentials string   `json:"credentials"` // Sent, None or Unknown
	Secrets     []string `json:"secrets"`     // those that are sent, in this order
}

// States of Secrets.
const (
	Found     = "found"
	NotFound  = "not found"
	WrongType = "wrong type"
	Malformed = "malformed"
	Unread    = "unknown" // its content is not known
)

// A Secret is one that the pod names.
type Secret struct {
	Name    string   `json:"name"`
	State   string   `json:"state"`
	NoLogin []string `json:"noLogin"` // repositories of the pod's images that it has no login for, if it is Found
	Text    string   `json:"text"`    // what is wrong with it, and what to do; "" if nothing is
}

// An Event is one of pullgate.
type Event struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Count returns how many images have this in Credentials.
func (r *Report) Count(credentials string) (n int) {
	for _, i := range r.Images {
		if i.Credentials == credentials {
			n++
		}
	}
	return n
}

// Explain reads a pod, its service account, the Secrets that it names and the Events of pullgate on it.
func Explain(ctx context.Context, api *apiserver.Client, namespace, name string) (*Report, error) {
	in := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/"
	var pod corev1.Pod
	if err := api.Get(ctx, in+"pods/"+url.PathEscape(name), &pod); err != nil {
		return nil, podError(err, namespace, name)
	}
	r := &Report{
		Namespace: namespace, Pod: name, ServiceAccount: pod.Spec.ServiceAccountName,
		Images: []Image{}, Secrets: []Secret{}, Notes: []string{}, Events: []Event{},
	}
	key := credential.NewKey() // IDs under it show only which entries match
	var ring credential.SealedKeyring
	for _, n := range pod.Spec.ImagePullSecrets {
		if n.Name == "" || r.names(n.Name) { // kubelets ignore the first too
			continue
		}
		if len(r.Secrets) == maxSecrets {
			r.Notes = append(r.Notes, fmt.Sprintf("Only the first %d pull secrets are shown.", maxSecrets))
			break
		}
		var s corev1.Secret
		err := api.Get(ctx, in+"secrets/"+url.PathEscape(n.Name), &s)
		sealed := credential.Sealed{}
		if err == nil {
			sealed, err = credential.ParsePullSecret(string(s.Type), s.Data, key)
		}
		ring = append(ring, sealed)
		r.Secrets = append(r.Secrets, secretOf(n.Name, namespace, string(s.Type), err))
	}
	for _, use := range podfile.ImagesOf(&pod.Spec) {
		r.add(use, ring)
	}
	for n := range r.Secrets {
		if s := &r.Secrets[n]; len(s.NoLogin) > 0 {
			s.Text = "has no login for " + strings.Join(s.NoLogin, ", ")
		}
	}
	r.note(ctx, api, in, &pod)
	r.events(ctx, api, in, &pod)
	return r, ctx.Err()
}

func podError(err error, namespace, name string) error {
	hint := "kubectl get pod must work with the same kubeconfig and context"
	switch {
	case apierrors.IsNotFound(err):
		hint = "give the namespace with -n, and the cluster with --context or --kubeconfig"
	case apierrors.IsForbidden(err):
		hint = "ask an administrator of the namespace for the verb get on pods, serviceaccounts and secrets"
	}
	return program.Hintf(hint, "read pod %s/%s: %w", namespace, name, err)
}

func secretOf(name, namespace, kind string, err error) Secret {
	s := Secret{Name: name, State: Found, NoLogin: []string{}}
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		s.State = NotFound
		s.Text = fmt.Sprintf("does not exist in namespace %s; create it there", namespace)
	case errors.Is(err, credential.ErrNoPullSecret):
		s.State = WrongType
		s.Text = fmt.Sprintf("has the type %s, and the kubelet ignores it; create one with `kubectl create secret "+
			"docker-registry`", cmp.Or(kind, "Opaque"))
	case errors.Is(err, credential.ErrMalformed):
		s.State = Malformed
		s.Text = "is malformed, and the kubelet pulls no image of this pod because of it; create it again with `kubectl " +
			"create secret docker-registry`"
	case apierrors.IsForbidden(err):
		s.State = Unread
		s.Text = fmt.Sprintf("you may not read it; ask an administrator of namespace %s for the verb get on Secret %s, or "+
			"to run this command", namespace, name)
	default:
		s.State, s.Text = Unread, fmt.Sprintf("not known: %v", err)
	}
	return s
}

// add adds a use of an image: the kubelet tries all credentials that match its repository.
func (r *Report) add(use podfile.Image, ring credential.SealedKeyring) {
	ref := imageref.New(use.Name)
	i := Image{
		Container: use.Container, Image: use.Name, PullPolicy: string(use.PullPolicy), Credentials: None, Secrets: []string{},
	}
	matched := map[int]bool{}
	if ref.Parsed() && !ref.Name().IsImageID() {
		for _, offer := range ring.Lookup(ref.Repository()) {
			if s := r.Secrets[offer.From].Name; !slices.Contains(i.Secrets, s) {
				i.Secrets = append(i.Secrets, s)
			}
			matched[offer.From] = true
		}
		for n := range r.Secrets {
			s := &r.Secrets[n]
			if s.State == Found && !matched[n] && !slices.Contains(s.NoLogin, ref.Repository()) {
				s.NoLogin = append(s.NoLogin, ref.Repository())
			}
		}
	}
	switch {
	case !ref.Parsed():
		r.Notes = append(r.Notes, fmt.Sprintf("%q is not the name of an image, and the kubelet does not pull it.", use.Name))
	case ref.Name().IsImageID():
		r.Notes = append(r.Notes, fmt.Sprintf("%s is an image ID, for which no access can be proved; write REPOSITORY:TAG "+
			"or REPOSITORY@sha256:… in the pod.", use.Name))
	case r.has(Malformed):
		i.Secrets = []string{}
	case len(i.Secrets) > 0:
		i.Credentials = Sent
	case r.has(Unread):
		i.Credentials = Unknown
	}
	r.Images = append(r.Images, i)
}

// maxSecrets bounds the pull secrets that are read: a tenant writes the pod, and an operator may ask about it.
const maxSecrets = 100

func (r *Report) names(secret string) bool {
	return slices.ContainsFunc(r.Secrets, func(s Secret) bool { return s.Name == secret })
}

func (r *Report) has(state string) bool {
	return slices.ContainsFunc(r.Secrets, func(s Secret) bool { return s.State == state })
}

// note adds what else decides: the service account, the pull policies, and what is not visible from here.
func (r *Report) note(ctx context.Context, api *apiserver.Client, in string, pod *corev1.Pod) {
	if name := r.ServiceAccount; name != "" {
		var account corev1.ServiceAccount
		err := api.Get(ctx, in+"serviceaccounts/"+url.PathEscape(name), &account)
		var more []string
		for _, s := range account.ImagePullSecrets {
			if !slices.Contains(pod.Spec.ImagePullSecrets, s) {
				more = append(more, s.Name)
			}
		}
		switch {
		case apierrors.IsNotFound(err):
			r.Notes = append(r.Notes, fmt.Sprintf("Service account %s does not exist.", name))
		case apierrors.IsForbidden(err):
			r.Notes = append(r.Notes, fmt.Sprintf("The pull secrets of service account %s are not known: you may not read it.",
				name))
		case err != nil:
			r.Notes = append(r.Notes, fmt.Sprintf("The pull secrets of service account %s are not known: %v.", name, err))
		case len(more) > 0:
			r.Notes = append(r.Notes, fmt.Sprintf("Service account %s has pull secrets that this pod does not have: %s. A pod "+
				"gets them when it is created, and only if it names none itself.", name, strings.Join(more, ", ")))
		}
	}
	r.Notes = append(r.Notes,
		"A node that checks pull credentials uses an image that it already has only if a credential of the pod can pull it, "+
			"or every pod may use it, with imagePullPolicy IfNotPresent and Never too. With Never nothing is pulled, so "+
			"another pod has to pull the image with the credential first.",
		"Credentials of the node and of its credential providers are not visible to a tenant: an image without a "+
			"credential here can still be pulled with them, or if it is public.")
}

func (r *Report) events(ctx context.Context, api *apiserver.Client, in string, pod *corev1.Pod) {
	var list corev1.EventList
	selector := url.QueryEscape("involvedObject.uid=" + string(pod.UID) + ",reportingComponent=pullgate")
	if api.Get(ctx, in+"events?limit=20&fieldSelector="+selector, &list) != nil {
		return // which a tenant need not be allowed
	}
	for _, e := range list.Items {
		r.Events = append(r.Events, Event{e.Reason, e.Message})
	}
}
