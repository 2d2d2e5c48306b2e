package kubelets_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// The teams whose pods pass a webhook of the API server in some way.
const (
	hookOn       = "hook-on" // none does
	hookDeleted  = "hook-deleted"
	hookDown     = "hook-down"
	hookExcluded = "hook-excluded"
	hookMutated  = "hook-mutated"
)

// validatePath is that of the webhook of pullgate-policyd.
const validatePath = "/admission/validate"

func hookTeams() []string { return []string{hookOn, hookDeleted, hookDown, hookExcluded, hookMutated} }

// hooks are webhooks of the node's API server: that of a second pullgate-policyd with the same policy files, as a
// cluster has it, and one that changes images.
type hooks struct {
	*reviewing
	policyd *node.Webhook
}

// comeBehindWebhooks creates pods with a denied image that pass the webhook of pullgate-policyd: while it is deleted,
// is down, or excludes their namespace, and behind another webhook. It returns them by what has become of the webhook.
func (r *reviewing) comeBehindWebhooks(app, bad node.Pushed) map[string]*outcome {
	r.Helper()
	h := &hooks{r, node.StartWebhook(r, filepath.Join(r.Dir, "webhook-of-"+r.name), r.policies)}
	behind := map[string]*outcome{}
	deleted := h.validate("deleted", in(r.namespace(hookDeleted)))
	h.validate("down", in(r.namespace(hookDown)))
	h.validate("excluding", metav1.LabelSelectorRequirement{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{r.namespace(hookExcluded)},
	}, in(r.namespace(hookOn), r.namespace(hookExcluded)))
	for _, team := range []string{hookOn, hookDeleted, hookDown} {
		h.denies(team, bad)
	}

	r.must(deleted())
	behind["webhook deleted"] = h.admits(hookDeleted, bad)
	behind["webhook that excludes the namespace"] = h.admits(hookExcluded, bad)

	// A validating webhook sees what the mutating ones have left. pullgate's can be registered as a mutating one, which
	// changes nothing; those are called once each, in the order of their names.
	h.mutate("a-pullgate", h.policyd.URL+validatePath, h.policyd.Authority)
	h.denies(hookMutated, bad)
	mirror, authority := r.mutatingWebhook(app.Name, bad.Name)
	h.mutate("b-mirror", mirror, authority)
	changed := h.admits(hookMutated, app)
	// it is registered by now
	for end := time.Now().Add(patience); changed.pod.Spec.Containers[0].Image != bad.Name; changed = h.admits(hookMutated, app) {
		r.drop(changed)
		if time.Now().After(end) {
			r.Fatalf("the mutating webhook has left the image %s", changed.pod.Spec.Containers[0].Image)
		}
	}
	changed.want, changed.image = refused, bad
	behind["image changed by a mutating webhook"] = changed

	r.must(h.policyd.Kill())
	behind["webhook down"] = h.admits(hookDown, bad)
	return behind
}

// in selects namespaces by their names.
func in(namespaces ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces}
}

func podRules() []registrationv1.RuleWithOperations {
	return []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
		Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/ephemeralcontainers"}},
	}}
}

// client returns how the API server calls a webhook.
func client(url string, authority *testkit.Authority) registrationv1.WebhookClientConfig {
	return registrationv1.WebhookClientConfig{URL: &url, CABundle: authority.PEM()}
}

// validate registers the webhook for namespaces, as recommended: a failure is ignored. remove deletes it.
func (h *hooks) validate(name string, namespaces ...metav1.LabelSelectorRequirement) (remove func() error) {
	h.Helper()
	name = h.name + "-" + name
	registered := h.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := registered.Create(h.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "policies.pullgate.dev", ClientConfig: client(h.policyd.URL+validatePath, h.policyd.Authority), Rules: podRules(),
			FailurePolicy: new(registrationv1.Ignore), SideEffects: new(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: namespaces},
		}},
	}, metav1.CreateOptions{})
	h.must(err)
	remove = sync.OnceValue(func() error {
		return registered.Delete(context.WithoutCancel(h.Context()), name, metav1.DeleteOptions{})
	})
	host.AtEnd(h, remove)
	return remove
}

// mutate registers a mutating webhook for the pods of hookMutated.
func (h *hooks) mutate(name, url string, authority *testkit.Authority) {
	h.Helper()
	name = h.name + "-" + name
	registered := h.cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := registered.Create(h.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "pods.pullgate.dev", ClientConfig: client(url, authority), Rules: podRules(),
			FailurePolicy: new(registrationv1.Fail), SideEffects: new(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in(h.namespace(hookMutated))}},
		}},
	}, metav1.CreateOptions{})
	h.must(err)
	host.AtEnd(h, func() error {
		return registered.Delete(context.WithoutCancel(h.Context()), name, metav1.DeleteOptions{})
	})
}

// denies waits until the API server denies a pod with an image, because of the webhook. An API server uses a
// configuration some time after it has it.
func (h *hooks) denies(team string, image node.Pushed) {
	h.Helper()
	want := regexp.MustCompile(`denied the request: .*denied by the image review backend main .*: not scanned`)
	var made *corev1.Pod
	var err error
	denied := func() bool {
		if made, err = h.tryCreate(h.pod(team, image)); err == nil {
			h.drop(&outcome{want: running, pod: made, image: image})
		}
		return apierrors.IsForbidden(err) && want.MatchString(err.Error())
	}
	if !host.Within(patience, denied) {
		h.Fatalf("the webhook for %s: %v; want 403 and %s\n%s", team, err, want, host.Tail(filepath.Join(h.policyd.Dir(), "policyd.log"), 10))
	}
}

// admits waits until the API server admits a pod with an image.
func (h *hooks) admits(team string, image node.Pushed) *outcome {
	h.Helper()
	o := &outcome{want: refused, image: image}
	var err error
	admitted := func() bool {
		o.pod, err = h.tryCreate(h.pod(team, image))
		return err == nil
	}
	if !host.Within(patience, admitted) {
		h.Fatalf("the API server denies a pod of %s: %v; want it admitted", team, err)
	}
	h.kept = append(h.kept, o)
	return o
}

// mutatingWebhook starts a webhook that replaces an image by another one.
func (s *scenario) mutatingWebhook(from, to string) (url string, authority *testkit.Authority) {
	s.Helper()
	authority, err := testkit.NewAuthority("authority of another webhook")
	s.must(err)
	pair, err := authority.Issue(pkix.Name{CommonName: "webhook"}, time.Time{})
	s.must(err)
	certificate, err := pair.TLS()
	s.must(err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var p corev1.Pod
		if err := errors.Join(json.NewDecoder(r.Body).Decode(&review), json.Unmarshal(review.Request.Object.Raw, &p)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if p.Spec.Containers[0].Image == from {
			review.Response.PatchType = new(admissionv1.PatchTypeJSONPatch)
			review.Response.Patch = fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/containers/0/image", "value": %q}]`, to)
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	s.Cleanup(server.Close)
	return server.URL, authority
}
